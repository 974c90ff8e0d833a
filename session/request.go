package session

import (
	"cmp"
	"context"
	"slices"

	"github.com/recluse-dev/recluse/internal/store"
)

type requestKey struct{}

// WithRequest returns a ctx that carries the id of a request to Open, Save or Fork that a client may repeat. A repeated
// request returns the session, the snapshot or the copies that the first request created, as if they were created now.
// It does not return what another request created.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// requestID returns the id of the request of ctx, or "".
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// createdBy reports whether the session is live and was created by the request of ctx.
func (s *Session) createdBy(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Request != "" && s.rec.Request == requestID(ctx) && s.rec.State.Live()
}

// forksBy returns the live copies that the request of ctx created, in the order of their numbers.
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

// copyNumber returns the number of the session among the copies of a fork, from 1, or 0 if it is not a copy.
func (s *Session) copyNumber() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Copy
}

// snapshotBy returns the snapshot with this name if the request of ctx took it.
func (s *Session) snapshotBy(ctx context.Context, name string) (snap Snapshot, found bool, err error) {
	if requestID(ctx) == "" {
		return Snapshot{}, false, nil
	}
	q := store.SnapshotQuery{Tenant: s.key.Tenant, Session: s.key.Name, Name: name}
	rows, err := s.m.store.FindSnapshots(ctx, q)
	if err != nil || len(rows) == 0 {
		return Snapshot{}, false, err
	}
	v, err := decodeSnapshot(rows[0])
	if err != nil || v.Request != requestID(ctx) {
		return Snapshot{}, false, err
	}
	snap, err = describe(rows[0])
	return snap, true, err
}
