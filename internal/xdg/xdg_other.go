//go:build !unix

package xdg

import (
	"io/fs"
	"os"
	"path/filepath"
)

// closable says that permission bits mean something here. A user's own directories are
// closed by their access lists instead.
const closable = false

func owned(fs.FileInfo) bool { return true }

func writable(string) bool { return true }

// system asks the operating system where there is no HOME.
func (k kind) system() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(d, name, k.temp)
	return dir, Private(dir)
}
