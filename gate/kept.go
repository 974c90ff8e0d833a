package gate

import (
	"context"
	"time"
)

// keepWait bounds how long keeping a question may take.
const keepWait = 10 * time.Second

// Kept is a question as it is kept.
type Kept struct {
	Approval
	Key  [32]byte `json:"key"`            // what a grant is good for
	Used bool     `json:"used,omitempty"` // it was spent
}

func (q *question) kept() Kept { return Kept{Approval: q.Approval, Key: q.key, Used: q.used} }

// Keep is a place for questions that outlives the program.
type Keep interface {
	// Save keeps a question, new or changed. What it has taken is not lost.
	Save(ctx context.Context, k Kept) error
	// Drop forgets questions.
	Drop(ctx context.Context, ids ...string) error
	// Load gives all that are kept.
	Load(ctx context.Context) ([]Kept, error)
}

// KeepIn takes up the questions that are in a place, and from now on keeps all there: nobody has been asked, has answered or has used a grant before
// the place knows it.
func (a *Approvals) KeepIn(ctx context.Context, k Keep) error {
	old, err := k.Load(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep = k
	for _, q := range a.all { // asked before there was a place
		if err := a.save(q.kept()); err != nil {
			return err
		}
	}
	var over []string
	for _, o := range old {
		if a.all[o.ID] != nil {
			continue
		}
		if o.Expires.Add(a.opts.TTL).Before(a.now()) { // nobody needs to know any more that it has expired
			over = append(over, o.ID)
			continue
		}
		q := &question{Approval: o.Approval, key: o.Key, done: make(chan struct{}), used: o.Used}
		if q.State != Pending {
			close(q.done)
		}
		a.all[q.ID] = q
	}
	a.drop(over)
	return nil
}

// save keeps a question as it is to be. Preconditions: mu is held.
//
// It does not end with the caller: what a person has said counts, also when they hang up.
func (a *Approvals) save(q Kept) error {
	if a.keep == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepWait)
	defer cancel()
	return a.keep.Save(ctx, q)
}

// drop forgets questions in the place, too. Preconditions: mu is held.
func (a *Approvals) drop(ids []string) {
	if a.keep == nil || len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepWait)
	defer cancel()
	_ = a.keep.Drop(ctx, ids...) // it is over by its own date when it is loaded again
}
