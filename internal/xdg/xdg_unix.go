//go:build unix

package xdg

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// closable reports whether permission bits have an effect on this system.
const closable = true

// owned reports whether this user owns the file.
func owned(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// writable reports whether this user can write to dir. The kernel also checks for read-only file systems.
func writable(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }

// system is not supported: on UNIX, HOME names the home directory.
func (kind) system() (string, error) { return "", errors.ErrUnsupported }
