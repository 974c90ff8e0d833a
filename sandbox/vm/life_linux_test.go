package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// makerEnv is the environment variable that makes this test program another program, which makes a sandbox in that data
// directory.
const makerEnv = "RECLUSE_TEST_MAKER"

// makeForAnother makes a sandbox, prints its ID and waits to be killed.
func makeForAnother(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	b, err := newTestBackend(dir)
	if err != nil {
		fail(err)
	}
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{Labels: map[string]string{"made": "elsewhere"}})
	if err != nil {
		fail(err)
	}
	if v, err := sb.Cell(ctx, sandbox.Cell{Code: "kept = 42"}); err != nil || !v.OK() {
		fail(fmt.Errorf("%v, %w", v, err))
	}
	fmt.Println(sb.ID())
	select {}
}

// TestAMachineOutlivesTheProgramThatMadeIt also looks at the monitor from outside, because a machine is expensive here.
func TestAMachineOutlivesTheProgramThatMadeIt(t *testing.T) {
	b, ctx := testBackend(t), t.Context()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), makerEnv+"="+filepath.Dir(b.dir))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := ""
	_, err = fmt.Fscan(out, &id)
	if err == nil {
		if _, busy := sandbox.Attach(ctx, b, id); v1.CodeOf(busy) != v1.CodeBusy {
			t.Errorf("while the maker lives: %v", busy)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("the other program made no sandbox: %v", err)
	}
	sb, err := sandbox.Attach(ctx, b, id)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if got := cell(t, sb, "kept"); got != "42" {
		t.Errorf("the variable is %s", got)
	}
	r, err := b.load(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("its monitor has no rights", func(t *testing.T) { checkJail(t, b, r) })
	t.Run("its console fills no disk", func(t *testing.T) {
		if info, err := os.Stat(b.store.Path(id, logFile)); err != nil || info.Mode().Type() != os.ModeNamedPipe {
			t.Errorf("the log of the monitor: %v, %v", info, err)
		}
	})
	// Its monitor is not a child of this program.
	if err := syscall.Kill(r.Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sb.Gone():
	case <-time.After(20 * time.Second):
		t.Fatal("the end of the monitor is not noticed")
	}
	if _, err := sb.Run(ctx, sandbox.Command{Args: []string{"true"}}); !errors.Is(err, sandbox.ErrSandboxLost) {
		t.Errorf("a command without a machine: %v", err)
	}
	sb.Detach()
	if _, err := sandbox.Attach(ctx, b, id); !errors.Is(err, sandbox.ErrSandboxLost) {
		t.Errorf("attach without a machine: %v", err)
	}
	if err := b.Stop(ctx, id); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(b, []string{id}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestTheLogOfAMonitorIsBounded has a monitor that warns without end.
func TestTheLogOfAMonitorIsBounded(t *testing.T) {
	testneed.Slow(t, "starts a process")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "python3", "-c", `
import os
for _ in range(1000):
    try: os.write(2, b"a warning\n" * 1000)
    except BlockingIOError: pass
print("done", flush=True)`)
	var out bytes.Buffer
	cmd.Stdout = &out
	l, err := launchMonitor(cmd, &hardware{log: filepath.Join(dir, logFile)}, (*exec.Cmd).Start, func(int) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	<-l.ended
	if out.String() != "done\n" {
		t.Errorf("it was held up: %q", &out)
	}
	if text := l.log.text(); len(text) < 1000 || len(text) > logSize || strings.ReplaceAll(text[:1000], "a warning\n", "") != "" {
		t.Errorf("its log has %d bytes: %.100q", len(text), text)
	}
	l.log.close()
}

// checkJail checks what the host's kernel says about the monitor of a machine.
func checkJail(t *testing.T, b *Backend, r *record) {
	t.Helper()
	testneed.Root(t, "a user of its own")
	proc := "/proc/" + strconv.Itoa(r.Process.PID)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", r.UID), fmt.Sprintf("Gid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", r.UID),
		"Groups:\t \n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n", "Seccomp:\t2\n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the status of the monitor lacks %q", want)
		}
	}
	if r.UID < firstUID {
		t.Errorf("the user of the monitor is %d", r.UID)
	}
	for _, kind := range []string{"mnt", "net", "ipc", "uts"} {
		ours, _ := os.Readlink("/proc/self/ns/" + kind)
		if theirs, err := os.Readlink(proc + "/ns/" + kind); err != nil || theirs == ours {
			t.Errorf("the monitor is in our namespace %s: %v", kind, err)
		}
	}
	entries, err := os.ReadDir(proc + "/root")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch name := e.Name(); name {
		case "usr", "bin", "lib", "lib32", "lib64", "libx32", "dev", "etc", "files", "machine", filepath.Base(jailProgram):
		case "kernel", "initramfs", "root", configFile, diskFile, consoleFile, apiSocket, streamSocket, "run",
			firecrackerProgram, firecrackerProgram + ".pid": // in the root of the jailer
			if r.Monitor != MonitorFirecracker {
				t.Errorf("the monitor sees /%s", name)
			}
		default:
			t.Errorf("the monitor sees /%s", name)
		}
	}
	if _, err := os.ReadDir(proc + "/root" + b.dir); err == nil {
		t.Error("the monitor sees the data directory")
	}
	net, err := os.ReadFile(proc + "/net/dev")
	if lines := strings.Count(string(net), "\n"); err != nil || lines != 3 { // two lines of heading, and lo
		t.Errorf("the monitor has network devices: %s, %v", net, err)
	}
	info, err := os.Stat(b.store.Path(r.ID))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the machine: %v, %v", info, err)
	}
	ours, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(ours), r.ID) {
		t.Errorf("the monitor's mounts are ours, too: %v", err)
	}
}

