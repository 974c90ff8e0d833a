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
	"github.com/recluse-dev/recluse/internal/hostroot"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

const (
	// guestMount is the directory inside that shows the guest's program.
	guestMount = "/.recluse"
	// guestState is the directory inside that only the guest uses.
	guestState = "/run/recluse"
	// bootWait is how long the process of the guest may take to appear.
	bootWait = 10 * time.Second
	// idPrefix is the prefix of sandbox IDs.
	idPrefix = "s"
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	b.sweeper.Once(ctx)
	p, err := b.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	if !spec.Cold && !b.opts.NoTemplates && len(spec.Mounts) == 0 && len(spec.Volumes) == 0 {
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

// plan describes a sandbox to make.
type plan struct {
	hostRoot
	spec sandbox.Spec
	img  *image.Image // nil: the spec has no image
	user v1.User
}

// prepare checks the spec and its mounts, and builds the root file system.
func (b *Backend) prepare(ctx context.Context, spec sandbox.Spec) (*plan, error) {
	user, err := specUser(spec)
	switch {
	case err != nil:
		return nil, err
	case spec.Options[Name] != nil:
		return nil, backend.NotSupported(Name, "use options of a spec", "remove the options from the spec")
	}
	if err := errors.Join(backendkit.CheckSpace(b.dir, spec), b.checkVolumes(spec)); err != nil {
		return nil, err
	}
	p := &plan{spec: spec, user: user}
	what, remedy := "the host's /usr", "use an image"
	own := hostroot.OwnTops
	if spec.ReadOnly {
		own = append([]string{"home"}, own...)
	}
	var r *hostRoot
	switch {
	case spec.Image != "":
		if p.img, err = b.image(ctx, spec.Image); err != nil {
			return nil, err
		}
		if spec.User == "" && !spec.ReadOnly {
			p.user = imageUser(p.img)
		}
		what, remedy = spec.Image, "use an image that contains a system"
		r, err = buildTreeRoot(ctx, b.roots, p.img.RootFS, own)
	case spec.RootFS != "":
		what, remedy = spec.RootFS, "use a directory that contains a system, such as an unpacked image"
		dir := ""
		if dir, err = filepath.Abs(spec.RootFS); err == nil {
			// The rules for mounts also apply to the root: "/" would show the whole host.
			dir, err = b.policy().Judge(dir)
		}
		if err == nil {
			r, err = buildTreeRoot(ctx, b.roots, dir, own)
		}
	default:
		r, err = b.defaultRoot(ctx, spec.AllowsRoot() && !spec.ReadOnly)
	}
	if err != nil {
		return nil, rootError(what, remedy, err)
	}
	p.hostRoot = *r
	return p, b.judgeMounts(ctx, p)
}

// rootKept is how long the default root is used without checking the host for changes. A check takes 5 ms, and
// sandboxes are often made in bursts.
const rootKept = 2 * time.Second

// defaultRoot returns the root file system that is built from this host. With packages, code can install packages of
// the host's distribution.
func (b *Backend) defaultRoot(ctx context.Context, packages bool) (*hostRoot, error) {
	b.rootMu.Lock()
	defer b.rootMu.Unlock()
	kept := &b.root
	if packages {
		kept = &b.packageRoot
	}
	if kept.root != nil && time.Since(kept.at) < rootKept && isDir(kept.root.dir) {
		return kept.root, nil
	}
	r, err := buildHostRoot(ctx, b.roots, "/", packages)
	if err == nil {
		*kept = keptRoot{r, time.Now()}
	}
	return r, err
}

// keptRoot is a default root, and when the host was last checked for changes.
type keptRoot struct {
	root *hostRoot
	at   time.Time
}

// rootError returns the error for something that cannot be the root file system. The remedy of a refused path takes
// precedence over remedy.
func rootError(what, remedy string, err error) error {
	if e, ok := errors.AsType[*hostpath.RefusedError](err); ok {
		remedy = cmp.Or(e.Remedy, remedy)
	}
	return &v1.Error{
		Code:    v1.CodeRootFS,
		Op:      "prepare root file system",
		Message: what + " cannot be used",
		Remedy:  remedy,
		Err:     err,
	}
}

// boot makes a sandbox without a template.
func (b *Backend) boot(ctx context.Context, p *plan) (*machine, error) {
	r := &record{
		Record: backendkit.NewRecord(idPrefix, p.spec, b.guest.Hash),
		Engine: b.engine.Hash,
		Root:   p.dir,
		Binds:  p.binds,

		Writable: !p.spec.ReadOnly,
	}
	r.Config = guestConfig(r.Record, p)
	return b.launch(ctx, r, b.engine, b.guest, "")
}

// specUser returns the user of a spec. It must be numeric, because the number decides which files of mounted
// directories code may change.
func specUser(spec sandbox.Spec) (v1.User, error) {
	u, err := v1.ParseUser(spec.User)
	switch {
	case err != nil:
		return u, err
	case u.Name == "root":
		return v1.User{}, nil
	case u.Name != "":
		return u, backend.NotSupported(Name, "run code as a named user", "use the numeric user ID, or use docker")
	}
	return u, nil
}

// imageUser returns the user of an image, or the default user if the image has none, has root, or names a user whom its
// /etc/passwd lacks.
func imageUser(img *image.Image) v1.User {
	user, group, _ := strings.Cut(img.Config.User, ":")
	uid, gid := lookUp(img, "passwd", user), lookUp(img, "group", group)
	if gid == nil {
		gid = uid
	}
	if len(uid) == 0 || len(gid) == 0 {
		return v1.DefaultUser
	}
	u, err := v1.ParseUser(uid[0] + ":" + gid[len(gid)-1])
	if err != nil || u.UID == 0 || u.GID == 0 {
		return v1.DefaultUser
	}
	return u
}

// lookUp returns the number of a user or group and, for a user, also that of its group. It returns nil if there is
// none.
func lookUp(img *image.Image, file, name string) []string {
	if name == "" {
		return nil
	}
	text := ""
	if root, err := os.OpenRoot(img.RootFS); err == nil { // a link must not lead out of the image
		defer func() { _ = root.Close() }()
		if data, err := root.ReadFile(filepath.Join("etc", file)); err == nil {
			text = string(data)
		}
	}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || f[0] != name && f[2] != name {
			continue
		}
		if file == "passwd" {
			return f[2:4]
		}
		return f[2:3]
	}
	if _, err := strconv.ParseUint(name, 10, 31); err == nil {
		return []string{name}
	}
	return nil
}

// guestConfig returns the configuration that the guest starts with.
func guestConfig(r backendkit.Record, p *plan) launch.Config {
	var img backendkit.ImageConfig
	if p.img != nil {
		img.Env, img.Dir = p.img.Config.Env, p.img.Config.WorkingDir
	}
	c := backendkit.GuestConfig(r, guestState, img)
	user := p.user
	c.Processes = r.Spec.Limits.Processes
	backendkit.SetUser(&c, r.Spec, user)
	// The guest enforces the memory limit even without cgroups. The capability is still false then.
	c.Memory = r.Spec.Limits.Memory
	c.Network = true
	if !r.Spec.ReadOnly {
		c.Disk = true
		backendkit.OnDisk(&c, user, r.Spec.Limits, guestState)
		return c
	}
	work := p.missing(c.Dir)
	for _, t := range backendkit.TmpfsLayout(r.Spec.Limits, guestState, work) {
		if t.Path == v1.DefaultHome || t.Path == work {
			t.UID, t.GID = user.UID, user.GID
		}
		c.Tmpfs = append(c.Tmpfs, t.Tmpfs)
	}
	return c
}

// missing returns dir if the root file system, which is read-only, does not contain it, else "". It returns "" for a
// directory below a mount or a tmpfs, because the guest creates that one.
func (p *plan) missing(dir string) string {
	dir = filepath.Clean(dir)
	mounted := func(m sandbox.Mount) bool { return backendkit.Below(dir, m.Path) }
	inVolume := func(v sandbox.Volume) bool { return backendkit.Below(dir, v.Path) }
	if backendkit.InMemory(dir) || slices.ContainsFunc(p.spec.Mounts, mounted) ||
		slices.ContainsFunc(p.spec.Volumes, inVolume) {
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
		case err != nil || !info.IsDir(): // a symbolic link leads to another place inside
			return ""
		}
	}
	return ""
}

