package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/internal/pidfd"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend makes sandboxes in virtual machines.
type Backend struct {
	opts    Options
	dir     string // data, private to this user
	guest   bundle.Program
	images  *image.Store
	store   backendkit.Store
	sweeper backendkit.Sweeper
	trials  backendkit.Trials
	proof   backendkit.Proof[proof]

	probe    func() error    // why KVM cannot be used
	closing  context.Context // ends with Close
	close    context.CancelFunc
	trialing sync.WaitGroup

	snaps    backendkit.Snapshots
	versions sync.Map // of monitors; keys are program, values strings

	mu       sync.Mutex
	machines map[string]*machine // guarded by mu; the sandboxes to which this program is attached
}

const (
	sweepLimit = 30 * time.Second
	// killWait is how long the kernel may take to end a killed monitor.
	killWait = 10 * time.Second
)

// setupFile is the name of the file with Prepared.
const setupFile = "setup.json"

// New returns the backend. Health reports whether it works.
func New(opts Options) (*Backend, error) {
	b := &Backend{opts: opts, dir: opts.DataDir, probe: probeKVM, machines: map[string]*machine{}}
	var err error
	if b.dir == "" {
		if b.dir, err = xdg.Data(); err != nil {
			return nil, err
		}
	}
	cache := opts.CacheDir
	if cache == "" {
		if cache, err = xdg.Cache(); err != nil {
			return nil, err
		}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	b.dir = filepath.Join(b.dir, Name)
	programs, err := bundle.Open(cache)
	if err != nil {
		return nil, err
	}
	if b.guest, err = programs.Choose(context.Background(), opts.Guest, bundle.GuestName); err != nil {
		return nil, &v1.Error{Code: v1.CodeEngineMissing, Op: "find the guest", Err: err}
	}
	b.images = &image.Store{Dir: cache}
	b.store = backendkit.Store{Dir: filepath.Join(b.dir, "sandboxes"), Backend: Name}
	b.snaps = backendkit.Snapshots{
		Dir: filepath.Join(b.dir, "snapshots"), State: stateDir, Disk: diskFile, Format: snapshotFormat,
	}
	b.closing, b.close = context.WithCancel(context.Background())
	b.proof.Path = filepath.Join(b.dir, "trial.json")
	b.trials = backendkit.Trials{Limit: trialLimit, Go: b.inBackground}
	b.sweeper = backendkit.Sweeper{Sweep: b.sweep, Limit: sweepLimit}
	return b, nil
}

// check returns an error for invalid options.
func (o *Options) check() error {
	bad := func(key, value, valid string) error {
		return &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "configure the vm backend",
			Message: fmt.Sprintf("invalid %s %q", key, value), Remedy: "use one of " + valid,
		}
	}
	if o.Monitor != "" && o.Monitor != MonitorAuto && !slices.Contains(Monitors, o.Monitor) {
		return bad("monitor", o.Monitor, MonitorAuto+", "+strings.Join(Monitors, ", "))
	}
	switch o.Accelerator {
	case "", AcceleratorAuto, AcceleratorKVM, AcceleratorEmulation:
	default:
		return bad("accelerator", o.Accelerator, AcceleratorAuto+", "+AcceleratorKVM+", "+AcceleratorEmulation)
	}
	switch o.Machine {
	case "", MachineAuto, MachineMicroVM, MachineQ35:
	default:
		return bad("machine", o.Machine, MachineAuto+", "+MachineMicroVM+", "+MachineQ35)
	}
	return nil
}

// Close ends trials in the background. Sandboxes continue.
func (b *Backend) Close() error {
	b.close()
	b.trialing.Wait()
	return nil
}

func (b *Backend) inBackground(f func(ctx context.Context)) bool {
	if b.closing.Err() != nil {
		return false
	}
	b.trialing.Go(func() { f(b.closing) })
	return true
}

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return Name }

