package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// fakeUID is the user of a fake with a jail.
const fakeUID = firstUID + 7

// vsockMonitors are the monitors that only fakes play here.
var vsockMonitors = []string{MonitorFirecracker, MonitorCloudHypervisor}

// fakePrograms returns a directory with fakes under the names of the programs.
func fakePrograms(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{firecrackerProgram, jailerProgram, cloudHypervisorProgram} {
		if err := linkOrCopy(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fake is a machine whose monitor is played.
type fake struct {
	monitor
	hw  *hardware
	pid int
}

// newFake prepares a machine, in a jail or not.
func newFake(t *testing.T, programs, name string, jailed bool, orders fakeOrders) *fake {
	t.Helper()
	dir := t.TempDir()
	f := &fake{monitor: kinds[name].make(filepath.Join(programs, kinds[name].program))}
	f.hw = &hardware{
		id: "v-0123456789", dir: filepath.Join(dir, machineDir), log: filepath.Join(dir, logFile),
		kernel: filepath.Join(dir, kernelImage), initramfs: filepath.Join(dir, "initramfs"), root: filepath.Join(dir, "root"),
		memory: 384 << 20, cpus: 2, kvm: true,
	}
	if jailed {
		f.hw.uid = fakeUID
	}
	write := func(path string, content []byte) {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		if err == nil && jailed {
			err = errors.Join(os.Chown(path, fakeUID, fakeUID), os.Chown(filepath.Dir(path), fakeUID, fakeUID))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f.hw.disk = filepath.Join(f.hw.dir, diskFile)
	write(filepath.Join(f.hw.dir, configFile), []byte("{}"))
	write(f.hw.disk, []byte("a disk"))
	for _, path := range []string{f.hw.kernel, uncompressed(f.hw.kernel), f.hw.initramfs, f.hw.root} {
		write(path, []byte("a file"))
	}
	text, err := json.Marshal(orders)
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(f.home(f.hw), ordersFile), text)
	t.Cleanup(func() {
		if f.pid != 0 {
			_ = syscall.Kill(f.pid, syscall.SIGKILL)
		}
	})
	return f
}

// order gives orders to a fake that runs.
func (f *fake) order(t *testing.T, orders fakeOrders) {
	t.Helper()
	text, err := json.Marshal(orders)
	if err == nil {
		err = atomicfile.Write(filepath.Join(f.home(f.hw), ordersFile), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fake) begin(ctx context.Context) error {
	return f.start(ctx, f.hw, func(pid int) error { f.pid = pid; return nil })
}

// requests returns the requests that the fake has received.
func (f *fake) requests(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.home(f.hw), fakeLog))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "INVALID") {
			t.Errorf("the API does not allow: %s", l)
		}
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// ways calls f for each monitor, with and without a jail.
func ways(t *testing.T, f func(t *testing.T, programs, name string, jailed bool)) {
	t.Helper()
	testneed.Slow(t, "starts processes")
	for _, name := range vsockMonitors {
		for _, jailed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, jailed %v", name, jailed), func(t *testing.T) {
				if jailed {
					testneed.Root(t, "a user of its own")
				}
				t.Parallel()
				f(t, fakePrograms(t), name, jailed)
			})
		}
	}
}

// firecrackerBoot and the others are the requests in their order.
var (
	firecrackerBoot = []string{
		"GET /", "PUT /serial", "PUT /machine-config", "PUT /boot-source", "PUT /drives/root", "PUT /drives/config", "PUT /drives/disk", "PUT /balloon",
		"PUT /entropy", "PUT /vsock", "PUT /actions",
	}
	firecrackerLife    = []string{"PATCH /vm", "PATCH /vm", "PUT /snapshot/create", "PATCH /vm", "PATCH /vm"}
	firecrackerRestore = []string{"GET /", "PUT /snapshot/load"}
	cloudBoot          = []string{"GET /vmm.ping", "PUT /vm.create", "PUT /vm.boot"}
	cloudLife          = []string{
		"GET /vm.info", "PUT /vm.pause", "GET /vm.info", "PUT /vm.snapshot", "GET /vm.info", "PUT /vm.resume", "GET /vm.info",
	}
	cloudRestore = []string{"GET /vmm.ping", "PUT /vm.restore", "PUT /vm.resume"}
)

func sequences(name string) (boot, life, restore []string) {
	if name == MonitorFirecracker {
		return firecrackerBoot, firecrackerLife, firecrackerRestore
	}
	return cloudBoot, cloudLife, cloudRestore
}

// TestRequestsFollowTheAPI shows only that our requests are those of the description. No machine runs.
func TestRequestsFollowTheAPI(t *testing.T) {
	ways(t, func(t *testing.T, programs, name string, jailed bool) {
		ctx := t.Context()
		boot, life, restore := sequences(name)
		f := newFake(t, programs, name, jailed, fakeOrders{})
		if err := f.begin(ctx); err != nil {
			t.Fatalf("start: %v", err)
		}
		f.checkStream(t)
		saved := t.TempDir()
		for i, do := range []func() error{
			func() error { return f.pause(ctx, f.hw) }, func() error { return f.pause(ctx, f.hw) },
			func() error { return f.save(ctx, f.hw, saved) },
			func() error { return f.resume(ctx, f.hw) }, func() error { return f.resume(ctx, f.hw) },
		} {
			if err := do(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		f.checkStream(t)
		if got := f.requests(t); !slices.Equal(got, slices.Concat(boot, life)) {
			t.Errorf("requests:\n%s", strings.Join(got, "\n"))
		}
		files, err := os.ReadDir(saved)
		if err != nil || len(files) < 2 {
			t.Errorf("saved: %v, %v", files, err)
		}
		for _, file := range files {
			info, err := file.Info()
			st, _ := info.Sys().(*syscall.Stat_t)
			if err != nil || info.Mode() != 0o444 || int(st.Uid) != os.Geteuid() {
				t.Errorf("saved file %s: %v, user %d, %v", file.Name(), info.Mode(), st.Uid, err)
			}
			if left := filepath.Join(f.home(f.hw), file.Name()); exists(left) {
				t.Errorf("left behind: %s", left)
			}
		}
		again := newFake(t, programs, name, jailed, fakeOrders{})
		again.hw.from = saved
		if err := again.begin(ctx); err != nil {
			t.Fatalf("restore: %v", err)
		}
		again.checkStream(t)
		if got := again.requests(t); !slices.Equal(got, restore) {
			t.Errorf("requests of a restore:\n%s", strings.Join(got, "\n"))
		}
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// checkStream sends bytes to the guest, which returns them.
func (f *fake) checkStream(t *testing.T) {
	t.Helper()
	c, err := f.dial(t.Context(), f.hw)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer c.Close()
	got := make([]byte, 4)
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		t.Errorf("the guest returned %q, %v", got, err)
	}
}

// failures are the ways in which a request can fail, and what the error then says.
var failures = map[string]string{
	"refuse": "ordered to refuse", "die": "ordered to die", "garbage": "<html>?", "long": "longer than", "cut": "unexpected EOF",
	"hang": "deadline",
}

func TestAFailureOfEveryRequestIsReported(t *testing.T) {
	ways(t, func(t *testing.T, programs, name string, jailed bool) {
		if jailed {
			testneed.All(t, "the requests are the same with and without a jail")
		}
		boot, _, restore := sequences(name)
		saved := t.TempDir()
		for _, file := range append([]string{firecrackerState, firecrackerMemory}, cloudHypervisorFiles...) {
			if err := os.WriteFile(filepath.Join(saved, file), nil, 0o444); err != nil {
				t.Fatal(err)
			}
		}
		for how, want := range failures {
			for from, requests := range map[string][]string{"": boot, saved: restore} {
				for _, request := range requests {
					f := newFake(t, programs, name, jailed, fakeOrders{FailAt: request, How: how})
					f.hw.from = from
					limit := 20 * time.Second
					if how == "hang" {
						limit = 700 * time.Millisecond
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					err := f.begin(ctx)
					cancel()
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s at %s: %v", how, request, err)
					}
					f.requests(t)
				}
			}
		}
	})
}

// TestAFailedPauseOrResumeIsReported fails each request of a pause and of a resume. Afterwards both work, unless the
// monitor has ended.
func TestAFailedPauseOrResumeIsReported(t *testing.T) {
	requests := map[string]map[bool][]string{ // by monitor; true: those of a resume
		MonitorFirecracker:     {false: {"PATCH /vm Paused"}, true: {"PATCH /vm Resumed"}},
		MonitorCloudHypervisor: {false: {"GET /vm.info", "PUT /vm.pause"}, true: {"GET /vm.info", "PUT /vm.resume"}},
	}
	ways(t, func(t *testing.T, programs, name string, jailed bool) {
		if jailed {
			testneed.All(t, "the requests are the same with and without a jail")
		}
		for how, want := range failures {
			for resume, all := range requests[name] {
				for _, request := range all {
					f := newFake(t, programs, name, jailed, fakeOrders{})
					if err := f.begin(t.Context()); err != nil {
						t.Fatal(err)
					}
					do, after := f.pause, f.resume
					if resume {
						do, after = f.resume, f.pause
						if err := f.pause(t.Context(), f.hw); err != nil {
							t.Fatal(err)
						}
					}
					f.order(t, fakeOrders{FailAt: request, How: how})
					limit := 20 * time.Second
					if how == "hang" {
						limit = 700 * time.Millisecond
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					err := do(ctx, f.hw)
					cancel()
					if how == "die" {
						want = "EOF" // its words are in the log, which explains the end of the machine
					}
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s at %s: %v", how, request, err)
					}
					f.order(t, fakeOrders{})
					switch how {
					case "die":
						if _, err := f.dial(t.Context(), f.hw); err == nil {
							t.Errorf("%s at %s: the stream of an ended monitor", how, request)
						}
					case "hang": // it still answers nothing
					default:
						if err := errors.Join(do(t.Context(), f.hw), after(t.Context(), f.hw)); err != nil {
							t.Errorf("after %s at %s: %v", how, request, err)
						}
					}
					f.requests(t)
				}
			}
		}
	})
}

func TestAFailedSnapshotLeavesTheMachine(t *testing.T) {
	ways(t, func(t *testing.T, programs, name string, jailed bool) {
		at := "PUT /snapshot/create"
		if name == MonitorCloudHypervisor {
			at = "PUT /vm.snapshot"
		}
		for _, how := range []string{"refuse", "garbage", "half"} {
			f := newFake(t, programs, name, jailed, fakeOrders{FailAt: at, How: how})
			ctx := t.Context()
			if err := errors.Join(f.begin(ctx), f.pause(ctx, f.hw)); err != nil {
				t.Fatal(err)
			}
			if err := f.save(ctx, f.hw, t.TempDir()); err == nil {
				t.Errorf("%s: saved", how)
			}
			if err := f.resume(ctx, f.hw); err != nil {
				t.Errorf("%s: %v", how, err)
			}
			f.checkStream(t)
			for _, file := range append([]string{firecrackerState, firecrackerMemory, savedDir}, cloudHypervisorFiles...) {
				if exists(filepath.Join(f.home(f.hw), file)) {
					t.Errorf("%s: left behind: %s", how, file)
				}
			}
		}
	})
}

func TestTheConsoleExplainsAFailedBoot(t *testing.T) {
	ways(t, func(t *testing.T, programs, name string, jailed bool) {
		f := newFake(t, programs, name, jailed, fakeOrders{NoGuest: true, Console: "[0.1] Linux\nrecluse-guest: boot: no disk\n"})
		if err := f.begin(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "could not boot: no disk") {
			t.Errorf("error: %v", err)
		}
		f = newFake(t, programs, name, jailed, fakeOrders{NoGuest: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.begin(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a guest: %v", err)
		}
	})
}

// TestAMonitorCannotLeadUsOutOfItsDirectory has a monitor that the guest has taken over.
func TestAMonitorCannotLeadUsOutOfItsDirectory(t *testing.T) {
	testneed.Slow(t, "starts processes")
	programs := fakePrograms(t)
	host := t.TempDir()
	for _, name := range append([]string{firecrackerState, firecrackerMemory}, cloudHypervisorFiles...) {
		if err := os.WriteFile(filepath.Join(host, name), []byte("of the host"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range vsockMonitors {
		f := newFake(t, programs, name, false, fakeOrders{})
		if err := errors.Join(f.begin(t.Context()), f.pause(t.Context(), f.hw)); err != nil {
			t.Fatal(err)
		}
		for _, socket := range []string{streamSocket, apiSocket} {
			other := filepath.Join(t.TempDir(), "x")
			path := filepath.Join(f.hw.dir, socket)
			if err := errors.Join(os.Rename(path, other), os.Symlink(other, path)); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := f.dial(t.Context(), f.hw); !errors.Is(err, syscall.ELOOP) {
			t.Errorf("%s: the stream leads to %v, %v", name, c, err)
		}
		if err := f.resume(t.Context(), f.hw); !errors.Is(err, syscall.ELOOP) {
			t.Errorf("%s: the control socket leads out: %v", name, err)
		}
	}
	link := t.TempDir()
	if err := os.Symlink(filepath.Join(host, firecrackerState), filepath.Join(link, firecrackerState)); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := moveOut(int(d.Fd()), firecrackerState, t.TempDir()); err == nil {
		t.Error("a link was taken for a saved state")
	}
	if info, err := os.Stat(filepath.Join(host, firecrackerState)); err != nil || info.Mode() != 0o600 {
		t.Errorf("a file of the host was changed: %v, %v", info, err)
	}
}

func TestOldMonitorsAreRefused(t *testing.T) {
	testneed.Slow(t, "starts processes")
	programs := fakePrograms(t)
	b := emptyBackend(t, func(o *Options) {
		o.Programs = map[string]string{
			MonitorFirecracker:     filepath.Join(programs, firecrackerProgram),
			MonitorCloudHypervisor: filepath.Join(programs, cloudHypervisorProgram),
			MonitorQEMU:            filepath.Join(programs, "missing"),
		}
	})
	say := func(program, text string) {
		path := filepath.Join(programs, program)
		later := time.Now().Add(time.Duration(len(text)) * time.Second) // its version is asked once for each state of the file
		if err := errors.Join(os.WriteFile(path+".version", []byte(text), 0o644), os.Chtimes(path, later, later)); err != nil {
			t.Fatal(err)
		}
	}
	find := func(name, want string) {
		t.Helper()
		m, version, err := b.findMonitor(t.Context(), name, true)
		switch {
		case want == "" && (err != nil || m.name() != name || version == ""):
			t.Errorf("%s: %v, %q, %v", name, m, version, err)
		case want != "" && (v1.CodeOf(err) != v1.CodeBackendMissing || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	find(MonitorFirecracker, "")
	find(MonitorCloudHypervisor, "")
	find(MonitorQEMU, "not installed")
	if _, _, err := b.findMonitor(t.Context(), MonitorFirecracker, false); !strings.Contains(fmt.Sprint(err), "cannot emulate") {
		t.Errorf("without KVM: %v", err)
	}
	say(cloudHypervisorProgram, "cloud-hypervisor v51.1")
	find(MonitorCloudHypervisor, "at least 52")
	say(firecrackerProgram, "Firecracker v1.16.1-dev")
	find(MonitorFirecracker, "at least 1.16.2")
	say(firecrackerProgram, "Fire")
	find(MonitorFirecracker, "does not report")
	if os.Geteuid() == 0 {
		say(firecrackerProgram, "Firecracker v1.17.0")
		find(MonitorFirecracker, "jailer")
	}
}

func TestVersionsAreCompared(t *testing.T) {
	for _, c := range []struct {
		version, minimum string
		older            bool
	}{
		{"1.16.2", "1.16.2", false},
		{"1.16.1", "1.16.2", true},
		{"1.17.0-dev", "1.16.2", false},
		{"2.0", "1.16.2", false},
		{"52.0", "52", false},
		{"51.9", "52", true},
		{"v53", "52", false},
		{"unknown", "52", true},
		{"7.2.22", "7.2", false},
	} {
		if got := olderThan(c.version, c.minimum); got != c.older {
			t.Errorf("%s older than %s: %v", c.version, c.minimum, got)
		}
	}
}

// TestATrialDecidesAboutTheBackend plays the monitor and KVM: it is about what is remembered of a trial.
func TestATrialDecidesAboutTheBackend(t *testing.T) {
	testneed.Root(t, "the jailer reads its orders")
	programs := fakePrograms(t)
	machine := testBackend(t)
	open := func() *Backend {
		b, err := newTestBackend(filepath.Dir(machine.dir), func(o *Options) {
			o.Accelerator, o.Monitor, o.NoTemplates = AcceleratorKVM, MonitorFirecracker, true
			o.Programs = map[string]string{MonitorFirecracker: filepath.Join(programs, firecrackerProgram)}
		})
		if err != nil {
			t.Fatal(err)
		}
		b.probe = func() error { return nil }
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	closed := func() *Backend { // it cannot make a trial
		b := open()
		_ = b.Close()
		return b
	}
	if h := closed().Health(t.Context()); h.OK {
		t.Errorf("without a trial: %+v", h)
	}
	b := open()
	if h := b.Health(t.Context()); !h.OK || !strings.Contains(h.Version, "Firecracker 1.16.2") || !strings.Contains(h.Version, "KVM") {
		t.Fatalf("a trial: %+v", h)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("the trial left %+v, %v", all, err)
	}
	other := closed()
	if h := other.Health(t.Context()); !h.OK {
		t.Errorf("a second program does not know the result: %+v", h)
	}
	weaker := weakerBackend{backend.Unavailable("gvisor", nil)}
	if got, _, err := backend.Select(t.Context(), []sandbox.Backend{weaker, other}, backend.Requirements{}); err != nil || got.Name() != Name {
		t.Errorf("selected: %v, %v", got, err)
	}
	b.proof.Forget()
	if err := os.WriteFile(filepath.Join(programs, ordersFile), []byte(`{"fail_at": "PUT /actions", "how": "refuse"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if h := open().Health(t.Context()); h.OK || !strings.Contains(h.Reason, "ordered to refuse") {
		t.Errorf("a failed trial: %+v", h)
	}
	if h := closed().Health(t.Context()); h.OK || !strings.Contains(h.Reason, "within the last hour") || h.Remedy == "" {
		t.Errorf("a second program repeats the trial: %+v", h)
	}
}

// weakerBackend is healthy and isolates less than a machine.
type weakerBackend struct{ sandbox.Backend }

func (weakerBackend) Health(context.Context) sandbox.Health { return sandbox.Health{OK: true} }

func (weakerBackend) Capabilities(context.Context) sandbox.Capabilities {
	return sandbox.Capabilities{Isolation: sandbox.IsolationKernel}
}
