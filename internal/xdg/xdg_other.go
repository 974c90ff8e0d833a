//go:build !unix

package xdg

import (
	"io/fs"
	"os"
	"path/filepath"
)

// closable reports whether permission bits have an effect on this system. Here access lists protect the directories of
// a user.
const closable = false

func owned(fs.FileInfo) bool { return true }

func writable(string) bool { return true }

// system returns the directory that the operating system provides if HOME is not set.
func (k kind) system() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(d, name, k.temp)
	return dir, Private(dir)
}