// accelerated reports whether machines use KVM. The error says why no machine can run.
func (b *Backend) accelerated() (bool, error) {
	missing := func(why error) error {
		return &v1.Error{
			Code: v1.CodeBackendMissing, Op: "use KVM", Message: "this machine offers no usable KVM", Err: why,
			Remedy: "use a machine with /dev/kvm that this user may open; or try machines with --allow-emulation, " +
				"which is slow and isolates like a container at most",
		}
	}
	kvm := errors.New("the configuration asks for emulation (vm.accelerator)")
	if b.opts.Accelerator != AcceleratorEmulation {
		if kvm = b.probe(); kvm == nil {
			return true, nil
		}
	}
	if b.opts.Accelerator == AcceleratorKVM || !b.opts.AllowEmulation {
		return false, missing(kvm)
	}
	return false, backendkit.RefuseInProduction("start sandbox", "emulated machines",
		"use a machine with KVM, or the gvisor backend")
}

// probeKVM returns why KVM cannot be used.
func probeKVM() error {
	const getVersion, wanted = 0xAE00, 12 // KVM_GET_API_VERSION, the same since 2007
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: "/dev/kvm", Err: err}
	}
	defer unix.Close(fd)
	got, err := unix.IoctlRetInt(fd, getVersion)
	if err == nil && got != wanted {
		err = fmt.Errorf("KVM has version %d of its API, but %d is needed", got, wanted)
	}
	return err
}

// kind describes one of the monitors.
type kind struct {
	title   string // for people
	program string // on PATH
	minimum string // version
	remedy  string
	vsock   bool // its stream is a vsock; such a monitor cannot emulate
	make    func(path string) monitor
}

var kinds = map[string]kind{
	MonitorQEMU: {
		title: "QEMU", program: "qemu-system-x86_64", minimum: "7.2",
		remedy: "install it (Debian: apt-get install qemu-system-x86), or name it: vm.qemu",
		make:   func(path string) monitor { return qemu{path} },
	},
	MonitorFirecracker: {
		title: "Firecracker", program: firecrackerProgram, minimum: firecrackerMinimum, vsock: true,
		remedy: "install version " + firecrackerMinimum + " or later with its jailer, or name it: vm.firecracker",
		make:   func(path string) monitor { return firecracker{path} },
	},
	MonitorCloudHypervisor: {
		title: "Cloud Hypervisor", program: cloudHypervisorProgram, minimum: cloudHypervisorMinimum, vsock: true,
		remedy: "install version " + cloudHypervisorMinimum + " or later, or name it: vm.cloud_hypervisor",
		make:   func(path string) monitor { return cloudHypervisor{path} },
	},
}

