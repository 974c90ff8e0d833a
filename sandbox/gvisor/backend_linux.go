//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// guestMount is where the directory of the guest's program appears inside.
const guestMount = "/.recluse"

// guestState is the guest's own directory inside.
const guestState = "/run/recluse"

// bootWait bounds how long a sandbox may take to show its guest's process.
const bootWait = 10 * time.Second

// Backend makes sandboxes with the embedded engine.
type Backend struct {
	opts   Options
	dir    string // data, private to this user
	cache  string // programs and images
	store  *programs.Store
	engine programs.Program
	guest  programs.Program
	images *image.Store

	cgroupOnce sync.Once
	cgroups    *cgroupHost // nil: none; see cgroupErr
	cgroupErr  error

	sweepOnce sync.Once
	sweeping  sync.WaitGroup // the sweep of files, which ends by itself
	verified  sync.Map       // of heldFile: checkpoint files whose checksum we have compared

	rootMu sync.Mutex
	root   *hostRoot // guarded by rootMu; the default root, as it was last seen
	rootAt time.Time // guarded by rootMu

	healthMu sync.Mutex
	health   sandbox.Health // guarded by healthMu; the last answer
	healthAt time.Time      // guarded by healthMu

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
			return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "prepare data directory", Err: err}
		}
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
	return b, nil
}

func engineMissing(err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeEngineMissing, Op: "find engine and guest", Err: err,
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

// record is what is kept about a sandbox in its directory; with it any program can drive the sandbox.
type record struct {
	ID         string          `json:"id"`
	Created    time.Time       `json:"created"`
	Spec       sandbox.Spec    `json:"spec"`
	Token      string          `json:"token"`
	Generation string          `json:"generation"`
	Engine     string          `json:"engine"` // hashes
	Guest      string          `json:"guest"`
	Cgroup     bool            `json:"cgroup"`
	Root       string          `json:"root"`  // directory on the host
	Binds      []bind          `json:"binds"` // onto it, without the guest's and the caller's own
	Owner      statefile.Owner `json:"owner"` // the program that must end it
	Config     agent.Config    `json:"config"`
}

const recordFile = "sandbox.json"

func (b *Backend) sandboxDir(id string) string { return filepath.Join(b.dir, "sandboxes", id) }

// validID keeps path-like ids out of our directories.
func validID(id string) bool {
	return len(id) > 0 && len(id) <= 64 && strings.IndexFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	}) < 0
}

func (b *Backend) load(id string) (*record, error) {
	notFound := &sandbox.Error{Code: sandbox.CodeNotFound, Op: "find sandbox", Message: fmt.Sprintf("no sandbox %q", id)}
	if !validID(id) {
		return nil, notFound
	}
	r := &record{}
	err := statefile.Read(filepath.Join(b.sandboxDir(id), recordFile), r)
	if errors.Is(err, os.ErrNotExist) {
		return nil, notFound
	}
	return r, err
}

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	b.sweepOnce.Do(func() {
		b.sweepOrphans(ctx)
		b.sweeping.Go(b.sweepFiles)
	})
	p, err := b.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	if !spec.Cold && !b.opts.NoTemplates && len(spec.Mounts) == 0 {
		m, err := b.startFromTemplate(ctx, p)
		if err == nil || ctx.Err() != nil {
			return m, err
		}
		if code := sandbox.CodeOf(err); code != sandbox.CodeSnapshotStale && code != sandbox.CodeSnapshotCorrupt && code != codeNoTemplate {
			return nil, err
		}
	}
	return b.boot(ctx, p)
}

// plan is a sandbox that is decided on and not yet made.
type plan struct {
	spec  sandbox.Spec
	root  string
	binds []bind
	// entries are what the root was built from besides the binds.
	entries []hostEntry
	img     *image.Image // nil without
}

