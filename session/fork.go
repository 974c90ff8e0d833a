package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// MaxForks is how many copies can be asked for at once.
const MaxForks = 64

// Fork makes n new sessions, live copies with variables included, named by names or NAME-1, NAME-2, …. All are made, or none.
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
		return nil, invalid("fork session", "%d copies with %d names; 1 to %d copies can be made, each with a name or none", n, len(names), MaxForks)
	}
	for _, name := range names {
		if err := checkName("session", name); err != nil {
			return nil, err
		}
	}
	if err := s.made(ctx); err != nil {
		return nil, err
	}
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	if b.Capabilities(ctx).Snapshots != sandbox.SnapshotsMemory {
		return nil, sandbox.NotSupported(b.Name(), "fork: its snapshots hold no memory, so a copy would not be alive", "for its files alone, save a snapshot and open another session from it")
	}
	if err := s.count(true, false); err != nil {
		return nil, err
	}
	defer s.uncount(true, 0)
	vars, err := s.m.store.Vars(ctx, s.id)
	if err != nil {
		return nil, err
	}
	forks, err := s.reserve(n, names)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // the copies have begun, and others may wait for them already
	image, release, err := s.image(ctx, kindFork)
	if err != nil {
		for _, f := range forks {
			f.abortMaking(ctx, err)
			f.give()
		}
		return nil, err
	}
	failpoint("fork.written")
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i, f := range forks {
		wg.Go(func() { errs[i] = f.makeFork(ctx, image, vars) })
	}
	wg.Wait()
	release()
	if err := errors.Join(errs...); err != nil {
		for i, f := range forks {
			if errs[i] == nil {
				_ = f.End(ctx, "another copy could not be made") // told there
			}
		}
		return nil, errs[firstError(errs)]
	}
	return forks, nil
}

func firstError(errs []error) int {
	for i, err := range errs {
		if err != nil {
			return i
		}
	}
	return 0
}

// makeFork makes one copy.
//
// Preconditions: the turn is taken; it is given here.
func (s *Session) makeFork(ctx context.Context, image *sandbox.Snapshot, vars map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, makeWait)
	defer cancel()
	stop := context.AfterFunc(s.m.ctx, cancel)
	defer stop()
	defer s.give()
	s.finishMaking(ctx, s.makeCopy(ctx, image, vars))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.makeErr
}

// reserve takes the keys of n copies, all or none.
func (s *Session) reserve(n int, names []string) ([]*Session, error) {
	s.mu.Lock()
	proto := s.rec
	s.mu.Unlock()
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
			return nil, &sandbox.Error{Code: CodeExists, Op: "fork session", Message: fmt.Sprintf("there is a session %q already", key.Name), Remedy: "choose another name"}
		}
		taken[key] = true
		keys = append(keys, key)
	}
	now := time.Now().UTC()
	forks := make([]*Session, n)
	for i, key := range keys {
		forks[i] = s.m.newSession(record{
			ID: newID(), Key: key, State: Creating, Reason: "being copied from " + s.key.Name, Spec: proto.Spec, SpecHash: proto.SpecHash, Policy: proto.Policy,
			Gate: proto.Gate, Role: proto.Role, Created: now, Used: now, Base: proto.Base, BaseName: proto.BaseName,
		})
		forks[i].turn <- struct{}{} // makeFork gives it
		s.m.live[key] = forks[i]
	}
	return forks, nil
}