// monitor returns the monitor that new machines use, and its version.
func (b *Backend) monitor(ctx context.Context, kvm bool) (monitor, string, error) {
	names := []string{b.opts.Monitor}
	if b.opts.Monitor == "" || b.opts.Monitor == MonitorAuto {
		names = Monitors
	}
	var first error
	for _, name := range names {
		m, version, err := b.findMonitor(ctx, name, kvm)
		if err == nil {
			return m, version, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, "", first
}

// findMonitor returns a monitor that is installed and recent enough, and its version.
func (b *Backend) findMonitor(ctx context.Context, name string, kvm bool) (monitor, string, error) {
	k := kinds[name]
	fail := func(what, remedy string, err error) (monitor, string, error) {
		return nil, "", &v1.Error{
			Code: v1.CodeBackendMissing, Op: "find a monitor", Message: k.title + " " + what, Remedy: remedy, Err: err,
		}
	}
	if k.vsock && !kvm {
		return fail("cannot emulate", "use a machine with KVM, or vm.monitor: qemu", nil)
	}
	path := b.opts.Programs[name]
	if path == "" {
		path = k.program
	}
	path, err := exec.LookPath(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return fail("is not installed", k.remedy, err)
	}
	m := k.make(path)
	version, err := b.version(ctx, m)
	if err != nil {
		return fail("does not report its version", k.remedy, err)
	}
	if olderThan(version, k.minimum) {
		return fail(fmt.Sprintf("has version %s, and at least %s is needed", version, k.minimum), k.remedy, nil)
	}
	if name == MonitorFirecracker && os.Geteuid() == 0 {
		jailer := filepath.Join(filepath.Dir(path), jailerProgram)
		got, err := scanVersion(ctx, jailer, "Jailer v")
		if err == nil && got != version {
			err = fmt.Errorf("%s has version %s instead of %s", jailer, got, version)
		}
		if err != nil {
			return fail("has no usable jailer", "install the jailer of the same release beside it", err)
		}
	}
	return m, version, nil
}

// version returns the version of a monitor, which is asked only once for each state of its program.
func (b *Backend) version(ctx context.Context, m monitor) (string, error) {
	info, err := os.Stat(m.program())
	if err != nil {
		return "", err
	}
	key := program{m.program(), info.Size(), info.ModTime().UnixNano()}
	if known, ok := b.versions.Load(key); ok {
		return known.(string), nil //nolint:forcetypeassert // stored below
	}
	version, err := m.version(ctx)
	if err == nil {
		b.versions.Store(key, version)
	}
	return version, err
}

// program identifies one state of a program.
type program struct {
	path        string
	size, mtime int64
}

// monitorOf returns the monitor of an existing machine.
func (b *Backend) monitorOf(r *record) (monitor, error) {
	k, known := kinds[r.Monitor]
	if !known {
		return nil, &v1.Error{
			Code: v1.CodeSnapshotVersion, Op: "control the machine",
			Message: fmt.Sprintf("it was made with the monitor %q, which this version does not know", r.Monitor),
			Remedy:  "use the version of recluse that made it",
		}
	}
	return k.make(r.Program), nil
}

// fits returns an error if a kernel lacks what a monitor needs.
func (k *kernel) fits(m monitor) error {
	if kinds[m.name()].vsock && !k.vsock {
		return &v1.Error{
			Code: v1.CodeBackendMissing, Op: "find the kernel",
			Message: "the kernel " + k.release + " lacks modules for " + kinds[m.name()].title,
			Remedy:  "run recluse vm setup again with a kernel that has " + strings.Join(vsockModules, ", "),
		}
	}
	return nil
}

// machineType returns the type of the machines that a monitor makes with a kernel; empty: the monitor has only one.
func (b *Backend) machineType(m monitor, k *kernel) (string, error) {
	switch {
	case m.name() != MonitorQEMU:
		return "", nil
	case b.opts.Machine != MachineMicroVM:
		return MachineQ35, nil
	}
	if err := k.lacksMicroVM(); err != nil {
		return "", &v1.Error{
			Code: v1.CodeBackendMissing, Op: "choose the machine", Message: "the kernel " + k.release + " does not fit microvm",
			Remedy: "set vm.machine to " + MachineQ35 + ", or set up another kernel", Err: err,
		}
	}
	return MachineMicroVM, nil
}

// prepared returns the result of the setup.
func (b *Backend) prepared() (*Prepared, *kernel, error) {
	p := &Prepared{}
	err := atomicfile.ReadJSON(filepath.Join(b.dir, setupFile), p)
	var k *kernel
	if err == nil {
		k, err = b.openKernel(p.KernelID)
	}
	if err == nil {
		_, err = os.Stat(b.imagePath(p.Root))
	}
	if err != nil {
		return nil, nil, &v1.Error{
			Code: v1.CodeBackendMissing, Op: "find kernel and root file system",
			Message: "virtual machines are not set up", Remedy: "run recluse vm setup", Err: err,
		}
	}
	return p, k, nil
}

func (b *Backend) imagePath(name string) string { return filepath.Join(b.dir, "images", name) }

// FilesOnDisk implements sandbox.DiskStorer.
func (b *Backend) FilesOnDisk(spec sandbox.Spec) bool {
	_, k, err := b.prepared()
	return err == nil && !spec.ReadOnly && diskMissing(k) == nil
}

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(context.Context) sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation:     sandbox.IsolationVM,
		Snapshots:     sandbox.SnapshotsMemory,
		Egress:        sandbox.EgressNone,
		MemoryLimit:   true,
		CPULimit:      true,
		ProcessLimit:  true,
		DiskLimit:     true,
		OpenFileLimit: true,
		Images:        true,
		Files:         true,
		PTY:           true,
		ColdStart:     2 * time.Second,
		Notes: []string{
			"the limit of CPUs is a whole number, because a machine has whole processors",
			"host directories cannot be mounted, because a machine has only disks",
		},
	}
	p, k, err := b.prepared()
	if err != nil {
		c.Notes = append(c.Notes, err.Error())
		return c
	}
	c.Python, c.Bash = p.Python, p.Bash
	if len(p.Packages) > 0 {
		c.Notes = append(c.Notes, "the default root file system has "+describePackages(p.Packages))
	}
	if err := diskMissing(k); err == nil {
		c.WritableRoot = true
	} else {
		c.Notes = append(c.Notes, "files are in memory and the root cannot be changed: "+err.Error())
	}
	if k.network {
		c.Egress = sandbox.EgressAllPorts
		c.Notes = append(c.Notes, b.opts.Network.Notes()...)
	} else {
		c.Notes = append(c.Notes, "there is no network, because the kernel "+k.release+" lacks modules for it")
	}
	if kvm, err := b.accelerated(); err == nil && !kvm {
		c.Isolation, c.Emulated, c.ColdStart = sandbox.IsolationContainer, true, 10*time.Second
		c.Notes = append(c.Notes, "machines are emulated: slow, and by QEMU's own statement no security boundary")
	}
	if os.Geteuid() != 0 {
		c.Notes = append(c.Notes, "the monitor runs as this user, because only root can give it a user of its own")
	}
	return c
}