// prepare finds the root file system and judges the mounts.
func (b *Backend) prepare(ctx context.Context, spec sandbox.Spec) (*plan, error) {
	switch {
	case spec.User != "":
		return nil, backend.NotSupported(Name, "run code as another user", "leave the user out: nobody inside has rights on the host anyway; or use docker")
	case len(spec.Volumes) > 0:
		return nil, backend.NotSupported(Name, "show named volumes", "mount a directory of the host; or use docker")
	case spec.Options[Name] != nil:
		return nil, backend.NotSupported(Name, "take options of its own in a spec", "leave them out")
	}
	p := &plan{spec: spec}
	roots := filepath.Join(b.dir, "roots")
	switch {
	case spec.Image != "":
		img, err := b.image(ctx, spec.Image)
		if err != nil {
			return nil, err
		}
		p.img = img
		r, err := buildTreeRoot(ctx, roots, img.RootFS)
		if err != nil {
			return nil, rootError(spec.Image, "use an image that holds a system", err)
		}
		p.root, p.binds, p.entries = r.dir, r.binds, r.entries
	case spec.RootFS != "":
		dir, err := filepath.Abs(spec.RootFS)
		if err != nil {
			return nil, rootError(spec.RootFS, remedyRootFS, err)
		}
		// What may not be mounted may not be the root either: "/" would show all of the host.
		if dir, err = b.policy().Judge(dir); err != nil {
			return nil, rootError(spec.RootFS, remedyRootFS, err)
		}
		r, err := buildTreeRoot(ctx, roots, dir)
		if err != nil {
			return nil, rootError(spec.RootFS, remedyRootFS, err)
		}
		p.root, p.binds, p.entries = r.dir, r.binds, r.entries
	default:
		r, err := b.defaultRoot(ctx, roots)
		if err != nil {
			return nil, rootError("the host's /usr", "use an image", err)
		}
		p.root, p.binds, p.entries = r.dir, r.binds, r.entries
	}
	return p, b.judgeMounts(ctx, p)
}

// rootKept is how long what was seen of the host is believed. A look takes 5 ms, and sandboxes come in bursts.
const rootKept = 2 * time.Second

// defaultRoot gives the root made from this host.
func (b *Backend) defaultRoot(ctx context.Context, roots string) (*hostRoot, error) {
	b.rootMu.Lock()
	defer b.rootMu.Unlock()
	if b.root != nil && time.Since(b.rootAt) < rootKept && isDir(b.root.dir) {
		return b.root, nil
	}
	r, err := buildHostRoot(ctx, roots, "/")
	if err == nil {
		b.root, b.rootAt = r, time.Now()
	}
	return r, err
}

const remedyRootFS = "name a directory that holds a system, such as an unpacked image"

// rootError says why something cannot be the root file system. What judged its path knows better what to do.
func rootError(what, remedy string, err error) error {
	if e, ok := errors.AsType[*hostpath.RefusedError](err); ok {
		remedy = cmp.Or(e.Remedy, remedy)
	}
	return &sandbox.Error{Code: sandbox.CodeRootFS, Op: "prepare root file system", Message: what + " cannot be used as one", Remedy: remedy, Err: err}
}

// boot makes a sandbox the long way.
func (b *Backend) boot(ctx context.Context, p *plan) (*machine, error) {
	r := &record{
		ID: newID(), Created: time.Now().UTC(), Spec: p.spec, Token: statefile.Random(32), Generation: statefile.Random(8),
		Engine: b.engine.Hash, Guest: b.guest.Hash, Root: p.root, Binds: p.binds, Owner: statefile.Self(),
	}
	r.Config = b.guestConfig(r, p)
	return b.launch(ctx, r, b.engine, b.guest, "")
}

