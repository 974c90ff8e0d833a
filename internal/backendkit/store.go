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

// attachWait is how long the lock may still be held by a program that has just died: a process that it was starting at
// that moment has a copy of the descriptor between its fork and its exec.
const attachWait = 300 * time.Millisecond

var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,63}$`)

// ValidID reports whether id is valid as a directory name of ours. It rejects paths.
func ValidID(id string) bool { return validID().MatchString(id) }

// Store keeps the sandboxes of a backend on this machine. Each has a directory with its record and the lock of the
// attached program.
type Store struct {
	Dir     string // the directory of all sandboxes
	Backend string // name of the backend
}

// Path returns the path of the directory of a sandbox, or of a file in it.
func (s Store) Path(id string, parts ...string) string {
	return filepath.Join(append([]string{s.Dir, id}, parts...)...)
}

// Load decodes the record of a sandbox into r. The error has v1.CodeNotFound if there is no record.
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

// NotFound returns the error for a sandbox that does not exist.
func (s Store) NotFound(id string) error {
	return &v1.Error{
		Code:    v1.CodeNotFound,
		Op:      "find sandbox",
		Message: fmt.Sprintf("sandbox %q of the %s backend not found", id, s.Backend),
	}
}

// Save writes the record of a sandbox, whose directory must exist.
func (s Store) Save(id string, r any) error { return atomicfile.WriteJSON(s.Path(id, recordFile), r) }

// IDs returns the names of all directories that may be sandboxes.
func (s Store) IDs() []string {
	entries, _ := os.ReadDir(s.Dir) // a missing directory means no sandboxes
	var ids []string
	for _, e := range entries {
		if ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// List returns the sandboxes that have a record, oldest first. It calls look to set whether a sandbox runs, and its
// PID.
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

// Attach takes the lock of an attachment. It exists because two readers of one pipe would each get a part of the data.
// If another program holds it, the error has v1.CodeBusy and names that program.
func (s Store) Attach(id string) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attachWait)
	defer cancel()
	path := s.Path(id, lockFile)
	l, err := filelock.Acquire(ctx, path)
	switch {
	case err == nil:
		_ = os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o600) // for error messages
		return l, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "attach", Message: "the sandbox has ended", Err: err}
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
		Remedy:  "end that process, or use its session",
		Retry:   true,
	}
}

// IfUnattached calls f while it holds the lock of a sandbox, unless a program is attached to the sandbox.
func (s Store) IfUnattached(id string, f func()) {
	l, err := filelock.Try(s.Path(id, lockFile))
	if err != nil {
		return
	}
	defer l.Release()
	f()
}

// Survey returns the sandboxes of List together with the program that owns each.
func (s Store) Survey(all []sandbox.Info) []backend.Surveyed {
	out := make([]backend.Surveyed, 0, len(all))
	for _, i := range all {
		var r Record
		if s.Load(i.ID, &r) != nil {
			continue // the sandbox has ended meanwhile
		}
		out = append(out, backend.Surveyed{Info: i, Owner: r.Owner.PID, Held: s.held(&r)})
	}
	return out
}

// held reports whether a program owns a sandbox or is attached to it.
func (s Store) held(r *Record) bool {
	free := false
	s.IfUnattached(r.ID, func() { free = true })
	return r.Owner.Alive() || !free
}

// EndUnheld implements backend.Surveyor.
func (s Store) EndUnheld(ctx context.Context, id string, stop func(ctx context.Context, id string) error) error {
	var r Record
	if err := s.Load(id, &r); err != nil {
		return err
	}
	err := HeldError(id, r.Owner.PID)
	s.IfUnattached(id, func() {
		if gone := s.Load(id, &r); gone != nil {
			err = gone
		} else if !r.Owner.Alive() {
			err = stop(ctx, id)
		}
	})
	return err
}

// HeldError returns the error for a sandbox that cannot be ended because a program uses it. owner is the PID of its
// owner.
func HeldError(id string, owner int) error {
	return &v1.Error{
		Code:    v1.CodeBusy,
		Op:      "end sandbox",
		Message: fmt.Sprintf("sandbox %s is in use by process %d, or by a process attached to it", id, owner),
		Remedy:  "end its session (recluse session end), or end that process",
	}
}

// Sweep ends the sandboxes whose owner has died, unless a program is attached.
func (s Store) Sweep(ctx context.Context, stop func(ctx context.Context, id string) error) error {
	var errs []error
	for _, id := range s.IDs() {
		if s.orphan(id) {
			errs = append(errs, s.endOrphan(ctx, id, stop))
		}
	}
	return errors.Join(errs...)
}

// orphan reports whether the owner of a sandbox has died and the sandbox is not persistent.
func (s Store) orphan(id string) bool {
	var r Record
	return s.Load(id, &r) == nil && !r.Spec.Persist && !r.Owner.Alive()
}

// endOrphan ends an orphaned sandbox, unless a program is attached to it or has taken it over meanwhile.
func (s Store) endOrphan(ctx context.Context, id string, stop func(context.Context, string) error) (err error) {
	s.IfUnattached(id, func() {
		if s.orphan(id) {
			err = stop(ctx, id)
		}
	})
	return err
}

// Sweeper ends the sandboxes of dead programs: once in the life of a program, before it makes its first sandbox, and
// again some time after an incomplete sweep. A failed sweep does not fail the start of a sandbox; Health reports Err.
type Sweeper struct {
	// Sweep ends the sandboxes of dead programs.
	Sweep func(ctx context.Context) error
	// Limit is the timeout of one sweep.
	Limit time.Duration
	// RetryAfter is the time between an incomplete sweep and the next one. 0: a minute.
	RetryAfter time.Duration
	// Go runs a later sweep in the background, or returns false if the backend is closed. Nil: the caller waits for the
	// sweep.
	Go func(f func(ctx context.Context)) bool

	first sync.Mutex // held during the first sweep

	mu       sync.Mutex
	at       time.Time // guarded by mu; end of the last sweep
	done     bool      // guarded by mu; the last sweep was complete
	retrying bool      // guarded by mu; another sweep runs
	err      error     // guarded by mu; error of the last sweep
}

// Once sweeps if a sweep is due.
func (s *Sweeper) Once(ctx context.Context) {
	s.first.Lock()
	defer s.first.Unlock()
	s.mu.Lock()
	never, due := s.at.IsZero(), !s.done && !s.retrying && time.Since(s.at) >= cmp.Or(s.RetryAfter, time.Minute)
	s.retrying = due && !never
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
	s.retrying = false
	if ctx.Err() == nil { // a cancelled sweep does not count
		s.at, s.done, s.err = time.Now(), err == nil, err
	}
}

// Err returns the error of the last sweep: what dead programs have left and could not be ended.
func (s *Sweeper) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// EndAll calls end for 0 to n-1, several at the same time, and joins the errors.
func EndAll(n int, end func(i int) error) error {
	const parallel = 8
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
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