// record is everything that a program needs to take over a sandbox.
type record struct {
	backendkit.Record
	Process   backendkit.Process `json:"process"` // the monitor
	Monitor   string             `json:"monitor"`
	Program   string             `json:"program"`   // path of the monitor
	Version   string             `json:"version"`   // of the monitor
	Hash      string             `json:"hash"`      // of everything that a snapshot of the machine depends on
	Kernel    string             `json:"kernel"`    // ID
	Initramfs string             `json:"initramfs"` // file names
	Root      string             `json:"root"`
	KVM       bool               `json:"kvm"`
	Machine   string             `json:"machine,omitempty"` // type of QEMU's machine; empty: q35
	Disk      bool               `json:"disk,omitempty"`    // whether it has a writable disk
	UID       int                `json:"uid,omitempty"`     // of the monitor; 0: that of the program that started it
	Config    launch.Config      `json:"config"`
}

// machineDir is the directory of the monitor, in that of the sandbox. The monitor can change everything in it, so
// nothing in it is trusted.
const machineDir = "machine"

// logFile is the pipe with what the monitor writes to stderr: nothing, unless it fails or warns.
const logFile = "monitor.log"

func (b *Backend) load(id string) (*record, error) {
	r := &record{}
	return r, b.store.Load(id, r)
}