func TestSnapshotsHaveTheirOwnIdentity(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "import os, random, secrets, socket, time; x = 41; seed = random.random(); f = open('f', 'w'); f.write('kept'); f.flush()")
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := sb.Ping(ctx); err == nil {
		t.Error("a paused machine answered")
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Labels: map[string]string{"of": "it"}})
	if err != nil {
		t.Fatal(err)
	}
	// The kernel's random numbers, the interpreter's, the name and the clock.
	const look = "(x, open('f').read(), secrets.token_hex(8), random.random(), socket.gethostname(), time.time())"
	looks := map[string]bool{cell(t, sb, look): true}
	for range 2 {
		c, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		looks[cell(t, c, look)] = true
		now, err := strconv.ParseFloat(cell(t, c, "time.time()"), 64)
		if off := time.Since(time.Unix(int64(now), 0)); err != nil || off > 10*time.Second || off < -10*time.Second {
			t.Errorf("its clock is off by %s, %v", off, err)
		}
	}
	for part := range 4 { // each of the last four values differs everywhere
		seen := map[string]bool{}
		for l := range looks {
			words := strings.Split(strings.Trim(l, "()"), ", ")
			if words[0] != "41" || words[1] != "'kept'" {
				t.Errorf("its state is %s", l)
			}
			seen[words[2+part]] = true
		}
		if len(seen) != 3 {
			t.Errorf("value %d is the same in two machines: %v", part, seen)
		}
	}
	t.Run("a truncated one is refused", func(t *testing.T) {
		state := filepath.Join(b.snaps.Path(snap.ID), stateDir, qemuState)
		if err := os.Truncate(state, snap.Size-4096); err != nil {
			t.Fatal(err)
		}
		if _, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{}); v1.CodeOf(err) != v1.CodeSnapshotCorrupt {
			t.Errorf("restored: %v", err)
		}
	})
	if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Fatal(err)
	}
	if all, err := b.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("after deleting: %+v, %v", all, err)
	}
}

