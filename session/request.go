package session

import (
	"cmp"
	"context"
	"slices"

	"github.com/recluse-dev/recluse/internal/store"
)

type requestKey struct{}

// WithRequest returns a context with the id of a request that may be repeated, for Open, Save and Fork. A repeated
// request finds what the first one created, as if it were created now: the session, the snapshot, all copies. It does
// not find what another request created.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// request returns the id of the request, or "".
func request(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// createdBy reports whether the request created this session, and it is live.
func (s *Session) createdBy(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Request != "" && s.rec.Request == request(ctx) && s.rec.State.Live()
}

// forksBy returns the live copies that the request created, in order.
func (m *Manager) forksBy(ctx context.Context) ([]*Session, error) {
	found := slices.DeleteFunc(m.sessions(), func(s *Session) bool { return !s.createdBy(ctx) })
	slices.SortFunc(found, func(a, b *Session) int { return cmp.Compare(a.copyNumber(), b.copyNumber()) })
	for _, s := range found {
		if err := s.awaitCreated(ctx); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// copyNumber returns which of a fork's copies it is.
func (s *Session) copyNumber() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Copy
}

// snapshotBy returns the snapshot of a name if the request took it.
func (s *Session) snapshotBy(ctx context.Context, name string) (snap Snapshot, found bool, err error) {
	if request(ctx) == "" {
		return Snapshot{}, false, nil
	}
	rows, err := s.m.store.FindSnapshots(ctx, store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name, Name: name})
	if err != nil || len(rows) == 0 {
		return Snapshot{}, false, err
	}
	v, err := decodeSnapshot(rows[0])
	if err != nil || v.Request != request(ctx) {
		return Snapshot{}, false, err
	}
	snap, err = describe(rows[0])
	return snap, true, err
}
