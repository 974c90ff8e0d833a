package backendkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

const (
	recordFile = "sandbox.json"
	lockFile   = "attached"
)

// attachWait is how long a lock may still be held by a program that has just died: a process that it was
// starting at that moment has a copy of the descriptor, between its fork and its exec.
const attachWait = 300 * time.Millisecond

var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,63}$`)

// ValidID reports whether id may be the name of one of our directories: it keeps paths out.
func ValidID(id string) bool { return validID().MatchString(id) }

// Store keeps sandboxes of a backend on this machine: a directory for each, with its record and the lock
// of whoever is attached.
type Store struct {
	Dir     string // of all
	Backend string // its name
}

// Path returns the path of a sandbox's directory, or of something in it.
func (s Store) Path(id string, parts ...string) string {
	return filepath.Join(append([]string{s.Dir, id}, parts...)...)
}

// Load decodes the record of a sandbox into r. The error has sandbox.CodeNotFound when there is none.
func (s Store) Load(id string, r any) error {
	err := fs.ErrNotExist
	if ValidID(id) {
		err = atomicfile.ReadJSON(s.Path(id, recordFile), r)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s.NotFound(id)
	}
	return err
}

// NotFound returns the error of a sandbox that does not exist.
func (s Store) NotFound(id string) error {
	return &v1.Error{
		Code: v1.CodeNotFound, Op: "find sandbox", Message: fmt.Sprintf("no sandbox %q of the %s backend", id, s.Backend),
	}
}

// Save writes the record of a sandbox, whose directory must exist.
func (s Store) Save(id string, r any) error { return atomicfile.WriteJSON(s.Path(id, recordFile), r) }

// IDs returns the names of all directories that may be sandboxes.
func (s Store) IDs() []string {
	entries, _ := os.ReadDir(s.Dir) // without the directory there are none
	var ids []string
	for _, e := range entries {
		if ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// List describes the sandboxes that have a record, oldest first. It asks look whether one runs, and as which process.
func (s Store) List(look func(i *sandbox.Info)) ([]sandbox.Info, error) {
	if _, err := os.ReadDir(s.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "list sandboxes", Err: err}
	}
	var all []sandbox.Info
	for _, id := range s.IDs() {
		var r Record
		if s.Load(id, &r) != nil {
			continue // being made, or being removed
		}
		i := r.Info(s.Backend)
		look(&i)
		all = append(all, i)
	}
	slices.SortFunc(all, func(x, y sandbox.Info) int { return x.Created.Compare(y.Created) })
	return all, nil
}

// Attach takes the lock that whoever is attached to a sandbox holds: two readers of one pipe would each
// get half. If another program holds it, the error has sandbox.CodeBusy and says which.
func (s Store) Attach(id string) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attachWait)
	defer cancel()
	path := s.Path(id, lockFile)
	l, err := filelock.Acquire(ctx, path)
	switch {
	case err == nil:
		_ = os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o600) // for people
		return l, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "attach", Message: "the sandbox has gone", Err: err}
	case !errors.Is(err, filelock.ErrHeld):
		return nil, err
	}
	holder := "another process"
	if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 {
		holder = "process " + strings.TrimSpace(string(pid))
	}
	return nil, &v1.Error{
		Code:    v1.CodeBusy,
		Op:      "attach",
		Message: holder + " is attached to the sandbox",
		Remedy:  "end that process, or let it do the work",
		Retry:   true,
	}
}

// Unattached calls f with the lock of a sandbox held, unless somebody is attached to it.
func (s Store) Unattached(id string, f func()) {
	l, err := filelock.Try(s.Path(id, lockFile))
	if err != nil {
		return
	}
	defer l.Release()
	f()
}

// Survey adds to the sandboxes of List which program answers for each.
func (s Store) Survey(all []sandbox.Info) []backend.Surveyed {
	out := make([]backend.Surveyed, 0, len(all))
	for _, i := range all {
		var r Record
		if s.Load(i.ID, &r) != nil {
			continue // it has ended since
		}
		out = append(out, backend.Surveyed{Info: i, Owner: r.Owner.PID, Held: s.held(&r)})
	}
	return out
}

// held reports whether a program answers for a sandbox or is attached to it.
func (s Store) held(r *Record) bool {
	free := false
	s.Unattached(r.ID, func() { free = true })
	return r.Owner.Alive() || !free
}

// EndUnheld implements backend.Surveyor.
func (s Store) EndUnheld(ctx context.Context, id string, stop func(ctx context.Context, id string) error) error {
	var r Record
	if err := s.Load(id, &r); err != nil {
		return err
	}
	err := Held(id, r.Owner.PID)
	s.Unattached(id, func() {
		if gone := s.Load(id, &r); gone != nil {
			err = gone
		} else if !r.Owner.Alive() {
			err = stop(ctx, id)
		}
	})
	return err
}

// Held returns the error of a sandbox that is not ended because a program holds it.
func Held(id string, owner int) error {
	return &v1.Error{
		Code: v1.CodeBusy, Op: "end sandbox", Message: fmt.Sprintf("sandbox %s is in use by process %d or one that is attached to it", id, owner),
		Remedy: "end its session (recluse session end), or that process",
	}
}

// Sweep ends the sandboxes whose program has died without ending them, unless somebody is attached.
func (s Store) Sweep(ctx context.Context, stop func(ctx context.Context, id string) error) error {
	var errs []error
	for _, id := range s.IDs() {
		if s.orphan(id) {
			errs = append(errs, s.endOrphan(ctx, id, stop))
		}
	}
	return errors.Join(errs...)
}

// orphan reports whether no program is left to end a sandbox.
func (s Store) orphan(id string) bool {
	var r Record
	return s.Load(id, &r) == nil && !r.Spec.Persist && !r.Owner.Alive()
}

// endOrphan ends a sandbox that looked like an orphan, unless somebody is attached to it or has made it theirs since.
func (s Store) endOrphan(ctx context.Context, id string, stop func(context.Context, string) error) (err error) {
	s.Unattached(id, func() {
		if s.orphan(id) {
			err = stop(ctx, id)
		}
	})
	return err
}

// Sweeper ends what programs have left that died: once in a program's life, before it makes its first sandbox, and
// again a while after a sweep that was incomplete. The start of a sandbox does not fail for it; Err is for Health.
type Sweeper struct {
	// Sweep ends what is left.
	Sweep func(ctx context.Context) error
	// Limit bounds one sweep.
	Limit time.Duration
	// Again is how long after an incomplete sweep the next one is due; 0: a minute.
	Again time.Duration
	// Go runs a later sweep in the background, or reports that the backend is closed; nil: the caller waits for it.
	Go func(f func(ctx context.Context)) bool

	first sync.Mutex // held during the first

	mu    sync.Mutex
	at    time.Time // guarded by mu; of the last one
	done  bool      // guarded by mu; nothing is left to do
	again bool      // guarded by mu; another one is under way
	err   error     // guarded by mu; what could not be ended
}

// Once sweeps if that is due.
func (s *Sweeper) Once(ctx context.Context) {
	s.first.Lock()
	defer s.first.Unlock()
	s.mu.Lock()
	never, due := s.at.IsZero(), !s.done && !s.again && time.Since(s.at) >= cmp.Or(s.Again, time.Minute)
	s.again = due && !never
	s.mu.Unlock()
	switch {
	case !due:
	case never || s.Go == nil:
		s.sweep(ctx)
	default:
		s.Go(s.sweep)
	}
}

func (s *Sweeper) sweep(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	err := s.Sweep(limited)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again = false
	if ctx.Err() == nil { // a caller that gave up has not tried
		s.at, s.done, s.err = time.Now(), err == nil, err
	}
}

// Err returns what dead programs have left and the last sweep could not end.
func (s *Sweeper) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// EndAll calls end for 0 to n-1, several at once, and joins the errors.
func EndAll(n int, end func(i int) error) error {
	const together = 8
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	errs := make([]error, n)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = end(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
