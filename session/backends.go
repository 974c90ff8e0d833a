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

// backend returns the backend of that name; name "": the best one that meets the requirements.
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
			Code:    v1.CodeBackendUnknown,
			Op:      "use session",
			Message: fmt.Sprintf("the session's backend %q is not configured", name),
			Remedy:  "configure that backend and start again",
		}
	}
	return b, nil
}

// pool returns the pool of a backend, or nil if it has none. Only a backend that can label a running sandbox has a
// pool, because a sandbox gets the labels of its session when it leaves the pool.
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

// warm starts to keep sandboxes of a spec ready in the pool.
func (m *Manager) warm(spec sandbox.Spec) {
	b, err := m.backend(m.ctx, "")
	if err != nil {
		m.log.WarnContext(m.ctx, "cannot keep sandboxes ready", "error", err)
		return
	}
	spec, _, err = normalSpec(spec)
	if p := m.pool(b); p != nil && err == nil {
		spec.Persist = false // the pool sets it
		err = p.Warm(m.ctx, spec)
	}
	if err != nil && m.ctx.Err() == nil {
		m.log.WarnContext(m.ctx, "cannot keep sandboxes ready", "error", err)
	}
}

// probeBackend returns nil if a backend answers, or else the error.
func (m *Manager) probeBackend(b sandbox.Backend) error {
	_, err := askBackend(m.ctx, b, m.opts.pingWait, b.List)
	return err
}

// askBackend sends a query to a backend, with a timeout. A backend that is a service of its own may stall. Without the
// timeout it would block the start of a server, a collection, or every call that needs an image.
func askBackend[T any](
	ctx context.Context, b sandbox.Backend, timeout time.Duration, query func(ctx context.Context) (T, error),
) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := query(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil { // the timeout, not a cancellation by the caller
		err = &v1.Error{
			Code:    v1.CodeBackendMissing,
			Op:      "query backend",
			Message: fmt.Sprintf("the %s backend did not answer within %s", b.Name(), timeout),
			Remedy:  "check that its service works; its sandboxes and snapshots stay as they are until it answers",
			Retry:   true,
			Err:     err,
		}
	}
	return answer, err
}

// callBackend is askBackend for a request that returns only an error.
func callBackend(
	ctx context.Context, b sandbox.Backend, timeout time.Duration, request func(ctx context.Context) error,
) error {
	_, err := askBackend(ctx, b, timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, request(ctx)
	})
	return err
}
