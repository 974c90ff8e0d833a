//go:build linux

package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/launch"
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
		if code := v1.CodeOf(err); code != v1.CodeSnapshotStale && code != v1.CodeSnapshotCorrupt && code != codeNoTemplate {
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
	if _, err := specUser(spec); err != nil {
		return nil, err
	}
	switch {
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
		r, err = buildTreeRoot(ctx, b.roots, p.img.RootFS)
	case spec.RootFS != "":
		what, remedy = spec.RootFS, "name a directory that holds a system, such as an unpacked image"
		dir := ""
		if dir, err = filepath.Abs(spec.RootFS); err == nil {
			// What may not be mounted may not be the root either: "/" would show all of the host.
			dir, err = b.policy().Judge(dir)
		}
		if err == nil {
			r, err = buildTreeRoot(ctx, b.roots, dir)
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

// rootKept is how long what was seen of the host is believed. A look takes 5 ms, and sandboxes come in bursts.
const rootKept = 2 * time.Second

// defaultRoot returns the root made from this host.
func (b *Backend) defaultRoot(ctx context.Context) (*hostRoot, error) {
	b.rootMu.Lock()
	defer b.rootMu.Unlock()
	if b.root != nil && time.Since(b.rootAt) < rootKept && isDir(b.root.dir) {
		return b.root, nil
	}
	r, err := buildHostRoot(ctx, b.roots, "/")
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
	return &v1.Error{Code: v1.CodeRootFS, Op: "prepare root file system", Message: what + " cannot be used as one", Remedy: remedy, Err: err}
}

// boot makes a sandbox the long way.
func (b *Backend) boot(ctx context.Context, p *plan) (*machine, error) {
	r := &record{
		Record: backendkit.NewRecord(idPrefix, p.spec, b.guest.Hash), Engine: b.engine.Hash, Root: p.dir, Binds: p.binds,
	}
	r.Config = guestConfig(r.Record, p)
	return b.launch(ctx, r, b.engine, b.guest, "")
}

// specUser returns the user of a spec: a number, which decides whose files of mounted directories code may change.
func specUser(spec sandbox.Spec) (v1.User, error) {
	u, err := v1.ParseUser(spec.User)
	switch {
	case err != nil:
		return u, err
	case u.Name != "":
		return u, backend.NotSupported(Name, "run code as a user given by name", "give the user's number; or use docker")
	case u.UID == 0 || u.GID == 0:
		return u, backend.NotSupported(Name, "run code as root, or in root's group", "use another user; or use docker, with docker.unsafe_root")
	}
	return u, nil
}

// guestConfig is what the guest is told at its birth.
func guestConfig(r backendkit.Record, p *plan) launch.Config {
	var img backendkit.ImageConfig
	if p.img != nil {
		img.Env, img.Dir = p.img.Config.Env, p.img.Config.WorkingDir
	}
	c := backendkit.GuestConfig(r, guestState, img)
	user, _ := specUser(r.Spec) // prepare has refused a bad one
	c.UID, c.GID, c.Processes = user.UID, user.GID, r.Spec.Limits.Processes
	// The guest enforces it also where no cgroup stands behind it; the capability is then still false.
	c.Memory = r.Spec.Limits.Memory
	work := p.missing(c.Dir)
	for _, t := range backendkit.TmpfsLayout(r.Spec.Limits, guestState, work) {
		if t.Path == v1.DefaultHome || t.Path == work {
			t.UID, t.GID = user.UID, user.GID
		}
		c.Tmpfs = append(c.Tmpfs, t.Tmpfs)
	}
	return c
}

// missing returns the working directory if the root file system, which is read-only, lacks it; otherwise "". One below a mount or in memory is
// left to the guest.
func (p *plan) missing(dir string) string {
	dir = filepath.Clean(dir)
	if backendkit.InMemory(dir) || slices.ContainsFunc(p.spec.Mounts, func(m sandbox.Mount) bool { return backendkit.Below(dir, m.Path) }) {
		return ""
	}
	path := ""
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		path += "/" + name
		onHost := filepath.Join(p.dir, path)
		for _, b := range p.binds {
			if backendkit.Below(path, b.Target) {
				onHost = filepath.Join(b.Source, strings.TrimPrefix(path, b.Target))
			}
		}
		info, err := os.Lstat(onHost)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return dir
		case err != nil || !info.IsDir(): // a link leads somewhere inside
			return ""
		}
	}
	return ""
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
	pipes, err := fifo.MakeWithStderr(dir)
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
			return nil, &v1.Error{Code: v1.CodeCancelled, Op: "start sandbox", Message: "given up", Err: ctx.Err()}
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
		env:          []string{launch.ConfigEnv + "=" + string(config), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=2"},
		capabilities: guestCapabilities, openFiles: 16384,
	}
	for _, t := range r.Config.Tmpfs {
		if t.Path == r.Config.Dir && !backendkit.InMemory(t.Path) { // it is no part of the root; the guest mounts its own over it
			oci.mounts = append(oci.mounts, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs"})
		}
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
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err
	}
	e := &v1.Error{Code: v1.CodeStartFailed, Op: "start sandbox", Message: "the engine could not make it", Err: err, Remedy: "recluse doctor looks for the cause"}
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left") {
		e.Code, e.Message, e.Remedy = v1.CodeDiskFull, "the disk of the data directory is full", "free some space"
	}
	return e
}

// ownTops are the top-level names that every sandbox has as its own, whatever its root file system holds there.
var ownTops = []string{"proc", "sys", "dev", "tmp", "run", "home", ".recluse"}

// buildTreeRoot gives the root file system made of a directory of the host, e.g. an unpacked image: our skeleton, with the directory's
// top-level entries bound read-only onto it. The directory itself is never written to, also not for mount points.
func buildTreeRoot(ctx context.Context, cache, source string) (*hostRoot, error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil, err
	}
	var copies []hostEntry
	var binds []bind
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(ownTops, name) {
			continue
		}
		path := filepath.Join(source, name)
		switch {
		case e.IsDir():
			binds = append(binds, bind{Source: path, Target: "/" + name})
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return nil, err
			}
			copies = append(copies, hostEntry{path: path, target: name, mode: fs.ModeSymlink, link: link})
		}
	}
	if len(binds) == 0 {
		return nil, errors.New("it holds no directory")
	}
	return buildRoot(ctx, cache, copies, binds)
}

