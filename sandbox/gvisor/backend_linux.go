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
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend makes sandboxes with the embedded engine.
type Backend struct {
	opts   Options
	dir    string // data, private to this user
	roots  string // root file systems that were built from the host, from images and from directories
	cache  string // programs and images
	store  *programs.Store
	engine programs.Program
	guest  programs.Program
	images *image.Store

	backend.VolumeKeeper
	volumes *volumes.Keeper

	saving sync.Map // of *saving, by sandbox

	sandboxes backendkit.Store
	snaps     backendkit.Snapshots
	sweeper   backendkit.Sweeper
	sweeping  sync.WaitGroup // removal of files in the background; each one ends by itself

	cgroupOnce sync.Once
	cgroups    *cgroupHost // nil: no cgroups; cgroupErr has the reason
	cgroupErr  error

	rootMu      sync.Mutex
	root        keptRoot // guarded by rootMu; the default root
	packageRoot keptRoot // guarded by rootMu; the default root in which packages can be installed

	healthMu sync.Mutex
	health   sandbox.Health // guarded by healthMu; the last result
	healthAt time.Time      // guarded by healthMu
	trials   backendkit.Proof[trial]

	limitsDelay time.Duration // see the constant; a test makes it longer

	mu       sync.Mutex
	machines map[string]*machine // guarded by mu; the sandboxes to which this program is attached
}

// New returns the backend. It locates engine and guest, and starts nothing.
func New(opts Options) (*Backend, error) {
	ctx := context.Background()
	b := &Backend{opts: opts, dir: opts.DataDir, limitsDelay: limitsDelay, machines: map[string]*machine{}}
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
	b.volumes = &volumes.Keeper{
		Store:       volumes.In(b.dir, Name),
		Limits:      b.canLimitVolumes,
		Unlimited:   opts.UnlimitedDisk,
		Unlimitable: volumes.KindDirectory,
		Lives:       volumes.HasGuest,
	}
	b.VolumeKeeper = b.volumes
	b.dir = filepath.Join(b.dir, Name)
	for _, d := range []string{"sandboxes", "snapshots", "templates", "roots", "engine"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o700); err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "prepare data directory", Err: err}
		}
	}
	b.roots = filepath.Join(b.dir, "roots")
	// Several data directories may share roots and templates by symbolic links. A template belongs to the path of its
	// root, so the link is resolved.
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
	b.snaps = backendkit.Snapshots{
		Dir: filepath.Join(b.dir, "snapshots"), State: checkpointDir, Disk: diskFile, Format: snapshotFormat,
	}
	b.trials.Path = filepath.Join(b.dir, "trial.json")
	b.sweeper = backendkit.Sweeper{Sweep: b.sweep, Limit: sweepWait}
	return b, nil
}

func engineMissing(err error) error {
	return &v1.Error{Code: v1.CodeEngineMissing, Op: "find engine and guest", Err: err} // err has the remedy
}

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return Name }

// asUser reports whether each sandbox runs in its own user namespace.
func (b *Backend) asUser() bool { return b.opts.AsUser || os.Geteuid() != 0 }

