package server

import (
	"context"
	"net"
	"os/user"
	"strconv"
)

// peer is the process at the other end of a connection.
type peer struct {
	unix  bool // the connection is a UNIX socket
	known bool // uid is known
	uid   int
}

type peerKey struct{}

// connContext stores the peer of a connection in its ctx, once for all requests.
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

// userName returns the name of a user for the audit log, or the uid if the user has no name.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}