// launch makes the sandbox of a record, from a checkpoint if one is given. If it fails, it removes everything it made.
func (b *Backend) launch(
	ctx context.Context, r *record, eng, guest programs.Program, checkpoint string,
) (_ *machine, err error) {
	dir := b.sandboxes.Path(r.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, startError(err)
	}
	host, _ := b.limits()
	r.Cgroup = host != nil
	e := b.driver(eng.Path, r.Cgroup)
	e.mounts = len(r.Spec.Volumes) > 0
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
			memory: r.Spec.Limits.Memory,
			pids:   int64(4*r.Spec.Limits.Processes + 1024), // the limit of CPUs follows in applyLimits
		})
		if err != nil {
			return nil, startError(err)
		}
	}
	pipes, err := fifo.MakeWithStderr(dir)
	if err != nil {
		return nil, startError(err)
	}
	defer pipes.Close()
	mounts, devices, err := b.takeVolumes(ctx, r)
	if err != nil {
		return nil, startError(err)
	}
	defer closeAll(devices)
	if len(mounts) > 0 { // now with r.Volumes
		if err := b.sandboxes.Save(r.ID, r); err != nil {
			return nil, startError(err)
		}
	}
	oci, err := b.bundleOf(r, guest, group)
	if err != nil {
		return nil, err
	}
	oci.volumes = mounts
	if err := oci.write(dir); err != nil {
		return nil, startError(err)
	}
	if err := b.shared(r.ID).Create(sharedOf(checkpoint)); err != nil {
		return nil, startError(err)
	}
	// Check the paths again, as late as possible: another program may have replaced a checked directory by another
	// directory or a link, since the snapshot was taken or a moment ago.
	paths, err := b.recheckPaths(r)
	if err != nil {
		return nil, err
	}
	defer paths.close()
	if checkpoint == "" {
		err = e.run(ctx, r.ID, dir, r.disk(), pipes)
	} else {
		err = e.restore(ctx, r.ID, dir, checkpoint, r.disk(), pipes)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, &v1.Error{Code: v1.CodeCancelled, Op: "start sandbox", Message: "cancelled", Err: ctx.Err()}
		}
		if openInVolume(r, err) {
			return nil, copyError(err)
		}
		b.forgetTrial()
		return nil, startError(err)
	}
	pipes.Close() // now: the guest holds its own ends, and this program must notice when the guest closes them
	if err := paths.verifyMounted(e, r.ID); err != nil {
		return nil, err
	}
	m, err := b.open(r, e, lock)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m, nil
}

