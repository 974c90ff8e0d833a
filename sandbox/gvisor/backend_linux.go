//go:build linux

package gvisor

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend makes sandboxes with the embedded engine.
type Backend struct {
	opts   Options
	dir    string // data, private to this user
	roots  string // root file systems that were built
	cache  string // programs and images
	store  *programs.Store
	engine programs.Program
	guest  programs.Program
	images *image.Store

	sandboxes backendkit.Store
	sweeper   backendkit.Sweeper
	sweeping  sync.WaitGroup // the sweep of files, which ends by itself

	cgroupOnce sync.Once
	cgroups    *cgroupHost // nil: none; see cgroupErr
	cgroupErr  error

	verified sync.Map // of heldFile: checkpoint files whose checksum we have compared

	rootMu sync.Mutex
	root   *hostRoot // guarded by rootMu; the default root, as it was last seen
	rootAt time.Time // guarded by rootMu

	healthMu sync.Mutex
	health   sandbox.Health // guarded by healthMu; the last answer
	healthAt time.Time      // guarded by healthMu
	trials   backendkit.Proof[trial]

	settleAfter time.Duration // see there; a test dies before

	mu       sync.Mutex
	machines map[string]*machine // guarded by mu; attached by us
}

// New gives the backend. It finds engine and guest, and starts nothing.
func New(opts Options) (*Backend, error) {
	ctx := context.Background()
	b := &Backend{opts: opts, dir: opts.DataDir, settleAfter: settleAfter, machines: map[string]*machine{}}
	cache := opts.CacheDir
	var err error
	if b.dir == "" {
		if b.dir, err = xdg.Data(); err != nil {
			return nil, err
		}
	}
	if cache == "" {
		if cache, err = xdg.Cache(); err != nil {
			return nil, err
		}
	}
	b.dir = filepath.Join(b.dir, Name)
	for _, d := range []string{"sandboxes", "snapshots", "templates", "roots", "engine"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o700); err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "prepare data directory", Err: err}
		}
	}
	b.roots = filepath.Join(b.dir, "roots")
	// Several data directories may share roots and templates by symbolic links. A template belongs to the path of its root.
	if target, err := os.Readlink(b.roots); err == nil && filepath.IsAbs(target) {
		b.roots = target
	}
	store, err := programs.Open(cache)
	if err != nil {
		return nil, err
	}
	b.cache, b.store = cache, store
	if b.engine, err = store.Choose(ctx, opts.Engine, programs.EngineName); err != nil {
		return nil, engineMissing(err)
	}
	if b.guest, err = store.Choose(ctx, opts.Guest, programs.GuestName); err != nil {
		return nil, engineMissing(err)
	}
	b.images = &image.Store{Dir: cache}
	b.sandboxes = backendkit.Store{Dir: filepath.Join(b.dir, "sandboxes"), Backend: Name}
	b.trials.Path = filepath.Join(b.dir, "trial.json")
	b.sweeper = backendkit.Sweeper{Sweep: b.sweep, Limit: sweepWait}
	return b, nil
}

func engineMissing(err error) error {
	return &v1.Error{
		Code: v1.CodeEngineMissing, Op: "find engine and guest", Err: err,
		Remedy: "run make build, or go install github.com/recluse-dev/recluse/cmd/...",
	}
}

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return Name }

// asUser reports whether sandboxes run in a user namespace of their own.
func (b *Backend) asUser() bool { return b.opts.AsUser || os.Geteuid() != 0 }

// limits gives the cgroups to use, or nil and why there are none.
func (b *Backend) limits() (*cgroupHost, error) {
	b.cgroupOnce.Do(func() {
		if b.asUser() {
			b.cgroupErr = errors.New("memory and CPU limits need root, because an ordinary user may not make cgroups")
			return
		}
		b.cgroups, b.cgroupErr = findCgroups()
	})
	return b.cgroups, b.cgroupErr
}

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(context.Context) sandbox.Capabilities {
	_, err := b.limits()
	c := sandbox.Capabilities{
		Isolation: sandbox.IsolationKernel, Snapshots: sandbox.SnapshotsMemory, NetworkOff: true,
		MemoryLimit: err == nil, CPULimit: err == nil, ProcessLimit: true, DiskLimit: true, OpenFileLimit: true,
		Images: true, Mounts: true, Shares: true, Python: hostHas("python3"), Bash: hostHas("bash"), Files: true, PTY: true,
		ColdStart: 250 * time.Millisecond,
	}
	if err != nil {
		c.Notes = append(c.Notes, err.Error())
	}
	return c
}

func hostHas(name string) bool {
	for _, d := range []string{"/usr/bin", "/bin", "/usr/local/bin"} {
		if unix.Access(filepath.Join(d, name), unix.X_OK) == nil {
			return true
		}
	}
	return false
}

// driver gives the engine, used by this backend's way.
func (b *Backend) driver(path string, cgroups bool) *engine {
	return &engine{path: path, root: filepath.Join(b.dir, "engine"), userns: b.asUser(), cgroups: cgroups, debug: b.opts.Debug}
}

// record is what any program needs to drive a sandbox.
type record struct {
	backendkit.Record
	Engine string        `json:"engine"` // hash
	Cgroup bool          `json:"cgroup"`
	Root   string        `json:"root"`  // directory on the host
	Binds  []bind        `json:"binds"` // onto it, without the guest's and the caller's own
	Config launch.Config `json:"config"`
}