// guestConfig is what the guest is told at its birth.
func (b *Backend) guestConfig(r *record, p *plan) agent.Config {
	l := p.spec.Limits
	c := agent.Config{
		Token: r.Token, UID: userUID, GID: userGID, Home: userHome, Dir: userHome, State: guestState,
		Processes: l.Processes, OpenFiles: l.OpenFiles, CPUs: int(math.Ceil(l.CPUs)),
		// The guest keeps to it also where no cgroup stands behind it; the capability is then still false.
		Memory: l.Memory,
	}
	if p.img != nil {
		c.Env = p.img.Config.Env
		if p.img.Config.WorkingDir != "" {
			c.Dir = p.img.Config.WorkingDir
		}
	}
	if p.spec.Dir != "" {
		c.Dir = p.spec.Dir
	}
	// Files live in memory. Each costs some that no size counts, so their number is bounded by the
	// memory it may take.
	const perFile = 2 << 10
	inodes := max(1024, l.Memory/8/perFile)
	c.Tmpfs = []agent.Tmpfs{
		{Path: userHome, Size: l.Disk / 2, Inodes: inodes / 2, Mode: "0750", UID: userUID},
		{Path: "/tmp", Size: l.Disk / 4, Inodes: inodes / 4, Mode: "1777"},
		{Path: "/var/tmp", Size: l.Disk / 16, Inodes: inodes / 16, Mode: "1777"},
		{Path: "/dev/shm", Size: l.Disk / 16, Inodes: inodes / 16, Mode: "1777"},
		{Path: guestState, Size: l.Disk / 8, Inodes: inodes / 8, Mode: "0755"},
	}
	return c
}

// launch makes the sandbox of a record, from a checkpoint if one is given. On failure nothing is left.
func (b *Backend) launch(ctx context.Context, r *record, eng, guest programs.Program, checkpoint string) (_ *machine, err error) {
	dir := b.sandboxDir(r.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, startError(err)
	}
	host, _ := b.limits()
	r.Cgroup = host != nil
	e := b.driver(eng.Path, r.Cgroup)
	defer func() {
		if err != nil {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
			defer cancel()
			err = errors.Join(err, b.remove(clean, r.ID, r.Cgroup, e))
		}
	}()
	if err := statefile.Write(filepath.Join(dir, recordFile), r); err != nil {
		return nil, startError(err)
	}
	lock, err := b.lock(dir, statefile.Patience)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Release()
		}
	}()
	var group *cgroup
	if host != nil {
		group, err = host.create(r.ID, cgroupLimits{
			memory: r.Spec.Limits.Memory, pids: int64(4*r.Spec.Limits.Processes + 1024), // processors: see settle
		})
		if err != nil {
			return nil, startError(err)
		}
	}
	oci, err := b.bundleOf(r, guest, group)
	if err != nil {
		return nil, err
	}
	if err := oci.write(dir); err != nil {
		return nil, startError(err)
	}
	if err := linkShared(sharedOf(checkpoint), filepath.Join(dir, sharedFiles)); err != nil {
		return nil, startError(err)
	}
	pipes, err := fifo.MakeAll(dir)
	if err != nil {
		return nil, startError(err)
	}
	// Again, and as late as can be: somebody may have put another directory or a link in a judged one's place, since the snapshot was taken or just now.
	places, err := b.judgeAgain(r)
	if err != nil {
		pipes.Close()
		return nil, err
	}
	defer places.close()
	if checkpoint == "" {
		err = e.run(ctx, r.ID, dir, pipes)
	} else {
		err = e.restore(ctx, r.ID, dir, checkpoint, pipes)
	}
	pipes.Close()
	if err != nil {
		if ctx.Err() != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeCancelled, Op: "start sandbox", Message: "given up", Err: ctx.Err()}
		}
		b.forgetTrial()
		return nil, startError(err)
	}
	if err := places.shown(e, r.ID); err != nil {
		return nil, err
	}
	return b.open(r, e, lock)
}

