package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

const (
	// portPoll is how long a request waits for a port.
	portPoll = 30 * time.Second
	// serverPause is the time between two attempts to reach a server that does not answer.
	serverPause = time.Second
)

type portOptions struct {
	address string
	wait    v1.Duration
}

func (a *app) portCommand() *cobra.Command {
	var o portOptions
	c := &cobra.Command{
		Use:   "port SESSION [LOCAL:]PORT...",
		Short: "Forward local ports to ports inside a session",
		Long: `Forward local ports to ports inside a session, until Ctrl-C.

A program inside must listen on the port, on 127.0.0.1, 0.0.0.0 or ::1. Until one does,
connections to the local port are refused. Any protocol over TCP works. Without LOCAL, the
local port has the same number; with 0, a free one is chosen.

A hibernated session wakes when a connection is opened, and stays awake while one is open.`,
		Example: `  recluse port work 8000            # http://127.0.0.1:8000
  recluse port work 18000:8000 5432
  recluse port work 8000 --wait 1m  # fail if nothing listens after a minute
  recluse port link work 8000       # for a browser, through recluse serve`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			var all []*forward
			for _, word := range args[1:] {
				f, err := parseForward(word)
				if err != nil {
					return err
				}
				all = append(all, f)
			}
			return a.served(func(ctx context.Context, c *client.Client, args []string) error {
				return a.port(ctx, c, args[0], all, o)
			})(c, args)
		},
	}
	c.Flags().StringVar(&o.address, "address", "127.0.0.1",
		"local `address` to listen on; others can then use the ports, if they can reach it")
	c.Flags().Var(&o.wait, "wait",
		"wait at most this `duration` until the ports are open, and fail if they are not (default no wait)")
	c.AddCommand(a.portLinkCommand())
	return c
}

func (a *app) portLinkCommand() *cobra.Command {
	var expires v1.Duration
	c := &cobra.Command{
		Use:   "link SESSION PORT",
		Short: "Print a link with which a browser can use a port of a session",
		Long: `Print a link with which a browser can use a port of a session.

Everyone who has the link can use the port, until the link expires or the session ends. The
server must listen on an address (recluse serve --listen). By default, the link is for
browsers on the machine of the server; server.ports_domain is for others.`,
		Example:           "  recluse port link work 8000 --expires 8h",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			port, err := parsePort(args[1], 1)
			if err != nil {
				return err
			}
			return a.served(func(ctx context.Context, c *client.Client, args []string) error {
				link, err := c.Session(args[0]).PortLink(ctx, port, expires.Std())
				if err != nil {
					return err
				}
				return a.result(link, "%s\n", link.URL)
			})(c, args)
		},
	}
	c.Flags().Var(&expires, "expires", "`duration` until the link expires, at most 720h (default 1h)")
	return c
}

// forward forwards a local port to a port inside.
type forward struct {
	local, port uint16
	address     string // where it listens
	open        sync.WaitGroup
}

// parseForward parses [LOCAL:]PORT.
func parseForward(word string) (*forward, error) {
	local, port, both := strings.Cut(word, ":")
	if !both {
		local, port = word, word
	}
	inside, err := parsePort(port, 1)
	if err != nil {
		return nil, err
	}
	outside, err := parsePort(local, map[bool]uint16{false: 1, true: 0}[both])
	return &forward{local: outside, port: inside}, err
}

func parsePort(word string, least uint16) (uint16, error) {
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil || uint16(n) < least {
		return 0, usage("invalid port %q: want [LOCAL:]PORT, with numbers from 1 to 65535", word)
	}
	return uint16(n), nil
}

// listen listens on the local port. The first call chooses a port if it is 0.
func (f *forward) listen(ctx context.Context, session string) (*net.TCPListener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
	if err == nil {
		f.address = l.Addr().String()
		return l.(*net.TCPListener), nil //nolint:forcetypeassert // the network is tcp
	}
	e := &v1.Error{
		Code:    v1.CodeInvalidRequest,
		Op:      "listen on " + f.address,
		Message: "cannot use the address",
		Remedy:  "choose another one with --address",
		Err:     err,
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Message = fmt.Sprintf("local port %d is in use by another program", f.local)
		e.Remedy = fmt.Sprintf("choose another local port: recluse port %s 0:%d", session, f.port)
	case errors.Is(err, syscall.EACCES):
		e.Message = fmt.Sprintf("local port %d needs privileges", f.local)
		e.Remedy = fmt.Sprintf("choose another local port: recluse port %s 0:%d", session, f.port)
	}
	return nil, e
}

