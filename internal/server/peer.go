package server

import (
	"context"
	"net"
	"os/user"
	"strconv"
)

// peer is the other end of a connection.
type peer struct {
	unix  bool
	known bool // the system told who it is
	uid   int
}

type peerKey struct{}

// connContext notes the peer of a connection once, for all its requests.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	p := peer{unix: true}
	p.uid, p.known = peerUID(c)
	return context.WithValue(ctx, peerKey{}, p)
}

func peerOf(ctx context.Context) peer {
	p, _ := ctx.Value(peerKey{}).(peer)
	return p
}

// userName is for the audit log; a user the system has no name for is a number.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}
