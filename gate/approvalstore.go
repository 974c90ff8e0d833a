package gate

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// storeTimeout limits one operation of the store.
const storeTimeout = 10 * time.Second

// StoredApproval is a question as it is stored.
type StoredApproval struct {
	Approval
	Key  [32]byte `json:"key"`            // what a grant is good for
	Used bool     `json:"used,omitempty"` // the grant was spent
}

// ApprovalStore keeps questions longer than the program runs.
type ApprovalStore interface {
	// Save stores a question, new or changed, durably.
	Save(ctx context.Context, q StoredApproval) error
	// Drop removes questions.
	Drop(ctx context.Context, ids ...string) error
	// Load returns all stored questions.
	Load(ctx context.Context) ([]StoredApproval, error)
}

// UseStore loads the questions of a store, and from now on stores every change before it takes effect.
func (a *Approvals) UseStore(ctx context.Context, store ApprovalStore) error {
	stored, err := store.Load(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store = store
	for _, q := range a.all { // asked before there was a store
		if err := a.save(q.StoredApproval); err != nil {
			return err
		}
	}
	var expired []string
	for _, s := range stored {
		if a.all[s.ID] != nil {
			continue
		}
		if s.Expires.Add(a.ttl).Before(a.now()) {
			expired = append(expired, s.ID)
			continue
		}
		q := &question{StoredApproval: s, done: make(chan struct{})}
		if q.State != v1.ApprovalPending {
			close(q.done)
		}
		a.all[q.ID] = q
	}
	a.remove(expired)
	return nil
}

// save stores a question. It does not end with the caller: what a person decides counts even if they hang up.
// Preconditions: mu is held.
func (a *Approvals) save(q StoredApproval) error {
	if a.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	return a.store.Save(ctx, q)
}

// remove removes questions from the store. Preconditions: mu is held.
func (a *Approvals) remove(ids []string) {
	if a.store == nil || len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	_ = a.store.Drop(ctx, ids...) // those that stay have expired, and are removed when they are loaded again
}
