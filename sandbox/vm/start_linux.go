package vm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

const (
	// idPrefix begins the IDs of sandboxes.
	idPrefix = "v-"
	// guestState is the directory inside that only the guest uses.
	guestState = "/run/recluse"
	// kernelMemory is the memory of a machine beyond the limit of the sandbox, for its kernel and the guest.
	kernelMemory = 128 << 20
	// layerFiles bounds the files in the layer over the root file system.
	layerFiles = 4096
	// layerSize bounds that layer. Code can write to it only where the image belongs to its user.
	layerSize = 16 << 20
	// diskUnit is the size of a sector.
	diskUnit = 512
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	m, err := b.start(ctx, spec)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, cancelled("start sandbox", errors.Join(ctx.Err(), err))
	case err != nil:
		return nil, err
	}
	return m, nil
}

func cancelled(op string, err error) error {
	return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "cancelled", Err: err}
}

// plan returns the record of a new sandbox and its monitor.
func (b *Backend) plan(ctx context.Context, spec sandbox.Spec) (*record, monitor, error) {
	if err := checkSupported(spec); err != nil {
		return nil, nil, err
	}
	kvm, err := b.accelerated()
	if err != nil {
		return nil, nil, err
	}
	mon, version, err := b.monitor(ctx, kvm)
	if err != nil {
		return nil, nil, err
	}
	p, k, err := b.prepared()
	machine := ""
	if err == nil {
		if err = k.fits(mon); err == nil {
			machine, err = b.machineType(mon, k)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	b.sweeper.Once(ctx)
	root, img, err := b.root(ctx, spec, p)
	if err != nil {
		return nil, nil, err
	}
	initramfs, err := b.initramfs(ctx, k, b.guest.Path, b.guest.Hash)
	if err != nil {
		return nil, nil, startError(err)
	}
	r := &record{
		Record:    backendkit.NewRecord(idPrefix, spec, b.guest.Hash),
		Monitor:   mon.name(),
		Program:   mon.program(),
		Version:   version,
		Kernel:    k.id,
		Initramfs: filepath.Base(initramfs),
		Root:      root,
		KVM:       kvm,
		Machine:   machine,
	}
	parts := []string{r.Monitor, r.Version, r.Machine, r.Initramfs, r.Root, fmt.Sprint(kvm)}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	r.Hash = hex.EncodeToString(sum[:])
	if r.Disk = !spec.ReadOnly && diskMissing(k) == nil; r.Disk {
		r.Spec.Limits = r.Spec.Storage(true)
		if err := backendkit.CheckSpace(b.dir, r.Spec); err != nil {
			return nil, nil, startError(err)
		}
	}
	r.Config = guestConfig(r, img, k.network)
	r.Config.Vsock = kinds[r.Monitor].vsock
	return r, mon, nil
}

func (b *Backend) start(ctx context.Context, spec sandbox.Spec) (*machine, error) {
	r, mon, err := b.plan(ctx, spec)
	if err != nil {
		return nil, err
	}
	m, err := b.make(ctx, r, mon)
	if err == nil {
		b.proof.Renew()
		if h, now := b.examine(ctx); h.OK && r.KVM {
			b.proof.Keep(now)
		}
	} else if ctx.Err() == nil {
		b.proof.Forget()
	}
	return m, err
}

// make makes the sandbox of a record, from its template if it may.
func (b *Backend) make(ctx context.Context, r *record, mon monitor) (*machine, error) {
	if !r.Spec.Cold && !b.opts.NoTemplates {
		m, err := b.startFromTemplate(ctx, r, mon)
		if err == nil || ctx.Err() != nil || !errors.Is(err, errNoTemplate) {
			return m, err
		}
	}
	return b.launch(ctx, r, mon, "")
}

// checkSupported returns an error if the spec requires what a machine cannot do.
func checkSupported(spec sandbox.Spec) error {
	_, err := specUser(spec)
	switch {
	case err != nil:
		return err
	case len(spec.Mounts) > 0:
		return backend.NotSupported(Name, "mount directories", "copy the files in, or use the gvisor backend")
	case len(spec.Volumes) > 0:
		return backend.NotSupported(Name, "mount named volumes", "use the docker backend")
	case spec.Options[Name] != nil:
		return backend.NotSupported(Name, "use options of a spec", "remove the options from the spec")
	case spec.Limits.CPUs != math.Trunc(spec.Limits.CPUs):
		return backend.NotSupported(Name, "limit CPUs to a fraction", "use a whole number of CPUs, or the gvisor backend")
	}
	return nil
}

// specUser returns the user of a spec. It must be numeric, as on the gvisor backend.
func specUser(spec sandbox.Spec) (v1.User, error) {
	u, err := v1.ParseUser(spec.User)
	switch {
	case err != nil:
		return u, err
	case u.Name != "" && !u.IsRoot():
		return u, backend.NotSupported(Name, "run code as a named user", "use the numeric user ID, or use docker")
	case spec.AllowsRoot():
		return u, backend.NotSupported(Name, "let code become root", "use gvisor")
	}
	return u, nil
}

// root returns the file name of the root image of a spec, and the configuration of its container image.
func (b *Backend) root(ctx context.Context, spec sandbox.Spec, p *Prepared) (string, backendkit.ImageConfig, error) {
	none := backendkit.ImageConfig{}
	fail := func(what, remedy string, err error) (string, backendkit.ImageConfig, error) {
		if _, ok := errors.AsType[*v1.Error](err); ok {
			return "", none, err
		}
		return "", none, &v1.Error{
			Code: v1.CodeRootFS, Op: "make root file system", Message: what + " cannot be used", Remedy: remedy, Err: err,
		}
	}
	switch {
	case spec.Image != "":
		opts := image.Options{}
		if b.opts.Progress != nil {
			opts.Progress = func(p image.Progress) {
				b.opts.Progress("image "+spec.Image+": "+string(p.Phase), p.Bytes, p.Total)
			}
		}
		img, err := b.images.Get(ctx, spec.Image, opts)
		if err != nil {
			return fail(spec.Image, "", err)
		}
		s, err := dirSource(spec.Image, img.RootFS)
		if err != nil {
			return fail(spec.Image, "use an image that contains a system", err)
		}
		_, digest, _ := strings.Cut(img.Digest, ":")
		name, err := b.rootImage(ctx, s, "image-"+digest[:min(32, len(digest))]+"-"+rootVersion)
		if err != nil {
			return fail(spec.Image, "", err)
		}
		return name, backendkit.ImageConfig{Env: img.Config.Env, Dir: img.Config.WorkingDir}, nil
	case spec.RootFS != "":
		const remedy = "use a directory that contains a system, such as an unpacked image"
		name, err := b.rootOfDir(ctx, spec.RootFS)
		if err != nil {
			return fail(spec.RootFS, remedy, err)
		}
		return name, none, nil
	default:
		return p.Root, none, nil
	}
}

// rootOfDir returns the file name of the root image of a directory. The rules for mounts apply: "/" would show the
// whole host.
func (b *Backend) rootOfDir(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	policy := hostpath.Default()
	policy.Refuse(filepath.Dir(b.dir), "recluse's sandboxes and snapshots")
	if dir, err = policy.Judge(dir); err != nil {
		return "", err
	}
	return b.rootOfTree(ctx, dir, dir)
}

// rootOfTree is rootOfDir for a directory of ours.
func (b *Backend) rootOfTree(ctx context.Context, what, dir string) (string, error) {
	s, err := dirSource(what, dir)
	if err != nil {
		return "", err
	}
	return b.rootImage(ctx, s, "")
}

// guestConfig returns the configuration that the guest starts with.
func guestConfig(r *record, img backendkit.ImageConfig, network bool) launch.Config {
	c := backendkit.GuestConfig(r.Record, guestState, img)
	user, _ := specUser(r.Spec) // Start has rejected invalid users
	c.UID, c.GID, c.Processes = user.UID, user.GID, r.Spec.Limits.Processes
	c.Memory, c.Machine, c.Network = r.Spec.Limits.Memory, true, network
	if r.Disk {
		backendkit.OnDisk(&c, user, r.Spec, guestState)
		return c
	}
	for _, t := range backendkit.TmpfsLayout(r.Spec.Limits, guestState, "") {
		if t.Path == v1.DefaultHome {
			t.UID, t.GID = user.UID, user.GID
		}
		c.Tmpfs = append(c.Tmpfs, t.Tmpfs)
	}
	return c
}

// launch makes the sandbox of a record, from the directory with the state of a machine if one is given. If it fails, it
// removes everything it made.
func (b *Backend) launch(ctx context.Context, r *record, mon monitor, from string) (_ *machine, err error) {
	cu := cleanup.Make(func() { err = errors.Join(err, b.Stop(context.WithoutCancel(ctx), r.ID)) })
	defer cu.Clean()
	if err := b.makeDirs(ctx, r, from); err != nil {
		return nil, startError(err)
	}
	lock, err := b.store.Attach(r.ID)
	if err != nil {
		return nil, startError(err)
	}
	cu.Add(lock.Release)
	if err := b.store.Save(r.ID, r); err != nil { // before the machine: Stop must find it after a kill
		return nil, startError(err)
	}
	hw := b.hardware(r)
	for _, path := range []string{filepath.Dir(hw.kernel), hw.initramfs, hw.root} {
		touch(path)
	}
	hw.from = from
	// Opened before the monitor can replace it.
	config, err := os.OpenFile(filepath.Join(hw.dir, configFile), os.O_WRONLY, 0)
	if err != nil {
		return nil, startError(err)
	}
	defer config.Close()
	err = mon.start(ctx, hw, func(pid int) error {
		r.Process = backendkit.ProcessOf(pid)
		return b.store.Save(r.ID, r)
	})
	if err == nil {
		err = erase(config)
	}
	if err != nil {
		return nil, startError(err)
	}
	m, err := b.open(ctx, r, mon, lock)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m, nil
}

// erase fills the disk with the configuration with zeros. A monitor that starts its machine again after the guest has
// ended would otherwise continue with an empty one; without a configuration, the guest ends the machine.
func erase(config *os.File) error {
	info, err := config.Stat()
	if err == nil {
		_, err = config.WriteAt(make([]byte, info.Size()), 0)
	}
	return err
}

// makeDirs makes the directories of a sandbox, the disk with the configuration of its guest, and the writable disk,
// which is copied from the directory with a saved state.
func (b *Backend) makeDirs(ctx context.Context, r *record, from string) error {
	dir := b.store.Path(r.ID, machineDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(launch.Boot{Guest: r.Config, Disk: r.Disk, LayerSize: layerSize, LayerFiles: layerFiles})
	if err != nil {
		return err
	}
	disk := append(text, make([]byte, (diskUnit-len(text)%diskUnit)%diskUnit)...)
	path := filepath.Join(dir, configFile)
	if err := os.WriteFile(path, disk, 0o600); err != nil {
		return err
	}
	own := []string{dir, path}
	if r.Disk {
		disk := filepath.Join(dir, diskFile)
		if err := newDisk(ctx, disk, r.Spec.Limits, from); err != nil {
			return err
		}
		own = append(own, disk)
	}
	if os.Geteuid() != 0 {
		return nil
	}
	var number [4]byte
	_, _ = rand.Read(number[:]) // never fails
	r.UID = firstUID + int(binary.NativeEndian.Uint32(number[:])%countUID)
	for _, path := range own {
		err = errors.Join(err, os.Chown(path, r.UID, r.UID))
	}
	return err
}

// newDisk makes the writable disk of a machine: an empty one, or a copy of that of a saved state.
func newDisk(ctx context.Context, path string, l sandbox.Limits, from string) error {
	if from == "" {
		return makeDisk(ctx, path, l.Disk, 2*l.Files())
	}
	f, err := os.Open(filepath.Join(from, diskFile))
	if err != nil {
		return err
	}
	defer f.Close()
	return copyDisk(f, path)
}

// diskMissing returns why machines have no writable disk.
func diskMissing(k *kernel) error {
	if !k.disk {
		return errors.New("the kernel " + k.release + " lacks ext4; run recluse vm setup again")
	}
	_, err := findDiskTool()
	return err
}

func startError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err
	}
	e := &v1.Error{
		Code: v1.CodeStartFailed, Op: "start sandbox", Message: "the machine could not be started",
		Remedy: "run recluse doctor --backend vm to find the cause", Err: err,
	}
	if errors.Is(err, syscall.ENOSPC) {
		e.Code, e.Message, e.Remedy = v1.CodeDiskFull, "the disk of the data directory is full", "free disk space"
	}
	return e
}
