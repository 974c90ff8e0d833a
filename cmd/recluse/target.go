package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// target is where exec and shell run things: a sandbox of their own, or a session.
type target interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	Start(ctx context.Context, c sandbox.Command) (string, error)
	Guest(ctx context.Context) (*sandbox.Guest, error)
	// describe returns the spec that the sandbox was made from, and one line about where the caller is.
	describe(ctx context.Context) (spec sandbox.Spec, line string, err error)
}

// target returns the session of a name, or without a name makes a sandbox, on the configured server if there is one. The caller must
// call done.
func (a *app) target(ctx context.Context, name string, f *sandboxFlags, o session.OpenOptions) (t target, done func(), err error) {
	if name != "" {
		return a.inSession(ctx, name, f, o)
	}
	if away, err := a.away(); err != nil || away {
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

// inSandbox is a sandbox that ends with the call.
type inSandbox struct{ *sandbox.Sandbox }

func (t inSandbox) describe(context.Context) (sandbox.Spec, string, error) {
	return t.Spec(), fmt.Sprintf("%s sandbox %s; nothing of it is kept after you leave", t.Backend().Name(), t.ID()), nil
}

// away reports whether the configuration names another server, where everything then runs.
func (a *app) away() (bool, error) {
	cfg, err := a.config()
	if err != nil {
		return false, err
	}
	return cfg.Client.URL != "", nil
}

const (
	// ownIdle ends the session of a call when the program that made the call has died.
	ownIdle = time.Minute
	// endWait is how long the server has to end the session of a call.
	endWait = 30 * time.Second
)

// ownSession is a session of the configured server that ends with the call.
type ownSession struct {
	*inSession
	url string
}

func (t ownSession) describe(ctx context.Context) (sandbox.Spec, string, error) {
	i, err := t.Info(ctx)
	return i.Spec, fmt.Sprintf("%s sandbox %s on %s; nothing of it is kept after you leave", i.Backend, i.Sandbox, t.url), err
}

// onServer makes a session on the configured server for one call. The caller must call done.
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
	end := func(ctx context.Context) error { return s.End(ctx, "the call that it was made for has ended") }
	a.signals.onLeave(func(ctx context.Context) { _ = end(ctx) }) // there is no time to tell
	return ownSession{&inSession{Session: s}, a.cfg.Client.URL}, func() {
		defer done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		if err := end(ctx); err != nil && !gone(err) {
			a.tell(err) // the result has been printed
		}
	}, nil
}

// inSession is a session, by way of its server. A session that is there is used in a single request; open is called only when there is none.
type inSession struct {
	*client.Session
	open func(context.Context) (session.Opened, error) // nil: it has been called
	made session.Opened                                // what it returned
}

// inSession returns the session that flags describe. One that is there must be checked against settings, so it is opened first if there are
// any. The caller must call done.
func (a *app) inSession(ctx context.Context, name string, f *sandboxFlags, o session.OpenOptions) (*inSession, func(), error) {
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

// opened does something in a session, which is opened first if there is none.
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
	if code == v1.CodeSessionExpired && !made.New { // it was found, and its time is up
		return out, err
	}
	return do()
}

// Run gives the command an id that people can type.
func (t *inSession) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	c.ID = shortID()
	return opened(ctx, t, func() (*sandbox.Verdict, error) { return t.Session.Run(ctx, c) })
}

// Start gives the command such an id.
func (t *inSession) Start(ctx context.Context, c sandbox.Command) (string, error) {
	c.ID = shortID()
	return opened(ctx, t, func() (string, error) { return t.Session.Start(ctx, c) })
}

// Cell gives the cell such an id.
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
	return i.Spec, fmt.Sprintf("session %s in %s sandbox %s; it stays when you leave", i.Key.Name, i.Backend, i.Sandbox), err
}

// memoryLimit returns the limit of the memory as people write it.
func memoryLimit(ctx context.Context, t target) string {
	spec, _, err := t.describe(ctx)
	if err != nil {
		return "unknown"
	}
	return config.Size(spec.Limits.Memory).String()
}
