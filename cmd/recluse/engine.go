package main

import (
	"context"
	"sync"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// Runs normally work in the server. This process has its own RLM engine only for runs that cannot: those of the demo,
// which needs no server, and those with the model of an agent that speaks MCP with this process.

// engineParts is what the RLM engines of this process share: the backend, the spec and the gate.
type engineParts struct {
	a       *app
	backend sandbox.Backend
	spec    sandbox.Spec
	checker *gate.Checker
	swept   sync.Once
}

// engineParts returns the parts from flags and configuration. It is closed when the program ends.
func (a *app) engineParts(ctx context.Context, f *sandboxFlags) (*engineParts, error) {
	spec, err := f.spec(a)
	if err != nil {
		return nil, err
	}
	b, err := a.backend(ctx, &f.backendFlags)
	if err != nil {
		return nil, err
	}
	checker, err := a.cfg.Gate.Open(nil)
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, checker.Close)
	return &engineParts{a: a, backend: b, spec: spec, checker: checker}, nil
}

// engine returns a new RLM engine. The first call also sweeps left-over sandboxes of earlier runs.
func (g *engineParts) engine(ctx context.Context, o rlm.Options) (*rlm.Engine, error) {
	o.Sandboxes, o.Spec, o.Logger, o.Durable, o.Gate = guarded{
		rlm.FromBackend(g.backend),
		g.a.signals,
	}, g.spec, g.a.logger(), true, g.checker
	o.Dialect, o.MaxPrompts = g.a.cfg.Models.Dialect, g.a.cfg.Models.MaxPrompts()
	if o.PlainBelow == 0 {
		o.PlainBelow = g.a.cfg.Models.Small()
	}
	e, err := rlm.New(o)
	if err == nil {
		g.swept.Do(func() { rlm.Sweep(ctx, g.backend, nil, e) })
	}
	return e, err
}

// guarded registers the sandboxes of a run with watch.guard, so that they end before the program exits at once.
type guarded struct {
	rlm.Sandboxes
	w *watch
}

func (g guarded) note(m rlm.Sandbox, err error) (rlm.Sandbox, error) {
	if s, ok := m.(*sandbox.Sandbox); ok && err == nil {
		g.w.guard(s)
	}
	return m, err
}

// Open implements rlm.Sandboxes.
func (g guarded) Open(ctx context.Context, spec sandbox.Spec) (rlm.Sandbox, error) {
	return g.note(g.Sandboxes.Open(ctx, spec))
}

// Attach implements rlm.Sandboxes.
func (g guarded) Attach(ctx context.Context, id string) (rlm.Sandbox, error) {
	return g.note(g.Sandboxes.Attach(ctx, id))
}

// Restore implements rlm.Sandboxes.
func (g guarded) Restore(ctx context.Context, snapshot string) (rlm.Sandbox, error) {
	return g.note(g.Sandboxes.Restore(ctx, snapshot))
}