// bundleOf returns the OCI bundle of a record. The bundle of a restored sandbox must be the same as that of the
// original, except for the cgroup.
func (b *Backend) bundleOf(r *record, guest programs.Program, group *cgroup) (*bundleSpec, error) {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return nil, startError(err)
	}
	oci := &bundleSpec{
		root: r.Root,
		disk: r.disk(),
		binds: []bind{
			{Source: filepath.Dir(guest.Path), Target: guestMount},
			{Source: b.shared(r.ID).Dir, Target: sandbox.SharedDir},
		},
		hostname: "recluse",
		argv:     []string{guestMount + "/" + filepath.Base(guest.Path)},
		env: []string{
			launch.ConfigEnv + "=" + string(config),
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"GOMAXPROCS=2",
		},
		capabilities: guestCapabilities,
		openFiles:    16384,
		emptyCgroups: r.Config.Root,
	}
	if r.Writable {
		oci.parts = r.Binds
	} else {
		oci.binds = append(slices.Clone(r.Binds), oci.binds...)
	}
	for _, t := range r.Config.Tmpfs {
		// The root lacks this directory, so it needs a mount point. The guest mounts its own tmpfs over it.
		if t.Path == r.Config.Dir && !backendkit.InMemory(t.Path) {
			oci.mounts = append(oci.mounts, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs"})
		}
	}
	for _, m := range r.Spec.Mounts {
		oci.binds = append(oci.binds, bind{Source: m.Host, Target: m.Path, Writable: m.Writable})
	}
	for i, v := range r.Volumes {
		oci.binds = append(oci.binds, bind{Source: v.Source, Target: r.Spec.Volumes[i].Path, Writable: v.Writable})
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
	e := &v1.Error{
		Code:    v1.CodeStartFailed,
		Op:      "start sandbox",
		Message: "the engine could not make the sandbox",
		Remedy:  "run recluse doctor to find the cause",
		Err:     err,
	}
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left") {
		e.Code, e.Message, e.Remedy = v1.CodeDiskFull, "the disk of the data directory is full", "free disk space"
	}
	return e
}

// buildTreeRoot returns the root file system made from a host directory, such as an unpacked image. It is our skeleton
// with read-only bind mounts of the directory's top-level entries. The directory itself is never written to, not even
// for mount points.
func buildTreeRoot(ctx context.Context, cache, source string, own []string) (*hostRoot, error) {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil, err
	}
	var copies []hostEntry
	var binds []bind
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(own, name) {
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
		return nil, errors.New("it contains no directory")
	}
	return buildRoot(ctx, cache, copies, binds)
}

