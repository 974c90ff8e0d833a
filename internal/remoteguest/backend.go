package remoteguest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/spend"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Options configure a backend.
type Options struct {
	// Dir holds the records of sandboxes. Empty: our directory below the XDG data directory.
	Dir string
	// Instance separates the sandboxes of several servers with one account. Empty: this user on this machine.
	Instance string
	// Timeout is the service-side timeout of a sandbox, which is extended while this program is attached. 0:
	// DefaultTimeout.
	Timeout time.Duration
	// Patience is how long a sandbox may be unreachable before its calls fail. 0: two minutes.
	Patience time.Duration
	// Price is the estimated price of a sandbox in dollars per hour, unless the service is a Pricer. Limits bound the
	// cost.
	Price  float64
	Limits spend.Limits
	// SnapshotPrice is the estimated price of a snapshot at the service, in dollars per hour.
	SnapshotPrice float64
	// Guest is the guest's program. Empty: the bundled one for the processor of the service.
	Guest bundle.Program
}

// DefaultTimeout is how long a sandbox lives after the program that uses it has died.
const DefaultTimeout = 10 * time.Minute

const (
	sweepLimit = 30 * time.Second
	cleanLimit = 30 * time.Second
	// doubtTries and doubtPause say how often and when a sandbox is searched that a failed create may have made.
	doubtTries = 5
	doubtPause = 300 * time.Millisecond
)

// Backend makes sandboxes at a service. Its methods may be called from several goroutines.
type Backend struct {
	p       Provider
	opts    Options
	store   backendkit.Store
	own     backendkit.Instance
	ledger  *spend.Ledger
	sweeper backendkit.Sweeper

	ctx    context.Context // of everything that outlives a call
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu       sync.Mutex
	machines map[string]*machine // guarded by mu; by ID
	number   uint64              // guarded by mu; of the last connection
	closed   bool                // guarded by mu
}

var (
	_ sandbox.Backend     = (*Backend)(nil)
	_ backend.QuickProber = (*Backend)(nil)
)

// New returns the backend over a service.
func New(p Provider, opts Options) (*Backend, error) {
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	var err error
	if opts.Dir, err = opts.dir(p.Name()); err != nil {
		return nil, err
	}
	b := &Backend{p: p, opts: opts, machines: map[string]*machine{}}
	b.store = backendkit.Store{Dir: filepath.Join(opts.Dir, "sandboxes"), Backend: p.Name()}
	if b.own, err = backendkit.OpenInstance(opts.Dir, opts.Instance); err != nil {
		return nil, failed("name this instance", "cannot use the directory "+opts.Dir, err)
	}
	b.ledger = &spend.Ledger{
		Path: filepath.Join(opts.Dir, "spend.json"), Backend: p.Name(), Limits: opts.Limits,
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.sweeper = backendkit.Sweeper{Sweep: b.sweep, Limit: sweepLimit, Go: b.background}
	return b, nil
}

func (b *Backend) background(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.tasks.Go(func() { f(b.ctx) })
	}
	return !b.closed
}

// Close detaches from all sandboxes. They run until their timeout, unless a later program attaches.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	var open []*machine
	for _, m := range b.machines {
		open = append(open, m)
	}
	b.mu.Unlock()
	for _, m := range open {
		_ = m.stream.Close() // never fails
	}
	b.cancel()
	b.tasks.Wait()
	return nil
}

// Used reports whether a backend with this name and these options has records of sandboxes or snapshots.
func Used(name string, opts Options) bool {
	top, err := opts.dir(name)
	if err != nil {
		return false
	}
	for _, dir := range []string{"sandboxes", "snapshots"} {
		if entries, _ := os.ReadDir(filepath.Join(top, dir)); len(entries) > 0 {
			return true
		}
	}
	return false
}

// dir returns the directory of the records.
func (o Options) dir(name string) (string, error) {
	if o.Dir != "" {
		return o.Dir, nil
	}
	data, err := xdg.Data()
	return filepath.Join(data, name), err
}

// Dir returns the directory of the records.
func (b *Backend) Dir() string { return b.opts.Dir }

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return b.p.Name() }

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(context.Context) sandbox.Capabilities { return b.p.Capabilities() }

// Health implements sandbox.Backend. It makes no sandbox, because that costs money.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := sandbox.Health{OK: true}
	if _, err := b.guest(ctx); err != nil {
		h = unhealthy(err)
	} else if err := b.p.Probe(ctx); err != nil {
		h = unhealthy(err)
	}
	h.Took = time.Since(began)
	if h.OK {
		h.Reason = fmt.Sprintf("the service answers in %s", h.Took.Round(time.Millisecond))
		if s, err := b.ledger.Summary(); err == nil {
			h.Reason += "; " + s.String()
		}
		if err := b.sweeper.Err(); err != nil {
			h.Reason += "; left behind: " + err.Error()
		}
	}
	return h
}

