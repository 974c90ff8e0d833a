package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// target is where exec and shell run code: a new sandbox or a session.
type target interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	Start(ctx context.Context, c sandbox.Command) (string, error)
	Guest(ctx context.Context) (*sandbox.Guest, error)
	// describe returns the spec of the sandbox, and one line for the user about the sandbox and how long it stays.
	describe(ctx context.Context) (spec sandbox.Spec, line string, err error)
}

// target returns the named session. If name is empty, it makes a sandbox, on the configured remote server if there is
// one. The caller must call done.
func (a *app) target(
	ctx context.Context,
	name string,
	f *sandboxFlags,
	o session.OpenOptions,
) (t target, done func(), err error) {
	if name != "" {
		return a.inSession(ctx, name, f, o)
	}
	if remote, err := a.hasRemoteServer(); err != nil || remote {
		if err != nil {
			return nil, nil, err
		}
		return a.onServer(ctx, f, o)
	}
	spec, err := f.spec(a)
	if err != nil {
		return nil, nil, err
	}
	s, err := a.open(ctx, &f.backendFlags, spec)
	if err != nil {
		return nil, nil, err
	}
	return inSandbox{s}, func() { a.close(s) }, nil
}

// inSandbox is a sandbox on this machine that ends with the command.
type inSandbox struct{ *sandbox.Sandbox }

func (t inSandbox) describe(context.Context) (sandbox.Spec, string, error) {
	return t.Spec(), fmt.Sprintf("%s sandbox %s; it is removed at the end", t.Backend().Name(), t.ID()), nil
}

// hasRemoteServer reports whether client.url is configured. Everything then runs on that server.
func (a *app) hasRemoteServer() (bool, error) {
	cfg, err := a.config()
	if err != nil {
		return false, err
	}
	return cfg.Client.URL != "", nil
}

const (
	// ownIdle is the idle timeout of an ownSession. It ends the session if this program dies.
	ownIdle = time.Minute
	// endWait is how long the server may take to end an ownSession.
	endWait = 30 * time.Second
)

// ownSession is a session on the remote server that ends with the command.
type ownSession struct {
	*inSession
	url string
}

func (t ownSession) describe(ctx context.Context) (sandbox.Spec, string, error) {
	i, err := t.Info(ctx)
	return i.Spec, fmt.Sprintf("%s sandbox %s on %s; it is removed at the end", i.Backend, i.Sandbox, t.url), err
}

// onServer makes an ownSession. The caller must call the returned function, which ends it.
func (a *app) onServer(ctx context.Context, f *sandboxFlags, o session.OpenOptions) (target, func(), error) {
	o, err := a.openOptions(f, o)
	if err != nil {
		return nil, nil, err
	}
	spec, err := f.spec(a)
	if err != nil {
		return nil, nil, err
	}
	o.Spec, o.Policy = &spec, session.Policy{Idle: v1.Duration(ownIdle), OnIdle: v1.IdleEnd}
	c, done, err := a.connect(ctx)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	s, err := c.Create(ctx, "", o)
	if err != nil {
		done()
		return nil, nil, cause(ctx, err)
	}
	end := func(ctx context.Context) error { return s.End(ctx, "its command has ended") }
	a.signals.onLeave(func(ctx context.Context) { _ = end(ctx) }) // there is no time to report errors
	return ownSession{&inSession{Session: s}, a.cfg.Client.URL}, func() {
		defer done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		if err := end(ctx); err != nil && !gone(err) {
			a.printError(err) // the result has been printed
		}
	}, nil
}

// inSession is a session in a server. It is used without opening it first, so that an existing session needs only one
// request. If it does not exist, open is called.
type inSession struct {
	*client.Session
	open func(context.Context) (session.Opened, error) // nil after it has been called
	made session.Opened                                // the result of open
}

// inSession returns the named session. If flags have settings that an existing session must have, it opens the session
// at once, so that the server compares them. The caller must call the returned function.
func (a *app) inSession(
	ctx context.Context,
	name string,
	f *sandboxFlags,
	o session.OpenOptions,
) (*inSession, func(), error) {
	o, err := a.openOptions(f, o)
	if err != nil {
		return nil, nil, err
	}
	c, done, err := a.connect(ctx)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	t := newInSession(c, name, a.withLimits(o))
	if f.given("", "backend") != "" || o.Gate != "" || o.Role != "" {
		if t.made, err = t.open(ctx); err != nil {
			done()
			return nil, nil, cause(ctx, err)
		}
		t.open = nil
	}
	return t, done, nil
}

func newInSession(c *client.Client, name string, o session.OpenOptions) *inSession {
	return &inSession{Session: c.Session(name), open: func(ctx context.Context) (session.Opened, error) {
		_, opened, err := c.Open(ctx, name, o)
		return opened, err
	}}
}

// opened calls do. If the session does not exist or has expired, it opens the session and calls do again.
func opened[T any](ctx context.Context, t *inSession, do func() (T, error)) (T, error) {
	out, err := do()
	code := v1.CodeOf(err)
	if t.open == nil || code != v1.CodeSessionNotFound && code != v1.CodeSessionExpired {
		return out, err
	}
	made, failed := t.open(ctx)
	t.open, t.made = nil, made
	if failed != nil {
		return out, failed
	}
	if code == v1.CodeSessionExpired && !made.New { // open has found the expired session
		return out, err
	}
	return do()
}

// Run runs a command with a short id, which people can type.
func (t *inSession) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	c.ID = shortID()
	return opened(ctx, t, func() (*sandbox.Verdict, error) { return t.Session.Run(ctx, c) })
}

// Start starts a command with a short id.
func (t *inSession) Start(ctx context.Context, c sandbox.Command) (string, error) {
	c.ID = shortID()
	return opened(ctx, t, func() (string, error) { return t.Session.Start(ctx, c) })
}

// Cell runs a cell with a short id.
func (t *inSession) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	c.ID = shortID()
	return opened(ctx, t, func() (*sandbox.Verdict, error) { return t.Session.Cell(ctx, c) })
}

func shortID() string { return strings.ToLower(rand.Text()[:6]) }

// Guest describes the inside of the sandbox.
func (t *inSession) Guest(ctx context.Context) (*sandbox.Guest, error) {
	return opened(ctx, t, func() (*sandbox.Guest, error) { return t.Session.Guest(ctx) })
}

func (t *inSession) describe(ctx context.Context) (sandbox.Spec, string, error) {
	i, err := opened(ctx, t, func() (session.Info, error) { return t.Info(ctx) })
	line := fmt.Sprintf("session %s in %s sandbox %s; it stays at the end", i.Key.Name, i.Backend, i.Sandbox)
	return i.Spec, line, err
}

// memoryLimit returns the memory limit of the sandbox as text, such as 512 MiB.
func memoryLimit(ctx context.Context, t target) string {
	spec, _, err := t.describe(ctx)
	if err != nil {
		return "unknown"
	}
	return v1.SizeText(spec.Limits.Memory)
}
