package session

import (
	"cmp"
	"context"
	"slices"

	"github.com/recluse-dev/recluse/internal/store"
)

type requestKey struct{}

// WithRequest marks a context with the id of a request that may be repeated, for Open, Save and Fork. What they make bears it, and the same
// request finds that again, as if it was made now: the session, the snapshot, all copies. What another request has made it does not find.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// request gives the id of the request, or "".
func request(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// madeBy says whether a live session was made by the request.
func (s *Session) madeBy(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Request != "" && s.rec.Request == request(ctx) && s.rec.State.Live()
}

// forksBy gives the copies that the request has made and that still live, in their order.
func (m *Manager) forksBy(ctx context.Context) ([]*Session, error) {
	found := slices.DeleteFunc(m.sessions(), func(s *Session) bool { return !s.madeBy(ctx) })
	slices.SortFunc(found, func(a, b *Session) int { return cmp.Compare(a.number(), b.number()) })
	for _, s := range found {
		if err := s.made(ctx); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// number gives which of a fork's copies it is.
func (s *Session) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Copy
}

// savedBy gives the snapshot of a name, if the request has taken it.
func (s *Session) savedBy(ctx context.Context, name string) (snap Snapshot, found bool, err error) {
	if request(ctx) == "" {
		return Snapshot{}, false, nil
	}
	rows, err := s.m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name, Name: name})
	if err != nil || len(rows) == 0 {
		return Snapshot{}, false, err
	}
	v, err := savedOf(rows[0])
	if err != nil || v.Request != request(ctx) {
		return Snapshot{}, false, err
	}
	snap, err = describe(rows[0])
	return snap, true, err
}
