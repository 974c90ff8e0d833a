//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"strings"
)

// lookPath finds a program as a shell does, using the PATH of the program's own environment.
func lookPath(name, dir string, env [][]byte) (string, error) {
	if strings.ContainsRune(name, '/') {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil // exec reports what is wrong with it
	}
	path := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(string(e), "PATH="); ok {
			path = v
		}
	}
	var denied bool
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = dir
		} else if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		fi, err := os.Stat(p)
		if err != nil || fi.IsDir() {
			continue
		}
		if fi.Mode()&0o111 == 0 {
			denied = true
			continue
		}
		return p, nil
	}
	if denied {
		return "", os.ErrPermission
	}
	return "", os.ErrNotExist
}
