//go:build unix

package server

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// umaskMu prevents two listeners from restoring each other's umask.
var umaskMu sync.Mutex

// listenPrivate creates a socket that other users can never open: with a chmod after the creation they could in
// between.
func listenPrivate(path string) (net.Listener, error) {
	umaskMu.Lock()
	old := unix.Umask(0o077)
	ln, err := net.Listen("unix", path)
	unix.Umask(old)
	umaskMu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}
