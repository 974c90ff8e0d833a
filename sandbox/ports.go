package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// PortConn is a connection to a port inside.
type PortConn interface {
	io.ReadWriteCloser
	// CloseWrite ends this side's data. The program inside can still send.
	CloseWrite() error
	// Reset cuts the connection off: the program inside reads an error, and does not take what it has received for
	// everything.
	Reset()
}

// DialPort connects to a port of 127.0.0.1 or ::1 inside, on which a program listens: a web server, for example. This
// does not depend on the network policy. A port on which nothing listens is an error with v1.CodePortClosed.
func (s *Sandbox) DialPort(ctx context.Context, port uint16) (PortConn, error) {
	const op = "connect to a port"
	c, err := s.guest().DialInside(ctx, port)
	if e, ok := errors.AsType[*host.Error](err); ok && e.Code == "port_closed" {
		return nil, portClosed(op, port)
	}
	if errors.Is(err, wire.ErrTooManyConnections) {
		return nil, &v1.Error{
			Code:    v1.CodeTooMany,
			Op:      op,
			Message: "the sandbox has its maximum of connections",
			Remedy:  "close some",
			Retry:   true,
		}
	}
	if err != nil {
		return nil, s.explain(op, err)
	}
	return c, nil
}

func portClosed(op string, port uint16) error {
	return &v1.Error{
		Code:    v1.CodePortClosed,
		Op:      op,
		Message: fmt.Sprintf("nothing listens on port %d inside", port),
		Remedy:  "start a server on 127.0.0.1 or 0.0.0.0 inside, and wait until it listens",
		Retry:   true,
	}
}

// Ports returns the TCP ports on which programs inside listen, sorted by number.
func (s *Sandbox) Ports(ctx context.Context) ([]Port, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Ports{Ports: &wire.Ports{}}})
	if err != nil {
		return nil, s.explain("list ports", err)
	}
	return portsOf(f.GetPorts()), nil
}

// WaitPort waits until a program inside listens on a port, and returns its entry. After the timeout, the error has the
// code v1.CodePortClosed. The guest waits at most an hour.
func (s *Sandbox) WaitPort(ctx context.Context, port uint16, timeout time.Duration) (Port, error) {
	const op = "wait for a port"
	wait := &wire.Ports{WaitPort: uint32(port), WaitNs: timeout.Nanoseconds()}
	f, err := s.guest().Await(ctx, &wire.Request{Call: &wire.Request_Ports{Ports: wait}})
	if err != nil {
		return Port{}, s.explain(op, err)
	}
	if found := portsOf(f.GetPorts()); len(found) > 0 {
		return found[0], nil
	}
	return Port{}, portClosed(op, port)
}

func portsOf(list *wire.PortList) []Port {
	out := []Port{}
	for _, p := range list.GetPorts() {
		out = append(out, Port{
			Port:      int(p.GetPort()),
			Address:   p.GetAddress(),
			PID:       int(p.GetOwner().GetPid()),
			Command:   p.GetOwner().GetCommand(),
			Operation: p.GetOwner().GetOp(),
		})
	}
	return out
}
