package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// MaxForks is the maximum number of copies that one Fork makes.
const MaxForks = 64

// Fork creates n sessions that are live copies of the session, including its variables. They are named by names, or
// NAME-1, NAME-2, … if names is empty. Either all copies are created, or none.
func (s *Session) Fork(ctx context.Context, n int, names []string) ([]*Session, error) {
	forks, err := s.fork(ctx, n, names)
	s.audit(ctx, Entry{Action: "fork", Detail: fmt.Sprint(n), Error: errorCode(err)})
	return forks, err
}

func (s *Session) fork(ctx context.Context, n int, names []string) ([]*Session, error) {
	if n == 0 {
		n = len(names)
	}
	if n < 1 || n > MaxForks || len(names) > 0 && len(names) != n {
		return nil, invalid("fork session",
			"%d copies with %d names: request 1 to %d copies, with a name for each or none", n, len(names), MaxForks)
	}
	for _, name := range names {
		if err := checkName("session", name); err != nil {
			return nil, err
		}
	}
	if forks, err := s.m.forksBy(ctx); len(forks) > 0 || err != nil {
		return forks, err
	}
	if err := s.awaitCreated(ctx); err != nil {
		return nil, err
	}
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	if !canHibernate(ctx, b) {
		return nil, backend.NotSupported(b.Name(), "fork: its snapshots contain no memory",
			"to copy only the files, save a snapshot and open another session from it")
	}
	if err := s.beginUse(true, false); err != nil {
		return nil, err
	}
	defer s.endUse(true, 0)
	vars, err := s.m.store.Vars(ctx, s.id)
	if err != nil {
		return nil, err
	}
	forks, err := s.reserveKeys(ctx, n, names)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // the copies hold their keys, and calls may wait for them
	image, release, err := s.takeImage(ctx, kindFork)
	if err != nil {
		abandon(ctx, forks, err)
		return nil, err
	}
	s.mu.Lock()
	network := s.rec.Spec.Network // it may have changed since the copies were planned
	s.mu.Unlock()
	for _, f := range forks {
		f.mu.Lock()
		f.rec.Spec.Network = network
		f.mu.Unlock()
	}
	failpoint("fork.written")
	err = createForks(ctx, forks, image, vars)
	release()
	if err != nil {
		abandon(ctx, forks, err)
		return nil, err
	}
	return forks, nil
}

// createForks creates all copies, or none. No copy can be used, or is ready in the store, before all are created.
//
// Preconditions: the turns are held; on success they are released here.
func createForks(ctx context.Context, forks []*Session, image *sandbox.Snapshot, vars map[string]string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(forks))
	for i, f := range forks {
		wg.Go(func() { errs[i] = f.createFork(ctx, image, vars) })
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	failpoint("fork.made")
	if err := forks[0].m.publish(ctx, forks...); err != nil {
		return err
	}
	for _, f := range forks {
		close(f.created)
		f.releaseTurn()
	}
	return nil
}

// createFork creates the sandbox of one copy.
//
// Preconditions: the turn is held.
func (s *Session) createFork(ctx context.Context, image *sandbox.Snapshot, vars map[string]string) error {
	ctx, cancel := s.withMakeWait(ctx)
	defer cancel()
	if err := s.notePrevious(ctx); err != nil {
		return err
	}
	return s.createFromImage(ctx, image, true, vars)
}

// abandon undoes the creation of copies.
//
// Preconditions: the turns are held; they are released here.
func abandon(ctx context.Context, forks []*Session, err error) {
	var wg sync.WaitGroup
	for _, f := range forks {
		wg.Go(func() {
			f.abortCreation(ctx, err)
			f.releaseTurn()
		})
	}
	wg.Wait()
}

// reserveKeys takes the keys of all n copies, or none.
func (s *Session) reserveKeys(ctx context.Context, n int, names []string) ([]*Session, error) {
	s.mu.Lock()
	proto := s.rec
	s.mu.Unlock()
	quotaOwner := ownerOf(ctx, s.key.Tenant)
	bounds, err := s.m.bounds(ctx, quotaOwner)
	if err != nil {
		return nil, err
	}
	if proto.Policy.Expires, err = bounds.atMost(proto.Policy.Expires); err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.m.closing {
		return nil, errClosing
	}
	var keys []Key
	taken := map[Key]bool{}
	for i := 1; len(keys) < n; i++ {
		key := Key{Tenant: s.key.Tenant}
		if len(names) > 0 {
			key.Name = names[len(keys)]
		} else {
			key.Name = fmt.Sprintf("%s-%d", s.key.Name, i)
		}
		if err := checkName("session", key.Name); err != nil {
			return nil, err
		}
		if s.m.live[key] != nil || taken[key] {
			if len(names) == 0 {
				continue
			}
			return nil, &v1.Error{
				Code:    v1.CodeSessionExists,
				Op:      "fork session",
				Message: fmt.Sprintf("session %q already exists", key.Name),
				Remedy:  "choose another name",
			}
		}
		taken[key] = true
		keys = append(keys, key)
	}
	now := time.Now().UTC()
	recs := make([]*record, n)
	for i, key := range keys {
		recs[i] = &record{
			ID:            newID(),
			Key:           key,
			State:         v1.StateCreating,
			Reason:        "being forked from " + s.key.Name,
			Spec:          proto.Spec,
			SpecHash:      proto.SpecHash,
			Policy:        proto.Policy,
			Gate:          proto.Gate,
			Role:          proto.Role,
			APIKey:        quotaOwner.Key,
			Remote:        quotaOwner.Remote,
			Labels:        proto.Labels,
			Created:       now,
			Used:          now,
			IdleRequested: proto.IdleRequested,
			IdleFallback:  proto.IdleFallback,
			Expires:       expiryOf(now, proto.Policy.Expires),
			Base:          proto.Base,
			BaseName:      proto.BaseName,
			Copy:          i + 1,
			Request:       requestID(ctx),
		}
	}
	if err := s.m.ledger.reserve(bounds, recs...); err != nil {
		return nil, err
	}
	forks := make([]*Session, n)
	for i, key := range keys {
		forks[i] = s.m.newSession(*recs[i])
		forks[i].turn <- struct{}{} // createForks or abandon releases it
		s.m.live[key] = forks[i]
	}
	return forks, nil
}
