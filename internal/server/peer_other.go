//go:build !linux && !darwin

package server

import "net"

// peerUID is not told here, so nobody is trusted for the socket alone.
func peerUID(*net.UnixConn) (uid int, ok bool) { return 0, false }
