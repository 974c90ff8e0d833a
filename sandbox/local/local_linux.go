package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// sweepLimit is how long the removal of sandboxes of dead programs may take.
const sweepLimit = 30 * time.Second

// Backend runs sandboxes as plain processes of this machine.
type Backend struct {
	backend.VolumeKeeper
	volumes *volumes.Keeper

	opts    Options
	noDir   error // why there is no directory for sandboxes, or nil
	store   backendkit.Store
	sweeper backendkit.Sweeper

	mu     sync.Mutex
	guests map[string]*guest // guarded by mu; guests that this program has started or attached to
}

func newBackend(opts Options) *Backend {
	b := &Backend{opts: opts, guests: map[string]*guest{}}
	if b.opts.Dir == "" {
		b.opts.Dir, b.noDir = xdg.Data()
	}
	b.store = backendkit.Store{Dir: filepath.Join(b.opts.Dir, Name), Backend: Name}
	b.volumes = &volumes.Keeper{
		Store:       volumes.In(b.opts.Dir, Name),
		Limits:      func() error { return errors.New("the local backend has no limits") },
		Unlimited:   opts.UnlimitedDisk,
		Unlimitable: volumes.KindDirectory,
		Lives:       volumes.HasGuest,
	}
	b.VolumeKeeper = b.volumes
	b.sweeper = backendkit.Sweeper{
		Sweep: func(ctx context.Context) error { return b.store.Sweep(ctx, b.Stop) }, Limit: sweepLimit,
	}
	return b
}

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return Name }

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(context.Context) sandbox.Capabilities {
	_, noPython := exec.LookPath("python3")
	_, noBash := exec.LookPath("bash")
	return sandbox.Capabilities{
		Isolation: sandbox.IsolationNone,
		Snapshots: sandbox.SnapshotsNone,
		Egress:    sandbox.EgressUnfiltered,
		Python:    noPython == nil,
		Bash:      noBash == nil,
		Files:     true,
		PTY:       true,
		ColdStart: 20 * time.Millisecond,
		Notes: []string{
			"code runs as a plain process of this machine, with this user's rights, files and network",
			"limits cannot be enforced: explicit limits are refused, and the defaults are not enforced",
		},
	}
}

// Health implements sandbox.Backend.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := b.health(ctx)
	h.Took = time.Since(began)
	return h
}

func (b *Backend) health(ctx context.Context) sandbox.Health {
	path, _, err := b.guestBinary(ctx)
	if err = errors.Join(b.noDir, err); err != nil {
		return sandbox.Health{Reason: err.Error()}
	}
	if err := checkBinary(ctx, path); err != nil {
		return sandbox.Health{
			Reason: fmt.Sprintf("the guest %s does not run: %v", path, err),
			Remedy: "rebuild it with make build",
		}
	}
	if err := os.MkdirAll(b.store.Dir, 0o700); err != nil {
		return sandbox.Health{
			Reason: "cannot make the directory of sandboxes: " + err.Error(),
			Remedy: "set XDG_DATA_HOME to a writable directory",
		}
	}
	return sandbox.Health{OK: true, Reason: "no isolation: code runs with this user's rights"}
}

// consent refuses sandboxes in production, because they have no isolation. It also protects programs that do not call
// backend.Select.
func consent(op string) error {
	return backendkit.RefuseInProduction(op, "running without isolation", "use another backend, such as gvisor")
}