// hardware returns the machine of a record.
func (b *Backend) hardware(r *record) *hardware {
	disk := ""
	if r.Disk {
		disk = b.store.Path(r.ID, machineDir, diskFile)
	}
	return &hardware{
		id:        r.ID,
		dir:       b.store.Path(r.ID, machineDir),
		log:       b.store.Path(r.ID, logFile),
		kernel:    filepath.Join(b.dir, "kernels", r.Kernel, kernelImage),
		initramfs: b.imagePath(r.Initramfs),
		root:      b.imagePath(r.Root),
		memory:    r.Spec.Limits.Memory + kernelMemory,
		cpus:      int(r.Spec.Limits.CPUs),
		kvm:       r.KVM,
		micro:     r.Machine == MachineMicroVM,
		uid:       r.UID,
		disk:      disk,
	}
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	if !backendkit.ValidID(id) {
		return nil // no sandbox has such a name
	}
	b.mu.Lock()
	m := b.machines[id]
	b.mu.Unlock()
	if m != nil {
		m.Stopping()
	}
	fail := func(err error) error {
		return &v1.Error{
			Code: v1.CodeInternal, Op: "stop sandbox", Message: "the sandbox could not be removed completely", Retry: true,
			Err: err,
		}
	}
	r, err := b.load(id)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return fail(err)
	}
	if err == nil {
		if err := b.kill(ctx, r); err != nil {
			return fail(err)
		}
	}
	if m != nil {
		select {
		case <-m.Gone():
		case <-ctx.Done():
			return fail(ctx.Err())
		}
	}
	if err := os.RemoveAll(b.store.Path(id)); err != nil {
		return fail(err)
	}
	return nil
}

// kill ends the monitor of a machine.
func (b *Backend) kill(ctx context.Context, r *record) error {
	process := r.Process
	if process.PID == 0 { // the program that started it died before it knew the process
		mon, err := b.monitorOf(r)
		if err != nil {
			return err
		}
		found, err := findProcess(mon.home(b.hardware(r)))
		if err != nil || found == 0 {
			return err
		}
		process = backendkit.ProcessOf(found)
	}
	p, err := pidfd.Open(process.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !process.Alive() {
		return nil
	}
	if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	return p.Wait(ctx)
}

// findProcess returns the process whose working directory is dir, or 0.
func findProcess(dir string) (int, error) {
	want, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if got, err := os.Stat(l); err == nil && os.SameFile(want, got) {
			pid := 0
			_, err := fmt.Sscanf(l, "/proc/%d/cwd", &pid)
			return pid, err
		}
	}
	return 0, nil
}

// List implements sandbox.Backend.
func (b *Backend) List(context.Context) ([]sandbox.Info, error) {
	return b.store.List(func(i *sandbox.Info) {
		if r, err := b.load(i.ID); err == nil {
			i.Running, i.PID = r.Process.Alive(), r.Process.PID
		}
	})
}

var (
	_ sandbox.DiskStorer  = (*Backend)(nil)
	_ backend.Pauser      = (*Backend)(nil)
	_ backend.Labeler     = (*Backend)(nil)
	_ backend.Surveyor    = (*Backend)(nil)
	_ backend.QuickProber = (*Backend)(nil)
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

// Pause implements backend.Pauser.
func (b *Backend) Pause(ctx context.Context, id string) error {
	return b.control(id, "pause", func(m monitor, hw *hardware) error { return m.pause(ctx, hw) })
}

// Resume implements backend.Pauser.
func (b *Backend) Resume(ctx context.Context, id string) error {
	return b.control(id, "resume", func(m monitor, hw *hardware) error { return m.resume(ctx, hw) })
}

// control calls f with the monitor of a sandbox.
func (b *Backend) control(id, op string, f func(m monitor, hw *hardware) error) error {
	r, err := b.load(id)
	if err != nil {
		return err
	}
	m, err := b.monitorOf(r)
	if err != nil {
		return err
	}
	if err := f(m, b.hardware(r)); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: op, Message: "the monitor could not " + op + " the machine", Err: err}
	}
	return nil
}

// Label implements backend.Labeler.
func (b *Backend) Label(_ context.Context, id string, labels map[string]string) error {
	r, err := b.load(id)
	if err != nil {
		return err
	}
	r.Spec.Labels = maps.Clone(labels)
	return startError(b.store.Save(id, r))
}

// proof describes a machine that was booted, with everything on which the result depends.
type proof struct {
	Boot    string `json:"boot"` // boot ID of the host
	Monitor string `json:"monitor"`
	Version string `json:"version"`
	Machine string `json:"machine"`
	Kernel  string `json:"kernel"`
	Guest   string `json:"guest"`
	UID     int    `json:"uid"`
	Failed  string `json:"failed,omitempty"` // why the machine has not booted
}

