package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// target is where exec and shell run things: a sandbox of their own, or a session.
type target interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	Start(ctx context.Context, c sandbox.Command) (string, error)
	Guest(ctx context.Context) (*sandbox.Guest, error)
	// put writes a file and makes its directory.
	put(ctx context.Context, name string, data []byte) error
	// memory is the limit.
	memory() int64
	// greeting says where one is.
	greeting() string
}

// target opens the session of a name, or without a name makes a sandbox. The caller must call done.
func (a *app) target(ctx context.Context, w *watch, name string, m *machine) (t target, done func(), err error) {
	if name != "" {
		s, opened, done, err := a.openSession(ctx, name, m, session.OpenOptions{})
		if err != nil {
			return nil, nil, cause(ctx, err)
		}
		return inSession{s, opened.Session}, done, nil
	}
	if err := m.configure(a); err != nil {
		return nil, nil, err
	}
	spec, err := m.spec()
	if err != nil {
		return nil, nil, err
	}
	s, err := a.open(ctx, w, &m.choice, spec)
	if err != nil {
		return nil, nil, err
	}
	return inSandbox{s}, func() { a.close(s) }, nil
}

// inSandbox is a sandbox that ends with the call.
type inSandbox struct{ *sandbox.Sandbox }

func (t inSandbox) put(ctx context.Context, name string, data []byte) error {
	return t.Files().WriteAll(ctx, name, data, sandbox.WriteOptions{Parents: true})
}

func (t inSandbox) memory() int64 { return t.Spec().Limits.Memory }

func (t inSandbox) greeting() string {
	return fmt.Sprintf("%s sandbox %s; nothing of it is kept after you leave", t.Backend().Name(), t.ID())
}

// inSession is a session, by way of its server.
type inSession struct {
	*client.Session
	info session.Info // as it was opened
}

// Run gives the command an id that people can type.
func (t inSession) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	c.ID = shortID()
	return t.Session.Run(ctx, c)
}

// Start does so, too.
func (t inSession) Start(ctx context.Context, c sandbox.Command) (string, error) {
	c.ID = shortID()
	return t.Session.Start(ctx, c)
}

// Cell does so, too.
func (t inSession) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	c.ID = shortID()
	return t.Session.Cell(ctx, c)
}

func shortID() string { return strings.ToLower(rand.Text()[:6]) }

func (t inSession) put(ctx context.Context, name string, data []byte) error {
	return t.Files().WriteAll(ctx, name, data, sandbox.WriteOptions{Parents: true})
}

func (t inSession) memory() int64 { return t.info.Spec.Limits.Memory }

func (t inSession) greeting() string {
	return fmt.Sprintf("session %s in %s sandbox %s; it stays when you leave", t.info.Key.Name, t.info.Backend, t.info.Sandbox)
}