// QuickHealth implements backend.QuickProber: the sandbox of the caller shows whether the service works.
func (b *Backend) QuickHealth(ctx context.Context) sandbox.Health {
	if _, err := b.guest(ctx); err != nil {
		return unhealthy(err)
	}
	return sandbox.Health{OK: true}
}

func unhealthy(err error) sandbox.Health {
	h := sandbox.Health{Reason: err.Error()}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		h.Remedy = e.Remedy
	}
	return h
}

func (b *Backend) guest(ctx context.Context) (bundle.Program, error) {
	if b.opts.Guest.Path != "" {
		return b.opts.Guest, nil
	}
	return bundle.GuestFor(ctx, b.p.Arch())
}

// state is the record of a sandbox.
type state struct {
	backendkit.Record
	Ref      Ref    `json:"ref"`            // empty while the sandbox is created
	Number   uint64 `json:"number"`         // of the last connection
	From     string `json:"from,omitempty"` // snapshot at the service
	Instance string `json:"instance"`
}

func failed(op, what string, err error) error {
	if e, ok := errors.AsType[*v1.Error](err); ok { // it has a better code
		return &v1.Error{Code: e.Code, Op: op, Message: what + ": " + e.Message, Remedy: e.Remedy, Retry: e.Retry, Err: e.Err}
	}
	return &v1.Error{Code: v1.CodeStartFailed, Op: op, Message: what, Retry: true, Err: err}
}

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if err := b.p.Check(spec); err != nil {
		return nil, err
	}
	guest, err := b.guest(ctx)
	if err != nil {
		return nil, err
	}
	return b.start(ctx, state{Record: backendkit.NewRecord("c-", spec, guest.Hash)}, guest)
}

// start makes the sandbox of a record. One with From has the guest in its memory.
func (b *Backend) start(ctx context.Context, st state, guest bundle.Program) (_ sandbox.Machine, err error) {
	const op = "start sandbox"
	b.sweeper.Once(ctx)
	if err := b.own.MarkUsed(); err != nil {
		return nil, failed(op, "cannot write to "+b.opts.Dir, err)
	}
	st.Instance = b.own.Name
	if err := os.MkdirAll(b.store.Path(st.ID), 0o700); err != nil {
		return nil, failed(op, "cannot make the directory of the sandbox", err)
	}
	cu := cleanup.Make(func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		err = errors.Join(err, b.Stop(clean, st.ID))
	})
	defer cu.Clean()
	lock, err := b.store.Attach(st.ID)
	if err != nil {
		return nil, err
	}
	cu.Add(lock.Release)
	if err := b.store.Save(st.ID, st); err != nil { // before the sandbox: a sweep must find it after a kill
		return nil, failed(op, "cannot write the record of the sandbox", err)
	}
	if err := b.ledger.Reserve(st.ID, b.opts.Timeout, b.perHour(st.Spec)); err != nil {
		_ = os.RemoveAll(b.store.Path(st.ID)) // there is nothing to end
		return nil, err
	}
	st.Ref, err = b.p.Create(ctx, Create{
		Spec: st.Spec, Labels: b.labels(st.ID), Timeout: b.opts.Timeout, From: st.From,
	})
	if err != nil {
		if _, unsure := errors.AsType[*UnsureError](err); unsure {
			b.background(b.sweepLater)
		} else {
			_ = os.RemoveAll(b.store.Path(st.ID)) // there is nothing to end
			err = errors.Join(err, b.ledger.Cancel(st.ID))
		}
		return nil, failed(op, "the service did not make a sandbox", err)
	}
	if err := b.store.Save(st.ID, st); err != nil {
		return nil, failed(op, "cannot write the record of the sandbox", err)
	}
	var first carrier.Pipe
	if st.From == "" {
		if first, err = b.launch(ctx, st, guest); err != nil {
			return nil, failed(op, "the guest could not be started", err)
		}
	}
	m, err := b.connect(&st, lock, first)
	if err != nil {
		return nil, failed(op, "the guest cannot be reached", err)
	}
	cu.Release()
	return m, nil
}

// perHour returns the estimated price of a sandbox in dollars per hour.
func (b *Backend) perHour(spec sandbox.Spec) float64 {
	if p, ok := b.p.(Pricer); ok {
		return p.PerHour(spec)
	}
	return b.opts.Price
}

