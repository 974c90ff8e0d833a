package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// DialPort connects to a port inside, on which a program listens. It wakes a hibernated session. The connection is use
// as long as it is open, and it ends with the session.
func (s *Session) DialPort(ctx context.Context, port uint16) (sandbox.PortConn, error) {
	sb, done, err := s.enter(ctx, true)
	if err != nil {
		return nil, err
	}
	defer done()
	c, err := sb.DialPort(ctx, port)
	if err != nil {
		return nil, s.explain(sb, err)
	}
	s.mu.Lock()
	s.connections++
	s.mu.Unlock()
	return &portConn{PortConn: c, ended: sync.OnceFunc(s.endConnection)}, nil
}

func (s *Session) endConnection() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections--
	s.rec.Used, s.dirty = time.Now(), true
}

// portConn is a connection that counts as use until it is closed.
type portConn struct {
	sandbox.PortConn
	ended func()
}

// Close implements sandbox.PortConn.
func (c *portConn) Close() error {
	defer c.ended()
	return c.PortConn.Close()
}

// Reset implements sandbox.PortConn.
func (c *portConn) Reset() {
	defer c.ended()
	c.PortConn.Reset()
}

// viewPorts is how many ports the view of a hibernated session has.
const viewPorts = 64

// Ports returns the ports on which programs inside listen. For a hibernated session, it returns them as of its
// hibernation. It does not count as use.
func (s *Session) Ports(ctx context.Context) ([]sandbox.Port, error) {
	recorded := func(v *sandboxView) []sandbox.Port { return slices.Clone(v.Ports) }
	return look(ctx, s, recorded, (*sandbox.Sandbox).Ports)
}

// WaitPort waits until a program inside listens on a port, and returns its entry. After the timeout, the error has the
// code v1.CodePortClosed. The wait does not count as use, and does not wake a hibernated session, in which nothing can
// begin to listen.
func (s *Session) WaitPort(ctx context.Context, port uint16, timeout time.Duration) (sandbox.Port, error) {
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for deadline := time.Now().Add(timeout); ; {
		s.mu.Lock()
		changed := s.attachment.changed
		s.mu.Unlock()
		view := s.hibernatedView()
		if view == nil {
			p, err := s.waitPort(ctx, port, time.Until(deadline))
			if v1.CodeOf(err) != v1.CodeSessionMoved || ctx.Err() != nil {
				return p, err
			}
			continue
		}
		if i := slices.IndexFunc(view.Ports, func(p sandbox.Port) bool { return p.Port == int(port) }); i >= 0 {
			return view.Ports[i], nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return sandbox.Port{}, &v1.Error{
				Code:    v1.CodePortClosed,
				Op:      "wait for a port",
				Message: fmt.Sprintf("nothing listens on port %d, and the session is hibernated", port),
				Remedy:  "resume the session, and start a server in it",
				Retry:   true,
			}
		case <-ctx.Done():
			return sandbox.Port{}, cancelled("wait for a port", ctx.Err())
		case <-s.m.ctx.Done():
			return sandbox.Port{}, errClosing
		}
	}
}

// waitPort waits for a port of the current sandbox.
func (s *Session) waitPort(ctx context.Context, port uint16, timeout time.Duration) (sandbox.Port, error) {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return sandbox.Port{}, err
	}
	done() // a wait must not keep a session from hibernating
	p, err := sb.WaitPort(ctx, port, timeout)
	return p, s.explain(sb, err)
}