func failed(op, what string, err error) error {
	return &v1.Error{Code: v1.CodeStartFailed, Op: op, Message: what, Err: err}
}

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (_ sandbox.Machine, err error) {
	const op = "start sandbox"
	if err := consent(op); err != nil {
		return nil, err
	}
	if err := checkSupported(spec); err != nil {
		return nil, err
	}
	if b.noDir != nil {
		return nil, b.noDir
	}
	b.sweeper.Once(ctx)
	path, hash, err := b.guestBinary(ctx)
	if err != nil {
		return nil, err
	}
	st := state{Record: backendkit.NewRecord("l-", spec, hash)}
	cu := cleanup.Make(func() {
		err = errors.Join(err, b.Stop(context.WithoutCancel(ctx), st.ID), os.RemoveAll(b.store.Path(st.ID)))
	})
	defer cu.Clean()
	for _, d := range []string{homeDir, runDir} {
		if err := os.MkdirAll(b.store.Path(st.ID, d), 0o700); err != nil {
			return nil, failed(op, "cannot make the directory of the sandbox", err)
		}
	}
	lock, err := b.store.Attach(st.ID)
	if err != nil {
		return nil, err
	}
	cu.Add(lock.Release)
	// The record is saved before the process starts, and again with its PID. If this program dies in between, Stop
	// still finds everything.
	if err := b.store.Save(st.ID, st); err != nil {
		return nil, failed(op, "cannot write the record of the sandbox", err)
	}
	g, err := spawn(path, b.store.Path(st.ID), &st, func() error { return b.linkVolumes(ctx, &st) })
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return nil, err
	}
	if err != nil {
		return nil, failed(op, "the guest could not be started", err)
	}
	b.mu.Lock()
	b.watch(g)
	b.mu.Unlock()
	if err := b.store.Save(st.ID, st); err != nil {
		return nil, failed(op, "cannot write the record of the sandbox", err)
	}
	m, err := b.connect(g, lock)
	if err != nil {
		return nil, failed(op, "cannot open the pipes of the guest", err)
	}
	cu.Release()
	return m, nil
}

// Attach implements sandbox.Backend.
func (b *Backend) Attach(_ context.Context, id string) (sandbox.Machine, error) {
	const op = "attach"
	if err := consent(op); err != nil {
		return nil, err
	}
	if b.noDir != nil {
		return nil, b.noDir
	}
	var st state
	if err := b.store.Load(id, &st); err != nil {
		return nil, err
	}
	lock, err := b.store.Attach(id)
	if err != nil {
		return nil, err
	}
	cu := cleanup.Make(lock.Release)
	defer cu.Clean()
	// From here on this program is responsible for the sandbox, and sweeps of other programs must not remove it.
	st.Owner = backendkit.Self()
	if err := b.store.Save(id, st); errors.Is(err, fs.ErrNotExist) {
		return nil, b.store.NotFound(id) // the sandbox has ended meanwhile
	} else if err != nil {
		return nil, failed(op, "cannot write the record of the sandbox", err)
	}
	g, err := b.find(st)
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeGuestLost,
			Op:      op,
			Message: fmt.Sprintf("the guest of %s, process %d, has ended", id, st.Process.PID),
			Remedy:  "stop the sandbox and make a new one",
			Err:     err,
		}
	}
	m, err := b.connect(g, lock)
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeGuestLost,
			Op:      op,
			Message: "the guest of " + id + " cannot be reached",
			Err:     err,
		}
	}
	cu.Release()
	return m, nil
}

// watch records the guest of a sandbox until it ends.
//
// Preconditions: b.mu is held.
func (b *Backend) watch(g *guest) {
	b.guests[g.ID()] = g
	go func() {
		<-g.Gone()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.guests[g.ID()] == g {
			delete(b.guests, g.ID())
		}
	}()
}