func (b *Backend) labels(id string) map[string]string {
	return map[string]string{LabelInstance: b.own.Name, LabelSandbox: id}
}

// Attach implements sandbox.Backend.
func (b *Backend) Attach(_ context.Context, id string) (sandbox.Machine, error) {
	var st state
	if err := b.store.Load(id, &st); err != nil {
		return nil, err
	}
	if st.Ref.ID == "" {
		return nil, b.store.NotFound(id) // its creation was interrupted
	}
	lock, err := b.store.Attach(id)
	if err != nil {
		return nil, err
	}
	cu := cleanup.Make(lock.Release)
	defer cu.Clean()
	st.Owner = backendkit.Self()
	m, err := b.connect(&st, lock, nil)
	if err != nil {
		return nil, failed("attach", "the guest of "+id+" cannot be reached", err)
	}
	cu.Release()
	return m, nil
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	const op = "stop sandbox"
	if !backendkit.ValidID(id) {
		return nil
	}
	b.mu.Lock()
	m := b.machines[id]
	b.mu.Unlock()
	if m != nil {
		m.Stopping()
	}
	var st state
	switch err := b.store.Load(id, &st); {
	case v1.CodeOf(err) == v1.CodeNotFound:
		return os.RemoveAll(b.store.Path(id))
	case err != nil:
		return failed(op, "cannot read the record of the sandbox", err)
	}
	if err := b.kill(ctx, &st); err != nil {
		return failed(op, "the service did not end the sandbox", err)
	}
	if m != nil {
		m.end(nil)
	}
	return errors.Join(b.ledger.Release(id), os.RemoveAll(b.store.Path(id)))
}

// kill ends the sandbox of a record. If the answer to its creation was lost, it is searched by its label: the service
// may list it only after a while.
func (b *Backend) kill(ctx context.Context, st *state) error {
	if st.Ref.ID != "" {
		return b.p.Kill(ctx, st.Ref)
	}
	for try := range doubtTries {
		found, err := b.p.Find(ctx, map[string]string{LabelInstance: st.Instance, LabelSandbox: st.ID})
		if err != nil {
			return err
		}
		for _, r := range found {
			if err := b.p.Kill(ctx, r.Ref); err != nil {
				return err
			}
		}
		if len(found) > 0 || try == doubtTries-1 {
			return nil
		}
		select {
		case <-time.After(doubtPause << try):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// List implements sandbox.Backend.
func (b *Backend) List(ctx context.Context) ([]sandbox.Info, error) {
	if len(b.store.IDs()) == 0 {
		return nil, nil
	}
	found, err := b.p.Find(ctx, map[string]string{LabelInstance: b.own.Name})
	if err != nil {
		return nil, failed("list sandboxes", "the service does not list its sandboxes", err)
	}
	running := map[string]bool{}
	for _, r := range found {
		running[r.Labels[LabelSandbox]] = true
	}
	return b.store.List(func(i *sandbox.Info) { i.Running = running[i.ID] })
}

// Survey implements backend.Surveyor.
func (b *Backend) Survey(ctx context.Context) ([]backend.Surveyed, error) {
	all, err := b.List(ctx)
	return b.store.Survey(all), err
}

// EndUnheld implements backend.Surveyor.
func (b *Backend) EndUnheld(ctx context.Context, id string) error {
	return b.store.EndUnheld(ctx, id, b.Stop)
}

// sweep ends the sandboxes of dead programs, and those of this instance that have no record: they were created although
// the call failed, or their records were deleted.
func (b *Backend) sweep(ctx context.Context) error {
	err := b.store.Sweep(ctx, b.Stop)
	if b.own.Unused() {
		return err
	}
	found, ferr := b.p.Find(ctx, map[string]string{LabelInstance: b.own.Name})
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	known := b.store.IDs() // after Find: a new sandbox has its record before it is listed
	found = slices.DeleteFunc(found, func(r Remote) bool {
		return r.Labels[LabelInstance] != b.own.Name || slices.Contains(known, r.Labels[LabelSandbox])
	})
	err = errors.Join(err, backendkit.EndAll(len(found), func(i int) error { return b.p.Kill(ctx, found[i].Ref) }))
	_, serr := b.sweepSnapshots(ctx)
	return errors.Join(err, serr)
}

// sweepLater ends a sandbox that the service makes long after the call for it has failed.
func (b *Backend) sweepLater(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(sweepLimit):
	}
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	_ = b.sweep(ctx) // the next program sweeps again
}

// lockOf releases the lock of an attachment once.
type lockOf struct {
	once sync.Once
	lock *filelock.Lock
}

func (l *lockOf) release() { l.once.Do(l.lock.Release) }