func TestAFullDiskCostsTheSnapshotOnly(t *testing.T) {
	testneed.Root(t, "a small file system")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "x = 41")
	dir := filepath.Join(b.dir, "snapshots")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if _, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true}); v1.CodeOf(err) != v1.CodeDiskFull {
		t.Errorf("a snapshot: %v", err)
	}
	if got := cell(t, sb, "x + 1"); got != "42" {
		t.Errorf("x + 1 is %s", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAStoppedMonitorIsNotWaitedFor(t *testing.T) {
	testneed.All(t, "TestAMachineOutlivesTheProgramThatMadeIt has a monitor that is killed")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	r, err := b.load(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.Process.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := b.Snapshot(ctx, sb.ID(), sandbox.SnapshotOptions{}); v1.CodeOf(err) != v1.CodeCancelled {
		t.Errorf("a snapshot: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("it cannot be ended: %v", err)
	}
}

func TestWhatAMachineCannotDo(t *testing.T) {
	b := emptyBackend(t)
	for what, spec := range map[string]sandbox.Spec{
		"mounts":            {Mounts: []sandbox.Mount{{Host: t.TempDir(), Path: "/mnt"}}},
		"volumes":           {Volumes: []sandbox.Volume{{Name: "x", Path: "/mnt"}}},
		"half a processor":  {Limits: sandbox.Limits{CPUs: 0.5}},
		"another processor": {Limits: sandbox.Limits{CPUs: 1.5}},
		"root":              {User: "0"},
	} {
		if _, err := sandbox.Open(t.Context(), b, spec); v1.CodeOf(err) != v1.CodeNotSupported {
			t.Errorf("%s: %v", what, err)
		}
	}
	if h := b.Health(t.Context()); h.OK || !strings.Contains(h.Remedy, "vm setup") {
		t.Errorf("health without a setup: %+v", h)
	}
}

func TestEmulationNeedsConsent(t *testing.T) {
	emulate := func(o *Options) { o.Monitor, o.Accelerator, o.AllowEmulation = MonitorQEMU, AcceleratorEmulation, true }
	without := emptyBackend(t, emulate, func(o *Options) { o.AllowEmulation = false })
	if _, err := without.Start(t.Context(), sandbox.Spec{}.WithDefaults()); !strings.Contains(fmt.Sprint(err), "KVM") {
		t.Errorf("without consent: %v", err)
	}
	b := testBackend(t, emulate)
	if c := b.Capabilities(t.Context()); c.Isolation != sandbox.IsolationContainer || !c.Emulated {
		t.Errorf("capabilities %+v", c)
	}
	order := []string{Name}
	for what, req := range map[string]backend.Requirements{
		"unnamed":         {AllowContainer: true},
		"under a minimum": {Order: order, MinIsolation: sandbox.IsolationVM},
	} {
		if got, _, err := backend.Select(t.Context(), []sandbox.Backend{b}, req); err == nil {
			t.Errorf("%s: selected %s", what, got.Name())
		}
	}
	if _, _, err := backend.Select(t.Context(), []sandbox.Backend{b}, backend.Requirements{Order: order}); err != nil {
		t.Errorf("named: %v", err)
	}
	t.Setenv("RECLUSE_ENV", "production")
	if _, err := b.Start(t.Context(), sandbox.Spec{}.WithDefaults()); v1.CodeOf(err) != v1.CodeConsentMissing {
		t.Errorf("in production: %v", err)
	}
}

func TestIdleMemoryIsReturned(t *testing.T) {
	testneed.All(t, "the kernel inside reports free pages after seconds")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	r, err := b.load(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	resident := func() (kb int) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Process.PID))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		_, _ = fmt.Sscan(rest, &kb) // 0 fails below
		return kb
	}
	cell(t, sb, "x = bytearray(300 << 20)")
	used := resident()
	cell(t, sb, "del x")
	testneed.Await(t, "the memory is returned", func() bool { return resident() < used-200<<10 })
	if used < 300<<10 {
		t.Errorf("the monitor used %d KiB", used)
	}
}
