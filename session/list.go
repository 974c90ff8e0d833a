package session

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

// Get returns a live session, once it is created. It does not count as use.
func (m *Manager) Get(ctx context.Context, key Key) (*Session, error) {
	key = withTenant(key)
	m.mu.Lock()
	s, closing := m.live[key], m.closing
	m.mu.Unlock()
	if closing {
		return nil, errClosing
	}
	if s != nil {
		if err := s.awaitCreated(ctx); err != nil {
			return nil, err
		}
		return s, nil
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	return nil, m.missing(ctx, key)
}

// missing returns the error for a key without a live session.
func (m *Manager) missing(ctx context.Context, key Key) error {
	rows, err := m.store.FindSessions(ctx, store.SessionQuery{Tenant: key.Tenant, Name: key.Name, Limit: 1})
	if err != nil {
		return err
	}
	if len(rows) > 0 && rows[0].State == string(v1.StateExpired) {
		r, err := decode(rows[0])
		if err != nil {
			return err
		}
		return expired(key, r.Reason)
	}
	return notFound(key)
}

// List iterates over sessions, sorted by tenant, name and time of creation.
func (m *Manager) List(ctx context.Context, o ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		all, err := m.list(ctx, o)
		if err != nil {
			yield(Info{}, err)
			return
		}
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

func (m *Manager) list(ctx context.Context, o ListOptions) ([]Info, error) {
	if o.Tenant == "" {
		o.Tenant = DefaultTenant
	}
	wanted := func(i *Info) bool {
		return (o.Tenant == "*" || i.Key.Tenant == o.Tenant) &&
			(len(o.States) == 0 && i.State.Live() || slices.Contains(o.States, i.State)) && hasLabels(i.Labels, o.Labels)
	}
	var out []Info
	for _, s := range m.sessions() {
		if i := s.Info(); wanted(&i) {
			out = append(out, i)
		}
	}
	if slices.ContainsFunc(o.States, func(s State) bool { return !s.Live() }) {
		q := store.SessionQuery{Dead: true}
		if o.Tenant != "*" {
			q.Tenant = o.Tenant
		}
		rows, err := m.store.FindSessions(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			r, err := decode(row)
			if err != nil {
				return nil, err
			}
			if i := r.info(); wanted(&i) {
				out = append(out, i)
			}
		}
	}
	slices.SortFunc(out, func(a, b Info) int {
		return cmp.Or(
			cmp.Compare(a.Key.Tenant, b.Key.Tenant), cmp.Compare(a.Key.Name, b.Key.Name),
			a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID),
		)
	})
	if o.Limit > 0 && len(out) > o.Limit {
		out = out[:o.Limit]
	}
	return out, nil
}

// sessions returns the sessions that hold their key.
func (m *Manager) sessions() []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.live))
}

// decode decodes a record of the store.
func decode(row store.Session) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(row.Data, r); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeStoreCorrupt,
			Op:      "read session",
			Message: fmt.Sprintf("invalid record of session %q", row.ID),
			Err:     err,
		}
	}
	r.Policy = orPolicy(r.Policy, defaultPolicy) // a record of another version may lack a field
	return r, nil
}
