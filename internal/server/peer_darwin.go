package server

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the uid of the process that connected.
func peerUID(c *net.UnixConn) (uid int, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Xucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	})
	if cerr != nil || err != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