// port forwards ports until ctx ends.
func (a *app) port(ctx context.Context, c *client.Client, name string, all []*forward, o portOptions) error {
	s, _, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	for _, f := range all {
		f.address = net.JoinHostPort(o.address, strconv.Itoa(int(f.local)))
		l, err := f.listen(ctx, name)
		if err != nil {
			return err
		}
		_ = l.Close() // until the port inside is open, so that connections are refused
	}
	shown := []map[string]any{}
	for _, f := range all {
		_, err := s.WaitPort(ctx, f.port, o.wait.Std())
		switch {
		case v1.CodeOf(err) == v1.CodePortClosed && o.wait == 0:
			a.notice("nothing listens on port %d inside yet; until then, connections are refused", f.port)
		case err != nil:
			return err
		}
		shown = append(shown, map[string]any{"address": f.address, "port": f.port})
	}
	var lines strings.Builder
	for _, f := range all {
		fmt.Fprintf(&lines, "http://%s → port %d inside\n", f.address, f.port)
	}
	if err := a.result(shown, "%s", lines.String()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var forwards sync.WaitGroup
	for _, f := range all {
		forwards.Go(func() { cancel(a.forward(ctx, s, f)) })
	}
	forwards.Wait()
	if _, ok := errors.AsType[interrupted](context.Cause(ctx)); ok {
		return exit(0) // this is how it is ended
	}
	return context.Cause(ctx)
}

// forward forwards a port until ctx ends, or the session cannot be used any more. It listens while the port inside is
// open.
func (a *app) forward(ctx context.Context, s *client.Session, f *forward) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.open.Wait()
	defer cancel() // ends the open connections
	for ctx.Err() == nil {
		_, err := s.WaitPort(ctx, f.port, portPoll)
		code := v1.CodeOf(err)
		switch {
		case err == nil:
			if err := f.serve(ctx, s); err != nil {
				return err
			}
		case code == v1.CodePortClosed:
		case slices.Contains([]v1.Code{v1.CodeUnavailable, v1.CodeClosing, v1.CodeGuestLost, v1.CodeSessionPaused}, code):
			select {
			case <-time.After(serverPause):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
	return context.Cause(ctx)
}

// serve forwards connections until the port inside is closed or ctx ends.
func (f *forward) serve(ctx context.Context, s *client.Session) error {
	l, err := f.listen(ctx, s.Name())
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	for {
		local, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // such as without a free descriptor
			time.Sleep(10 * time.Millisecond)
			continue
		}
		f.open.Go(func() {
			inside, err := s.DialPort(ctx, f.port)
			if err != nil {
				reset(local)
				_ = l.Close() // further connections are refused until the port is open again
				return
			}
			defer context.AfterFunc(ctx, func() { _ = inside.Close(); reset(local) })()
			join(local, inside)
		})
	}
}

// join copies in both directions until both have ended.
func join(local *net.TCPConn, inside *client.PortConn) {
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := io.Copy(inside, local); err != nil || inside.CloseWrite() != nil {
			_ = inside.Close()
		}
	})
	_, err := io.Copy(local, inside)
	if err != nil || local.CloseWrite() != nil {
		reset(local)
		_ = inside.Close()
	}
	sending.Wait()
	_ = inside.Close()
	_ = local.Close()
}

// reset closes a connection so that the other side sees that it broke.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if the connection is closed
	_ = c.Close()
}

// checkFree returns an error if a program already listens on a port for which a command shall be waited.
func checkFree(ctx context.Context, s *client.Session, port uint16) error {
	p, err := s.WaitPort(ctx, port, 0)
	switch {
	case err == nil:
		return &v1.Error{
			Code:    v1.CodeBusy,
			Op:      "wait for a port",
			Message: fmt.Sprintf("process %d already listens on port %d inside: %s", p.PID, port, p.Command),
			Remedy:  "stop it with recluse kill, or choose another port",
		}
	case v1.CodeOf(err) == v1.CodePortClosed || gone(err): // the command makes a session that does not exist
		return nil
	}
	return err
}

// commandPoll is how often awaitPort checks that the command still runs.
const commandPoll = 2 * time.Second

// awaitPort waits until a program listens on a port, or the command has ended.
func awaitPort(ctx context.Context, s *client.Session, id string, port uint16) error {
	for {
		_, err := s.WaitPort(ctx, port, commandPoll)
		if v1.CodeOf(err) != v1.CodePortClosed {
			return err
		}
		o, err := s.Operation(ctx, id)
		if err != nil {
			return err
		}
		if o.Running {
			continue
		}
		// It may have left a server running just before it ended.
		if _, err := s.WaitPort(ctx, port, 0); err == nil {
			return nil
		}
		return &v1.Error{
			Code:    v1.CodePortClosed,
			Op:      "wait for a port",
			Message: fmt.Sprintf("command %s ended (%s) before a program listened on port %d", id, o.Verdict, port),
			Remedy:  fmt.Sprintf("see its output: recluse logs %s %s", s.Name(), id),
		}
	}
}