func (b *Backend) load(id string) (*record, error) {
	r := &record{}
	return r, b.sandboxes.Load(id, r)
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	r, err := b.load(id)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	cgroup, eng := true, b.engine
	if err == nil {
		cgroup = r.Cgroup
		// Without its own engine it is ended with ours: what matters is killing, and that is done by pid.
		if e, err := b.engineOf(r.Engine, "stop"); err == nil {
			eng = e
		}
	}
	b.mu.Lock()
	m := b.machines[id]
	delete(b.machines, id)
	b.mu.Unlock()
	if m != nil {
		m.stop()
		defer m.abandon()
	}
	if err := b.remove(ctx, id, cgroup, b.driver(eng.Path, cgroup)); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "stop sandbox", Message: "something of it is left", Err: err, Retry: true}
	}
	return nil
}

// remove ends whatever there is of a sandbox and removes its files.
func (b *Backend) remove(ctx context.Context, id string, cgroup bool, e *engine) error {
	dir := b.sandboxes.Path(id)
	errs := []error{e.sweep(ctx, id, dir)}
	if host, _ := b.limits(); cgroup && host != nil {
		errs = append(errs, host.open(id).remove(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// List implements sandbox.Backend.
func (b *Backend) List(context.Context) ([]sandbox.Info, error) {
	e := b.driver(b.engine.Path, false)
	return b.sandboxes.List(func(i *sandbox.Info) {
		if st, err := e.state(i.ID); err == nil && st.alive() {
			i.Running, i.PID = true, st.Sandbox.Pid
		}
	})
}

// Survey implements backend.Surveyor.
func (b *Backend) Survey(ctx context.Context) ([]backend.Surveyed, error) {
	all, err := b.List(ctx)
	return b.sandboxes.Survey(all), err
}

// EndUnheld implements backend.Surveyor.
func (b *Backend) EndUnheld(ctx context.Context, id string) error {
	return b.sandboxes.EndUnheld(ctx, id, b.Stop)
}

// Attach implements sandbox.Backend.
func (b *Backend) Attach(ctx context.Context, id string) (sandbox.Machine, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	eng, err := b.engineOf(r.Engine, "attach")
	if err != nil {
		return nil, err
	}
	lock, err := b.sandboxes.Attach(id)
	if err != nil {
		return nil, startError(err)
	}
	cu := cleanup.Make(lock.Release)
	defer cu.Clean()
	e := b.driver(eng.Path, r.Cgroup)
	// A program that paused it to take a snapshot may have died before it resumed it.
	if err := resumePaused(ctx, e, id); err != nil {
		return nil, startError(err)
	}
	m, err := b.open(r, e, lock)
	if err != nil {
		return nil, err
	}
	cu.Release() // the machine has the lock
	r.Owner = backendkit.Self()
	if err := b.sandboxes.Save(id, r); err != nil {
		m.abandon()
		return nil, startError(err)
	}
	return m, nil
}

var (
	_ backend.Pauser   = (*Backend)(nil)
	_ backend.Labeler  = (*Backend)(nil)
	_ backend.Sharer   = (*Backend)(nil)
	_ backend.Surveyor = (*Backend)(nil)
)

// sharedFiles is the directory of a sandbox, or of a snapshot, whose files are shown inside as sandbox.SharedDir.
const sharedFiles = "shared"

// Pause implements backend.Pauser.
func (b *Backend) Pause(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "pause")
	if err != nil {
		return err
	}
	if st, err := e.state(id); err == nil && st.Status == statusPaused {
		return nil
	}
	if err := e.pause(ctx, id); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "pause", Message: "the engine could not pause it", Err: errors.Join(err, resumePaused(ctx, e, id))}
	}
	return nil
}

// Resume implements backend.Pauser.
func (b *Backend) Resume(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "resume")
	if err != nil {
		return err
	}
	if err := resumePaused(ctx, e, id); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "resume", Message: "the engine could not resume it", Err: err}
	}
	return nil
}

// driverOf gives the engine of a sandbox.
func (b *Backend) driverOf(id, op string) (*engine, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	eng, err := b.engineOf(r.Engine, op)
	if err != nil {
		return nil, err
	}
	return b.driver(eng.Path, r.Cgroup), nil
}

// Label implements backend.Labeler.
func (b *Backend) Label(_ context.Context, id string, labels map[string]string) error {
	r, err := b.load(id)
	if err != nil {
		return err
	}
	r.Spec.Labels = maps.Clone(labels)
	if err := b.sandboxes.Save(id, r); err != nil {
		return startError(err)
	}
	return nil
}

// Share implements backend.Sharer.
func (b *Backend) Share(ctx context.Context, id, file, name string) error {
	if _, err := b.load(id); err != nil {
		return err
	}
	return b.shared(id).Share(ctx, file, name)
}

// shared are the files of the host that a sandbox shows.
func (b *Backend) shared(id string) backendkit.SharedFiles {
	return backendkit.SharedFiles{Dir: b.sandboxes.Path(id, sharedFiles)}
}

// sharedOf are those of the snapshot with a checkpoint; "" for none.
func sharedOf(checkpoint string) (s backendkit.SharedFiles) {
	if checkpoint != "" {
		s.Dir = filepath.Join(filepath.Dir(checkpoint), sharedFiles)
	}
	return s
}
