package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// backend returns a backend by name, or chooses one.
func (m *Manager) backend(ctx context.Context, name string) (sandbox.Backend, error) {
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	if name == "" && m.chosen != nil {
		return m.chosen, nil
	}
	if name != "" && m.fit[name] {
		return m.known(name), nil
	}
	req := m.opts.Require
	if name != "" {
		req.Order = []string{name}
	}
	if req.Logger == nil {
		req.Logger = m.log
	}
	b, _, err := backend.Select(ctx, m.opts.Backends, req)
	if err != nil {
		return nil, err
	}
	if name == "" {
		m.chosen = b
	}
	m.fit[b.Name()] = true
	return b, nil
}

// known returns a configured backend by name, or nil.
func (m *Manager) known(name string) sandbox.Backend {
	i := slices.IndexFunc(m.opts.Backends, func(b sandbox.Backend) bool { return b.Name() == name })
	if i < 0 {
		return nil
	}
	return m.opts.Backends[i]
}

// backend returns the session's backend.
func (s *Session) backend() (sandbox.Backend, error) {
	s.mu.Lock()
	name := s.rec.Backend
	s.mu.Unlock()
	b := s.m.known(name)
	if b == nil {
		return nil, &v1.Error{
			Code: v1.CodeBackendUnknown, Op: "use session", Message: "the session lives on backend " + name + ", which is not configured",
			Remedy: "start with that backend",
		}
	}
	return b, nil
}

// pool returns the pool of a backend, or nil if it has none: its sandboxes must be given a session's labels later.
func (m *Manager) pool(b sandbox.Backend) *pool.Pool {
	if _, ok := b.(backend.Labeler); !ok || m.opts.NoPool {
		return nil
	}
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	if m.ctx.Err() != nil {
		return nil
	}
	p := m.pools[b.Name()]
	if p == nil {
		o := m.opts.Pool
		o.Persist, o.Labels = true, m.ownLabels(o.Labels)
		p = pool.New(b, o)
		m.pools[b.Name()] = p
	}
	return p
}

// PoolStats returns the statistics of the pools, by backend.
func (m *Manager) PoolStats() map[string]pool.Stats {
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	out := map[string]pool.Stats{}
	for name, p := range m.pools {
		out[name] = p.Stats()
	}
	return out
}

// warm keeps sandboxes of a spec ready.
func (m *Manager) warm(spec sandbox.Spec) {
	b, err := m.backend(m.ctx, "")
	if err != nil {
		m.log.WarnContext(m.ctx, "no sandboxes are kept ready", "error", err)
		return
	}
	spec, _, err = normal(spec)
	if p := m.pool(b); p != nil && err == nil {
		spec.Persist = false // the pool sets it
		err = p.Warm(m.ctx, spec)
	}
	if err != nil && m.ctx.Err() == nil {
		m.log.WarnContext(m.ctx, "no sandboxes are kept ready", "error", err)
	}
}

// probeBackend returns why a backend does not answer, or nil.
func (m *Manager) probeBackend(b sandbox.Backend) error {
	_, err := askBackend(m.ctx, b, m.opts.pingWait, b.List)
	return err
}

// askBackend asks a backend a question with a timeout. A backend that is a service of its own may stall, and would
// otherwise block the start of a server, a collection, or everybody who needs an image.
func askBackend[T any](ctx context.Context, b sandbox.Backend, wait time.Duration, question func(ctx context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := question(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil { // the caller has not given up
		err = &v1.Error{
			Code: v1.CodeBackendMissing, Op: "ask backend", Message: fmt.Sprintf("the %s backend does not answer: nothing came within %s", b.Name(), wait),
			Remedy: "see whether its service works; until it answers, what it holds is left as it is", Retry: true, Err: err,
		}
	}
	return answer, err
}

// callBackend is askBackend for a request without an answer.
func callBackend(ctx context.Context, b sandbox.Backend, wait time.Duration, request func(ctx context.Context) error) error {
	_, err := askBackend(ctx, b, wait, func(ctx context.Context) (struct{}, error) { return struct{}{}, request(ctx) })
	return err
}