// limits returns the cgroups to use. If there are none, it returns nil and the reason.
func (b *Backend) limits() (*cgroupHost, error) {
	b.cgroupOnce.Do(func() {
		if b.asUser() {
			b.cgroupErr = errors.New("memory and CPU limits require root, because an ordinary user cannot make cgroups")
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
		Isolation:     sandbox.IsolationKernel,
		Snapshots:     sandbox.SnapshotsMemory,
		Egress:        sandbox.EgressAllPorts,
		MemoryLimit:   err == nil,
		CPULimit:      err == nil,
		ProcessLimit:  true,
		DiskLimit:     true,
		WritableRoot:  true,
		Root:          true,
		OpenFileLimit: true,
		Images:        true,
		Mounts:        true,
		Shares:        true,
		Python:        hostHas("python3"),
		Bash:          hostHas("bash"),
		Files:         true,
		PTY:           true,
		ColdStart:     250 * time.Millisecond,
	}
	if err != nil {
		c.Notes = append(c.Notes, err.Error())
	}
	c.Notes = append(c.Notes, b.opts.Network.Notes()...)
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

// driver returns the engine at path, configured for this backend.
func (b *Backend) driver(path string, cgroups bool) *engine {
	return &engine{
		path:    path,
		root:    filepath.Join(b.dir, "engine"),
		userns:  b.asUser(),
		cgroups: cgroups,
		debug:   b.opts.Debug,
	}
}

// record is everything that a program needs to take over a sandbox.
type record struct {
	backendkit.Record
	Engine string        `json:"engine"` // hash of the engine program
	Cgroup bool          `json:"cgroup"`
	Root   string        `json:"root"`  // root directory on the host
	Binds  []bind        `json:"binds"` // mounts on the root, without the guest and the mounts of the spec
	Config launch.Config `json:"config"`
	// Writable means that the root has a writable layer on disk, and that Binds are parts of the root.
	Writable bool `json:"writable,omitempty"`
	// Volumes are the volumes of the spec, in its order.
	Volumes []volumeBind `json:"volumes,omitempty"`
}

// disk returns the writable layer of the root, or nil.
func (r *record) disk() *disk {
	if !r.Writable {
		return nil
	}
	return &disk{bytes: r.Spec.Limits.Disk, files: 2 * r.Spec.Limits.Files()}
}

// FilesOnDisk implements sandbox.DiskStorer.
func (b *Backend) FilesOnDisk(spec sandbox.Spec) bool { return !spec.ReadOnly }

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
		// If the engine of the sandbox is missing, ours stops it: processes are killed by PID, which does not depend on
		// the version of the engine.
		if e, err := b.engineOf(r.Engine, "stop"); err == nil {
			eng = e
		}
	}
	b.mu.Lock()
	m := b.machines[id]
	delete(b.machines, id)
	b.mu.Unlock()
	if m != nil {
		m.expectEnd()
		defer m.detach()
	}
	if err := b.remove(ctx, id, cgroup, b.driver(eng.Path, cgroup)); err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "stop sandbox",
			Message: "the sandbox could not be removed completely",
			Err:     err,
			Retry:   true,
		}
	}
	return nil
}

// remove kills the processes of a sandbox and removes its cgroups and files. Parts that do not exist are skipped.
func (b *Backend) remove(ctx context.Context, id string, cgroup bool, e *engine) error {
	dir := b.sandboxes.Path(id)
	errs := []error{e.sweep(ctx, id, dir)}
	if host, _ := b.limits(); cgroup && host != nil {
		errs = append(errs, host.open(id).remove(ctx))
	}
	errs = append(errs, b.releaseVolumes(id))
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
	// A program that paused the sandbox to take a snapshot may have died before it resumed it.
	if err := resumePaused(ctx, e, id); err != nil {
		return nil, startError(err)
	}
	m, err := b.open(r, e, lock)
	if err != nil {
		return nil, err
	}
	cu.Release() // the machine owns the lock
	r.Owner = backendkit.Self()
	if err := b.sandboxes.Save(id, r); err != nil {
		m.detach()
		return nil, startError(err)
	}
	return m, nil
}

var (
	_ backend.Pauser   = (*Backend)(nil)
	_ backend.Labeler  = (*Backend)(nil)
	_ backend.Sharer   = (*Backend)(nil)
	_ backend.Surveyor = (*Backend)(nil)

	_ backend.VolumeKeeper = (*Backend)(nil)
)

// sharedFiles is the name of the directory in a sandbox or a snapshot whose files appear inside as sandbox.SharedDir.
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
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "pause",
			Message: "the engine could not pause the sandbox",
			Err:     errors.Join(err, resumePaused(ctx, e, id)),
		}
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
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "resume",
			Message: "the engine could not resume the sandbox",
			Err:     err,
		}
	}
	return nil
}

// driverOf returns the engine that a sandbox was made with.
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

// shared returns the directory of the files that a sandbox shows.
func (b *Backend) shared(id string) backendkit.SharedFiles {
	return backendkit.SharedFiles{Dir: b.sandboxes.Path(id, sharedFiles)}
}

// sharedOf returns the directory of the shared files of the snapshot that contains checkpoint. Empty: no directory.
func sharedOf(checkpoint string) (s backendkit.SharedFiles) {
	if checkpoint != "" {
		s.Dir = filepath.Join(filepath.Dir(checkpoint), sharedFiles)
	}
	return s
}
