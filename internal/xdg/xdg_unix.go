//go:build unix

package xdg

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// closable says that permission bits mean something here.
const closable = true

// owned reports whether this user owns the file.
func owned(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// writable asks the kernel, which also knows of read-only file systems.
func writable(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }

// system has nothing to add: HOME is how it is said here.
func (kind) system() (string, error) { return "", errors.ErrUnsupported }