// find returns the guest of a sandbox: one that this program knows, or a process that another program has started.
func (b *Backend) find(st state) (*guest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.guests[st.ID]; g != nil {
		return g, nil
	}
	g, err := watchForeign(st)
	if err == nil {
		b.watch(g)
	}
	return g, err
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	if !backendkit.ValidID(id) || b.noDir != nil {
		return nil //nolint:nilerr // no sandbox with this ID can exist
	}
	b.mu.Lock()
	g := b.guests[id]
	b.mu.Unlock()
	if g != nil {
		g.Stopping()
	}
	var st state
	err := b.store.Load(id, &st)
	switch {
	case v1.CodeOf(err) == v1.CodeNotFound && g == nil:
		return os.RemoveAll(b.store.Path(id))
	case v1.CodeOf(err) == v1.CodeNotFound:
		st.ID, st.Process.PID = id, g.pid // killed between its start and the second write of its record
	case err != nil:
		return failed("stop sandbox", "cannot read the record of the sandbox", err)
	}
	if err := killTree(ctx, st); err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "stop sandbox",
			Message: "some processes of the sandbox still run",
			Retry:   true,
			Err:     err,
		}
	}
	if g != nil {
		select {
		case <-g.Gone():
		case <-ctx.Done():
		}
	}
	for _, v := range st.Spec.Volumes {
		if err := b.volumes.Release(id, v.Name); err != nil {
			return failed("stop sandbox", "cannot release a volume", err)
		}
	}
	return os.RemoveAll(b.store.Path(id))
}

// List implements sandbox.Backend.
func (b *Backend) List(context.Context) ([]sandbox.Info, error) {
	if b.noDir != nil {
		return nil, b.noDir
	}
	return b.store.List(func(i *sandbox.Info) {
		var st state
		if b.store.Load(i.ID, &st) == nil {
			i.Running, i.PID = st.Process.Alive(), st.Process.PID
		}
	})
}

var (
	_ backend.Surveyor     = (*Backend)(nil)
	_ backend.VolumeKeeper = (*Backend)(nil)
)

// Survey implements backend.Surveyor.
func (b *Backend) Survey(ctx context.Context) ([]backend.Surveyed, error) {
	all, err := b.List(ctx)
	return b.store.Survey(all), err
}

// EndUnheld implements backend.Surveyor.
func (b *Backend) EndUnheld(ctx context.Context, id string) error {
	return b.store.EndUnheld(ctx, id, b.Stop)
}

const snapshotRemedy = "use a backend with snapshots, such as gvisor"

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, backend.NotSupported(Name, "snapshot", snapshotRemedy)
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, backend.NotSupported(Name, "restore", snapshotRemedy)
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(context.Context, string) error { return nil }

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, nil }

// machine is one attachment to a guest.
type machine struct {
	*guest
	stream *stream
}

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return m.stream }

// connect opens the host's ends of the pipes. The machine takes ownership of the lock.
func (b *Backend) connect(g *guest, lock *filelock.Lock) (*machine, error) {
	s, err := fifo.Open(b.store.Path(g.ID()))
	if err != nil {
		return nil, err
	}
	return &machine{guest: g, stream: &stream{s, lock}}, nil
}

// stream releases the lock of the attachment when it is closed.
type stream struct {
	*fifo.Stream
	lock *filelock.Lock
}

// Close implements io.Closer.
func (s *stream) Close() error {
	err := s.Stream.Close()
	s.lock.Release()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// checkSupported returns an error if the spec requires more than a plain process.
func checkSupported(spec sandbox.Spec) error {
	if slices.ContainsFunc(spec.Volumes, readOnly) {
		return backend.NotSupported(Name, "mount a volume read-only (ask for :rw)", "use another backend, such as gvisor")
	}
	return backendkit.RefusePlain(Name, spec, "remove it from the spec, or use another backend, such as gvisor")
}

func readOnly(v sandbox.Volume) bool { return !v.Writable }

// linkVolumes takes the volumes of a new sandbox, and makes links to them. Nothing can be mounted at a path of the
// host, so the path inside is one below the home directory: /data is ~/data.
func (b *Backend) linkVolumes(ctx context.Context, st *state) error {
	for _, v := range st.Spec.Volumes {
		lease := volumes.LeaseOf(st.ID, Name, b.store.Path(st.ID), st.Spec.Labels, v.Writable)
		found, err := b.volumes.Take(ctx, v.Name, lease, b.volumes.Lives)
		if err != nil {
			return err
		}
		link := b.store.Path(st.ID, homeDir, filepath.Clean("/"+v.Path))
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(found.Mount(), link); err != nil {
			return err
		}
	}
	return nil
}