// policy returns the rules for host paths that may appear inside. Besides the default rules, it refuses our own
// directories: one contains the tokens and the memory of sandboxes, and the engine is executed from the other.
func (b *Backend) policy() *hostpath.Policy {
	p := hostpath.Default()
	p.Allow = b.opts.AllowMounts
	p.Refuse(filepath.Dir(b.dir), "recluse's sandboxes and snapshots")
	p.Refuse(b.cache, "recluse's programs and images")
	return p
}

// checkedPaths holds an open handle on each host path that a sandbox mounts by choice of the caller. The keys are the
// paths inside.
type checkedPaths map[string]*os.File

func (c checkedPaths) close() {
	for _, f := range c {
		_ = f.Close() // O_PATH: nothing to flush
	}
}

// recheckPaths opens the host paths of a record. It fails if a path no longer is what was checked when the first
// sandbox of the record was made.
func (b *Backend) recheckPaths(r *record) (_ checkedPaths, err error) {
	if len(r.Spec.Mounts) == 0 && r.Spec.RootFS == "" {
		return nil, nil // the caller chose no paths
	}
	c := checkedPaths{}
	defer func() {
		if err != nil {
			c.close()
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
			return nil, hostpath.MountError(path, fmt.Errorf("%s now leads to %s", path, resolved))
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
			c[bound.Target] = os.NewFile(uintptr(fd), bound.Source)
		}
	}
	for _, m := range r.Spec.Mounts {
		f, err := same(m.Host)
		if err != nil {
			return nil, err
		}
		if hidden := c[m.Path]; hidden != nil {
			_ = hidden.Close()
		}
		c[m.Path] = f
	}
	return c, nil
}

// verifyMounted verifies that the engine has mounted the checked directories. The engine takes path names, so another
// program may have replaced a directory after the check. The root of the gofer is what the sandbox sees.
func (c checkedPaths) verifyMounted(e *engine, id string) error {
	if len(c) == 0 {
		return nil
	}
	st, err := e.state(id)
	if err != nil {
		return startError(err)
	}
	for target, f := range c {
		want, err := f.Stat()
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
		got, err := os.Stat(filepath.Join("/proc", strconv.Itoa(st.GoferPid), "root", target))
		if err == nil && !os.SameFile(want, got) {
			err = errors.New("the directory was replaced while the sandbox started")
		}
		if err != nil {
			return hostpath.MountError(f.Name(), err)
		}
	}
	return nil
}

// judgeMounts resolves the host directories of the mounts and refuses those that the rules do not allow. It also adds
// the mount points to the root.
func (b *Backend) judgeMounts(ctx context.Context, p *plan) error {
	if len(p.spec.Mounts) == 0 && len(p.spec.Volumes) == 0 {
		return nil
	}
	for _, m := range p.spec.Mounts {
		if m.Writable && b.asUser() {
			// A new file would have to belong to the user inside, but the user namespace of an ordinary user has only
			// one user.
			return backend.NotSupported(Name, "mount "+m.Host+" writable",
				"mount it read-only and copy files out, or run recluse as root")
		}
	}
	var err error
	if p.spec.Mounts, err = b.policy().Resolve(p.spec.Mounts); err != nil {
		return err
	}
	// The root is read-only, so it must contain the mount points from the start.
	places := slices.Clone(p.binds)
	for _, m := range p.spec.Mounts {
		places = append(places, bind{Target: m.Path})
	}
	for _, v := range p.spec.Volumes {
		places = append(places, bind{Target: v.Path})
	}
	r, err := buildRoot(ctx, b.roots, p.entries, places)
	if err != nil {
		return rootError("the root with its mounts", "", err)
	}
	p.dir = r.dir
	return nil
}

// image downloads and unpacks an image, once.
func (b *Backend) image(ctx context.Context, ref string) (*image.Image, error) {
	opts := image.Options{}
	if b.opts.Progress != nil {
		opts.Progress = func(p image.Progress) { b.opts.Progress("image "+ref+": "+string(p.Phase), p.Bytes, p.Total) }
	}
	img, err := b.images.Get(ctx, ref, opts)
	if err != nil && ctx.Err() != nil {
		err = &v1.Error{Code: v1.CodeCancelled, Op: "get image", Message: "cancelled", Err: err}
	}
	return img, err
}