// bundleOf gives the OCI bundle of a record. A restored sandbox must get the same as the one it is a copy of,
// but for its cgroup.
func (b *Backend) bundleOf(r *record, guest programs.Program, group *cgroup) (*bundleSpec, error) {
	config, err := encodeConfig(r.Config)
	if err != nil {
		return nil, startError(err)
	}
	oci := &bundleSpec{
		root: r.Root, binds: append(append([]bind(nil), r.Binds...),
			bind{Source: filepath.Dir(guest.Path), Target: guestMount},
			bind{Source: filepath.Join(b.sandboxDir(r.ID), sharedFiles), Target: sandbox.SharedDir}),
		hostname: "recluse", argv: []string{guestMount + "/" + filepath.Base(guest.Path)},
		env:          []string{agent.ConfigEnv + "=" + config, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=2"},
		capabilities: guestCapabilities, openFiles: 16384,
	}
	for _, m := range r.Spec.Mounts {
		oci.binds = append(oci.binds, bind{Source: m.Host, Target: m.Path, Writable: m.Writable})
	}
	if group != nil {
		oci.cgroup, oci.memory, oci.cpus = group.path(), r.Spec.Limits.Memory, r.Spec.Limits.CPUs
	}
	return oci, nil
}

func startError(err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	e := &sandbox.Error{Code: sandbox.CodeStartFailed, Op: "start sandbox", Message: "the engine could not make it", Err: err, Remedy: "recluse doctor looks for the cause"}
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left") {
		e.Code, e.Message, e.Remedy = sandbox.CodeDiskFull, "the disk of the data directory is full", "free some space"
	}
	return e
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
		m.stopping()
	}
	err = b.remove(ctx, id, cgroup, b.driver(eng.Path, cgroup))
	if m != nil {
		m.abandon()
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "stop sandbox", Message: "something of it is left", Err: err, Retry: true}
	}
	return nil
}

// remove ends whatever there is of a sandbox and takes its files away.
func (b *Backend) remove(ctx context.Context, id string, cgroup bool, e *engine) error {
	dir := b.sandboxDir(id)
	errs := []error{e.sweep(ctx, id, dir)}
	if host, _ := b.limits(); cgroup && host != nil {
		errs = append(errs, host.open(id).remove(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// List implements sandbox.Backend.
func (b *Backend) List(context.Context) ([]sandbox.Info, error) {
	entries, err := os.ReadDir(filepath.Join(b.dir, "sandboxes"))
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "list sandboxes", Err: err}
	}
	e := b.driver(b.engine.Path, false)
	var out []sandbox.Info
	for _, d := range entries {
		r, err := b.load(d.Name())
		if err != nil {
			continue // being made or removed right now
		}
		i := sandbox.Info{ID: r.ID, Backend: Name, Created: r.Created, Labels: r.Spec.Labels, Spec: r.Spec}
		if st, err := e.state(r.ID); err == nil && st.alive() {
			i.Running, i.PID = true, st.Sandbox.Pid
		}
		out = append(out, i)
	}
	return out, nil
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
	lock, err := b.lock(b.sandboxDir(id), statefile.Patience)
	if err != nil {
		return nil, err
	}
	e := b.driver(eng.Path, r.Cgroup)
	// Whoever paused it to take a snapshot has died over it.
	if err := resumePaused(ctx, e, id); err != nil {
		lock.Release()
		return nil, startError(err)
	}
	m, err := b.open(r, e, lock)
	if err != nil {
		lock.Release()
		return nil, err
	}
	r.Owner = statefile.Self()
	if err := statefile.Write(filepath.Join(b.sandboxDir(id), recordFile), r); err != nil {
		m.abandon()
		return nil, startError(err)
	}
	return m, nil
}

// sweepOrphans ends the sandboxes whose program has died without ending them.
func (b *Backend) sweepOrphans(ctx context.Context) {
	entries, err := os.ReadDir(filepath.Join(b.dir, "sandboxes"))
	if err != nil {
		return
	}
	for _, d := range entries {
		r, err := b.load(d.Name())
		if err != nil || r.Spec.Persist || r.Owner.Alive() {
			continue
		}
		b.endOrphan(ctx, r.ID)
	}
}

// endOrphan ends a sandbox that looked like an orphan, unless somebody is attached to it or has made it theirs meanwhile.
// Best effort: it is tried again by the next program, and Start must not fail for it.
func (b *Backend) endOrphan(ctx context.Context, id string) {
	lock, err := b.lock(b.sandboxDir(id), 0)
	if err != nil {
		return
	}
	defer lock.Release()
	if r, err := b.load(id); err == nil && !r.Spec.Persist && !r.Owner.Alive() {
		_ = b.Stop(ctx, id)
	}
}

// token decodes the record's.
func (r *record) token() []byte {
	t, err := hex.DecodeString(r.Token)
	if err != nil {
		return nil
	}
	return t
}