const (
	// trialLimit is the timeout of a trial, and trialWait how long a caller waits for it.
	trialLimit = 30 * time.Second
	trialWait  = 20 * time.Second
)

// QuickHealth implements backend.QuickProber.
func (b *Backend) QuickHealth(ctx context.Context) sandbox.Health {
	h, _ := b.examine(ctx)
	return h
}

// Health implements sandbox.Backend. It boots a machine, unless any program has tried that within the last hour. A
// setup ends that time. An emulated machine is not tried: it would take longer than callers wait, and is only used by
// callers who asked for it.
func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h, now := b.examine(ctx)
	if kvm, err := b.accelerated(); !h.OK || err != nil || !kvm {
		h.Took = time.Since(began)
		return h
	}
	kept, ok := b.proof.Kept()
	failed := kept.Failed
	kept.Failed = ""
	switch ok = ok && kept == now; {
	case ok && failed != "" && !b.proof.Fresh():
		h = sandbox.Health{
			Version: h.Version, Reason: "no machine booted within the last hour: " + failed,
			Remedy: "name the backend to try again (recluse exec --backend vm -- true), or run recluse vm setup",
		}
		fallthrough
	case ok, b.proof.Fresh():
		h.Took = time.Since(began)
		return h
	}
	known, err := b.trials.Wait(ctx, trialWait, func(ctx context.Context) error {
		m, err := b.Start(ctx, sandbox.Spec{}.WithDefaults())
		if err != nil {
			return err
		}
		return errors.Join(m.Stream().Close(), b.Stop(context.WithoutCancel(ctx), m.ID()))
	})
	switch {
	case !known:
		h.Reason = fmt.Sprintf("a trial machine did not boot within %s: the machine is busy", trialWait)
	case err != nil:
		took := h
		h = backend.Unhealthy(err)
		h.Version = took.Version
		if ctx.Err() == nil && b.closing.Err() == nil && v1.CodeOf(err) != v1.CodeCancelled {
			now.Failed = err.Error()
			b.proof.Keep(now)
		}
	}
	h.Took = time.Since(began)
	return h
}

// examine returns the health as far as it is known without a trial.
func (b *Backend) examine(ctx context.Context) (sandbox.Health, proof) {
	if runtime.GOARCH != "amd64" {
		return backend.Unhealthy(backend.NotSupported(Name, "run on "+runtime.GOARCH, "use an amd64 machine")), proof{}
	}
	// What costs nothing comes first: this is called for every selection of a backend.
	kvm, err := b.accelerated()
	if err != nil {
		return backend.Unhealthy(err), proof{}
	}
	p, k, err := b.prepared()
	if err != nil {
		return backend.Unhealthy(err), proof{}
	}
	m, version, err := b.monitor(ctx, kvm)
	machine := ""
	if err == nil {
		if err = k.fits(m); err == nil {
			machine, err = b.machineType(m, k)
		}
	}
	if err != nil {
		return backend.Unhealthy(err), proof{}
	}
	h := sandbox.Health{OK: true, Version: kinds[m.name()].title + " " + version}
	if machine != "" {
		h.Version += " (" + machine + ")"
	}
	h.Version += ", kernel " + k.release + ", Python " + orNone(p.PythonVersion)
	if kvm {
		h.Version += ", KVM"
	} else {
		h.Version += ", emulation"
		h.Reason = "emulated machines: slow, and isolated like a container at most"
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, only the age of the proof counts
	return h, proof{
		Boot: strings.TrimSpace(string(boot)), Monitor: m.name(), Version: version, Machine: machine, Kernel: k.id,
		Guest: b.guest.Hash, UID: os.Geteuid(),
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// lookIn reports whether a program is in a directory with a system.
func lookIn(root, name string) bool {
	for _, d := range []string{"usr/bin", "bin", "usr/local/bin"} {
		if _, err := exec.LookPath(filepath.Join(root, d, name)); err == nil {
			return true
		}
	}
	return false
}