// policy says what of this host may be seen inside: besides the usual, not our own directories. Sandboxes' tokens and memory lie
// in one, and the engine is executed from the other.
func (b *Backend) policy() *hostpath.Policy {
	p := hostpath.Default()
	p.Allow = b.opts.AllowMounts
	p.Refuse(filepath.Dir(b.dir), "recluse's sandboxes and snapshots")
	p.Refuse(b.cache, "recluse's programs and images")
	return p
}

// judged is what of the host a sandbox is to show by the caller's choice: a handle on each place, by where it appears inside.
type judged map[string]*os.File

func (j judged) close() {
	for _, f := range j {
		_ = f.Close() // only a handle
	}
}

// judgeAgain refuses a record whose places on the host no longer are what was judged when its first sandbox was made.
func (b *Backend) judgeAgain(r *record) (_ judged, err error) {
	if len(r.Spec.Mounts) == 0 && r.Spec.RootFS == "" {
		return nil, nil // nothing of the caller's choice
	}
	j := judged{}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	policy := b.policy()
	same := func(path string) (*os.File, error) {
		f, resolved, err := policy.Open(path)
		if err != nil {
			return nil, hostpath.MountError(path, err)
		}
		if resolved != path {
			_ = f.Close()
			return nil, hostpath.MountError(path, fmt.Errorf("%s has become %s", path, resolved))
		}
		return f, nil
	}
	if r.Spec.RootFS != "" {
		top := ""
		for _, bound := range r.Binds { // the entries of the caller's root
			if dir := filepath.Dir(bound.Source); dir != top {
				f, err := same(dir)
				if err != nil {
					return nil, err
				}
				_ = f.Close()
				top = dir
			}
			fd, err := unix.Open(bound.Source, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, hostpath.MountError(bound.Source, err)
			}
			j[bound.Target] = os.NewFile(uintptr(fd), bound.Source)
		}
	}
	for _, m := range r.Spec.Mounts {
		f, err := same(m.Host)
		if err != nil {
			return nil, err
		}
		if hidden := j[m.Path]; hidden != nil {
			_ = hidden.Close()
		}
		j[m.Path] = f
	}
	return j, nil
}

// shown makes sure that the engine has mounted what was judged: it takes names, and somebody may have been quicker. The gofer's root is
// what the sandbox sees.
func (j judged) shown(e *engine, id string) error {
	if len(j) == 0 {
		return nil
	}
	st, err := e.state(id)
	if err != nil {
		return startError(err)
	}
	for target, f := range j {
		want, err := f.Stat()
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
		got, err := os.Stat(filepath.Join("/proc", strconv.Itoa(st.GoferPid), "root", target))
		if err == nil && !os.SameFile(want, got) {
			err = errors.New("something else was put in its place while the sandbox started")
		}
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
	}
	return nil
}

// judgeMounts resolves the host's directories that the caller wants inside, and refuses those that must not be seen there.
func (b *Backend) judgeMounts(ctx context.Context, p *plan) error {
	if len(p.spec.Mounts) == 0 {
		return nil
	}
	for _, m := range p.spec.Mounts {
		if m.Writable && b.asUser() {
			// A new file would have to belong to the user inside, and an ordinary user's namespace knows only one.
			return backend.NotSupported(Name, "mount "+m.Host+" writable",
				"without root mounts are read-only: copy files out instead, or run as root")
		}
	}
	var err error
	if p.spec.Mounts, err = b.policy().Resolve(p.spec.Mounts); err != nil {
		return err
	}
	// The root is read-only, so the places to mount at must be in it from the start.
	places := slices.Clone(p.binds)
	for _, m := range p.spec.Mounts {
		places = append(places, bind{Target: m.Path})
	}
	r, err := buildRoot(ctx, b.roots, p.entries, places)
	if err != nil {
		return rootError("the root with its mounts", "", err)
	}
	p.dir = r.dir
	return nil
}

// image gets and unpacks an image, once.
func (b *Backend) image(ctx context.Context, ref string) (*image.Image, error) {
	opts := image.Options{}
	if b.opts.Progress != nil {
		opts.Progress = func(p image.Progress) { b.opts.Progress("image "+ref+": "+string(p.Phase), p.Bytes, p.Total) }
	}
	img, err := b.images.Get(ctx, ref, opts)
	if err != nil && ctx.Err() != nil {
		err = &v1.Error{Code: v1.CodeCancelled, Op: "get image", Message: "given up", Err: err}
	}
	return img, err
}
