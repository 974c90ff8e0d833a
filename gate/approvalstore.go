package gate

import (
	"cmp"
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// storeTimeout limits one operation of the store.
const storeTimeout = 10 * time.Second

// StoredApproval is the stored form of a question.
type StoredApproval struct {
	Approval
	Key  [32]byte `json:"key"`            // hash of the session and of the code or destination that a grant allows
	Used bool     `json:"used,omitempty"` // the grant was used
}

// ApprovalStore keeps questions across restarts of the program.
type ApprovalStore interface {
	// Save stores a new or changed question durably.
	Save(ctx context.Context, q StoredApproval) error
	// Drop deletes questions.
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
		s.Kind = cmp.Or(s.Kind, v1.ApprovalCode) // approvals of earlier versions have no kind
		q := &question{StoredApproval: s, done: make(chan struct{})}
		if q.State != v1.ApprovalPending {
			close(q.done)
		}
		a.all[q.ID] = q
	}
	a.remove(expired)
	return nil
}

// save stores a question. It ignores the caller's ctx: a person's decision counts even if they disconnect.
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
	_ = a.store.Drop(ctx, ids...) // after an error they stay in the store, and UseStore drops them as expired
}
