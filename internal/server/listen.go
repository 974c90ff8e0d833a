package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// CheckListen rejects an address that other machines can reach while there is no key: anyone who reaches it could run
// code here.
func CheckListen(addr string, haveKeys bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeListenRefused,
			Op:      "listen",
			Message: fmt.Sprintf("invalid address %q", addr),
			Remedy:  "write HOST:PORT, e.g. 127.0.0.1:7070",
			Err:     err,
		}
	}
	if haveKeys || loopback(host) {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeListenRefused,
		Op:      "listen",
		Message: addr + " can be reached from other machines, and there is no key yet",
		Remedy:  "create a key with recluse key create, or listen on 127.0.0.1",
	}
}

// ListenUnix listens on a UNIX socket that only its user may open. It replaces a socket that a dead server left behind.
//
// Preconditions: no live server uses the socket.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, listenError(path, err)
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != os.ModeSocket {
			return nil, listenError(path, errors.New("the path exists and is not a socket"))
		}
		if err := os.Remove(path); err != nil {
			return nil, listenError(path, err)
		}
	}
	ln, err := listenPrivate(path)
	if err != nil {
		return nil, listenError(path, err)
	}
	return ln, nil
}

func listenError(path string, err error) error {
	return &v1.Error{Code: v1.CodeListenRefused, Op: "listen", Message: "cannot listen on " + path, Err: err}
}
