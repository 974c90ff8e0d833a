//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/cleanup"

	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

const (
	// guestMount is where the directory of the guest's program appears inside.
	guestMount = "/.recluse"
	// guestState is the guest's own directory inside.
	guestState = "/run/recluse"
	// bootWait bounds how long a sandbox may take to show its guest's process.
	bootWait = 10 * time.Second
	// idPrefix is the first letter of a sandbox's id.
	idPrefix = "s"
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	b.sweeper.Once(ctx)
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
	hostRoot
	spec sandbox.Spec
	img  *image.Image // nil without
}

// prepare finds the root file system and judges the mounts.
func (b *Backend) prepare(ctx context.Context, spec sandbox.Spec) (*plan, error) {
	switch {
	case spec.User != "":
		return nil, backend.NotSupported(Name, "run code as another user",
			"leave the user out: nobody inside has rights on the host anyway; or use docker")
	case len(spec.Volumes) > 0:
		return nil, backend.NotSupported(Name, "show named volumes", "mount a directory of the host; or use docker")
	case spec.Options[Name] != nil:
		return nil, backend.NotSupported(Name, "take options in a spec", "leave them out")
	}
	p := &plan{spec: spec}
	what, remedy := "the host's /usr", "use an image"
	var r *hostRoot
	var err error
	switch {
	case spec.Image != "":
		if p.img, err = b.image(ctx, spec.Image); err != nil {
			return nil, err
		}
		what, remedy = spec.Image, "use an image that holds a system"
		r, err = buildTreeRoot(ctx, b.roots(), p.img.RootFS)
	case spec.RootFS != "":
		what, remedy = spec.RootFS, "name a directory that holds a system, such as an unpacked image"
		dir := ""
		if dir, err = filepath.Abs(spec.RootFS); err == nil {
			// What may not be mounted may not be the root either: "/" would show all of the host.
			dir, err = b.policy().Judge(dir)
		}
		if err == nil {
			r, err = buildTreeRoot(ctx, b.roots(), dir)
		}
	default:
		r, err = b.defaultRoot(ctx)
	}
	if err != nil {
		return nil, rootError(what, remedy, err)
	}
	p.hostRoot = *r
	return p, b.judgeMounts(ctx, p)
}

// roots is where root file systems are built.
func (b *Backend) roots() string { return filepath.Join(b.dir, "roots") }

// rootKept is how long what was seen of the host is believed. A look takes 5 ms, and sandboxes come in bursts.
const rootKept = 2 * time.Second

// defaultRoot returns the root made from this host.
func (b *Backend) defaultRoot(ctx context.Context) (*hostRoot, error) {
	b.rootMu.Lock()
	defer b.rootMu.Unlock()
	if b.root != nil && time.Since(b.rootAt) < rootKept && isDir(b.root.dir) {
		return b.root, nil
	}
	r, err := buildHostRoot(ctx, b.roots(), "/")
	if err == nil {
		b.root, b.rootAt = r, time.Now()
	}
	return r, err
}

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
		Record: backendkit.NewRecord(idPrefix, p.spec, b.guest.Hash), Engine: b.engine.Hash, Root: p.dir, Binds: p.binds,
	}
	r.Config = guestConfig(r.Record, p)
	return b.launch(ctx, r, b.engine, b.guest, "")
}

// guestConfig is what the guest is told at its birth.
func guestConfig(r backendkit.Record, p *plan) agent.Config {
	var img backendkit.ImageConfig
	if p.img != nil {
		img.Env, img.Dir = p.img.Config.Env, p.img.Config.WorkingDir
	}
	c := backendkit.GuestConfig(r, guestState, img)
	c.UID, c.GID, c.Processes = userUID, userGID, r.Spec.Limits.Processes
	// The guest enforces it also where no cgroup stands behind it; the capability is then still false.
	c.Memory = r.Spec.Limits.Memory
	for _, t := range backendkit.TmpfsLayout(r.Spec.Limits, guestState) {
		if t.Path == userHome {
			t.UID = userUID
		}
		c.Tmpfs = append(c.Tmpfs, t.Tmpfs)
	}
	return c
}

// launch makes the sandbox of a record, from a checkpoint if one is given. On failure nothing is left.
func (b *Backend) launch(ctx context.Context, r *record, eng, guest programs.Program, checkpoint string) (_ *machine, err error) {
	dir := b.sandboxes.Path(r.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, startError(err)
	}
	host, _ := b.limits()
	r.Cgroup = host != nil
	e := b.driver(eng.Path, r.Cgroup)
	cu := cleanup.Make(func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
		defer cancel()
		err = errors.Join(err, b.remove(clean, r.ID, r.Cgroup, e))
	})
	defer cu.Clean()
	if err := b.sandboxes.Save(r.ID, r); err != nil {
		return nil, startError(err)
	}
	lock, err := b.sandboxes.Attach(r.ID)
	if err != nil {
		return nil, startError(err)
	}
	cu.Add(lock.Release)
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
	if err := b.shared(r.ID).Create(sharedOf(checkpoint)); err != nil {
		return nil, startError(err)
	}
	pipes, err := fifo.MakeAll(dir)
	if err != nil {
		return nil, startError(err)
	}
	defer pipes.Close()
	// Again, and as late as possible: somebody may have put another directory or a link in a judged one's place,
	// since the snapshot was taken or just now.
	places, err := b.judgeAgain(r)
	if err != nil {
		return nil, err
	}
	defer places.close()
	if checkpoint == "" {
		err = e.run(ctx, r.ID, dir, pipes)
	} else {
		err = e.restore(ctx, r.ID, dir, checkpoint, pipes)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeCancelled, Op: "start sandbox", Message: "given up", Err: ctx.Err()}
		}
		b.forgetTrial()
		return nil, startError(err)
	}
	pipes.Close() // now: the guest holds its own ends, and their end must be seen
	if err := places.shown(e, r.ID); err != nil {
		return nil, err
	}
	m, err := b.open(r, e, lock)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m, nil
}

// bundleOf gives the OCI bundle of a record. A restored sandbox must get the same as the one it is a copy of,
// but for its cgroup.
func (b *Backend) bundleOf(r *record, guest programs.Program, group *cgroup) (*bundleSpec, error) {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return nil, startError(err)
	}
	oci := &bundleSpec{
		root: r.Root, binds: append(append([]bind(nil), r.Binds...),
			bind{Source: filepath.Dir(guest.Path), Target: guestMount},
			bind{Source: b.shared(r.ID).Dir, Target: sandbox.SharedDir}),
		hostname: "recluse", argv: []string{guestMount + "/" + filepath.Base(guest.Path)},
		env:          []string{agent.ConfigEnv + "=" + string(config), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=2"},
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
