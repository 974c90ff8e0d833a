//go:build linux

package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// guestPath is a guest built from this tree.
var guestPath string

func TestMain(m *testing.M) {
	if dir := os.Getenv(makerEnv); dir != "" {
		make1(dir)
	}
	guest, err := testbin.Guest()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	guestPath = guest.Path
	// The PATH of a developer may contain wrappers; the suite requires the programs of the system.
	_ = os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	goleak.VerifyTestMain(m)
}

func TestFeatures(t *testing.T) {
	dir := t.TempDir()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	t.Cleanup(func() { // tests of the suite continue after Run has returned
		entries, err := os.ReadDir(filepath.Join(dir, local.Name))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			t.Errorf("left behind: %s", e.Name())
		}
	})
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) {
			if err := syscall.Kill(pidOf(t, b, sb.ID()), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Leftovers: func(t *testing.T, ids []string) []string { return leftovers(t, dir, ids) },
	})
}

// makerEnv is the environment variable that makes this test program another program, which makes a sandbox in that
// directory.
const makerEnv = "RECLUSE_TEST_MAKER"

// make1 makes a sandbox, prints its ID, and waits to be killed.
func make1(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	b := local.New(local.Options{Dir: dir, GuestPath: os.Getenv(makerEnv + "_GUEST")})
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{Labels: map[string]string{"made": "elsewhere"}, Persist: os.Getenv(makerEnv+"_PERSIST") == "true"})
	if err != nil {
		fail(err)
	}
	if v, err := sb.Cell(ctx, sandbox.Cell{Code: "kept = 42"}); err != nil || !v.OK() {
		fail(fmt.Errorf("%v, %w", v, err))
	}
	if _, err := sb.Start(ctx, sandbox.Command{RunOptions: sandbox.RunOptions{ID: "counting"}, Shell: "i=0; until [ -e go ]; do i=$((i+1)); echo $i; sleep 0.01; done; echo end"}); err != nil {
		fail(err)
	}
	fmt.Println(sb.ID())
	select {}
}

// maker starts the other program and returns the sandbox it has made.
func maker(t *testing.T, dir string, persist bool) (cmd *exec.Cmd, id string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), makerEnv+"="+dir, makerEnv+"_GUEST="+guestPath, fmt.Sprintf("%s_PERSIST=%t", makerEnv, persist))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := fmt.Fscan(out, &id); err != nil {
		t.Fatalf("the other program made no sandbox: %v", err)
	}
	return cmd, id
}

func TestASandboxOutlivesTheProgramThatMadeIt(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	cmd, id := maker(t, dir, false)
	defer func() {
		if err := b.Stop(context.WithoutCancel(ctx), id); err != nil {
			t.Error(err)
		}
	}()

	_, err := sandbox.Attach(ctx, b, id)
	if v1.CodeOf(err) != v1.CodeBusy || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
		t.Fatalf("while the maker lives, the error is %v; it should name process %d", err, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	all, err := b.List(ctx)
	if err != nil || len(all) != 1 || all[0].ID != id || !all[0].Running || all[0].Labels["made"] != "elsewhere" {
		t.Fatalf("list: %+v, %v", all, err)
	}
	sb, err := sandbox.Attach(ctx, b, id)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	v, err := sb.Cell(ctx, sandbox.Cell{Code: "kept"})
	if err != nil || v.Result.Text() != "42" {
		t.Fatalf("the variable is %v, %v", v, err)
	}
	if v, err := sb.Run(ctx, sandbox.Command{Shell: "touch go"}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	var out strings.Builder
	v, err = sb.Follow(ctx, "counting", sandbox.FollowOptions{Stdout: &out})
	if err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	lines := strings.Fields(out.String())
	for i, l := range lines[:len(lines)-1] {
		if l != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q: the output is incomplete", i+1, l)
		}
	}

	// Its guest is not a child of this process, so only its end is known, not how it ended.
	if err := syscall.Kill(all[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sb.Gone():
	case <-time.After(20 * time.Second):
		t.Fatal("the end of the guest is not noticed")
	}
	if _, err := sb.Run(ctx, sandbox.Command{Args: []string{"true"}}); !errors.Is(err, sandbox.ErrGuestLost) {
		t.Errorf("a command without a guest: %v", err)
	}
	sb.Detach()
	if _, err := sandbox.Attach(ctx, b, id); !errors.Is(err, sandbox.ErrGuestLost) {
		t.Errorf("attach without a guest: %v", err)
	}
	if all, err := b.List(ctx); err != nil || len(all) != 1 || all[0].Running {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestStopEndsWhatLostGuestAndNanny(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	v, err := sb.Run(ctx, sandbox.Command{Shell: "setsid sleep 1000 >/dev/null 2>&1 & setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 & echo $PPID"})
	if err != nil {
		t.Fatal(err)
	}
	nanny, err := strconv.Atoi(strings.TrimSpace(v.Stdout.String()))
	if err != nil || len(v.Survivors) < 2 {
		t.Fatal(err, v.Survivors)
	}
	// The guest first: it would kill the orphans of a nanny.
	for _, pid := range []int{pidOf(t, b, sb.ID()), nanny} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	<-sb.Gone()
	if err := b.Stop(ctx, sb.ID()); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, dir, []string{sb.ID()}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestWhatADeadProgramLeftIsEnded(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	cmd, left := maker(t, dir, false)
	persistent, kept := maker(t, dir, true)
	living, alive := maker(t, dir, false)
	taken, used := maker(t, dir, false)
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	for _, id := range []string{left, kept, alive, used} {
		defer func() {
			if err := b.Stop(context.WithoutCancel(ctx), id); err != nil {
				t.Error(err)
			}
		}()
	}
	for _, c := range []*exec.Cmd{cmd, persistent, taken} {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	// A program that has attached owns the sandbox from then on, even after it has detached.
	user, err := sandbox.Attach(ctx, local.New(local.Options{Dir: dir, GuestPath: guestPath}), used)
	if err != nil {
		t.Fatal(err)
	}
	user.Detach()

	sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if l := leftovers(t, dir, []string{left}); len(l) > 0 {
		t.Errorf("the orphan still exists: %q", l)
	}
	running := map[string]bool{}
	all, err := b.List(ctx)
	for _, i := range all {
		running[i.ID] = i.Running
	}
	if err != nil || len(all) != 4 || !running[kept] || !running[alive] || !running[used] {
		t.Errorf("list: %+v, %v", all, err)
	}
	if living.ProcessState != nil {
		t.Error("the living maker has ended")
	}
}

// A program that dies while it makes a sandbox leaves a record without a process.
func TestStopEndsWhatWasHalfMade(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	cmd, id := maker(t, dir, false)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	pid := pidOf(t, b, id)
	file := filepath.Join(dir, local.Name, id, "sandbox.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	state["process"] = map[string]any{}
	if text, err = json.Marshal(state); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if all, err := b.List(ctx); err != nil || len(all) != 1 || all[0].Running {
		t.Errorf("list: %+v, %v", all, err)
	}
	if _, err := sandbox.Attach(ctx, b, id); !errors.Is(err, sandbox.ErrGuestLost) {
		t.Errorf("attach to it: %v", err)
	}
	if err := b.Stop(ctx, id); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, dir, []string{id}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(b), ") Z") {
		t.Errorf("its guest still runs: %s", b)
	}
}

func TestAFloodLeavesTheGuestSmall(t *testing.T) {
	b := local.New(local.Options{Dir: t.TempDir(), GuestPath: guestPath})
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "head -c 100000000 /dev/zero", RunOptions: sandbox.RunOptions{Stdout: io.Discard}})
	if err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pidOf(t, b, sb.ID())))
	if err != nil {
		t.Fatal(err)
	}
	var peak int
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			peak, _ = strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	if peak == 0 || peak > 64<<10 {
		t.Errorf("the guest has grown to %d KB", peak)
	}
}

func TestHealthTellsWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, guest, want string }{
		{"no guest", filepath.Join(t.TempDir(), "nothing"), "not found"},
		{"not a program", writeFile(t, "text"), "does not run"},
		{"another program", "/bin/true", "the program is not the guest"},
	} {
		h := local.New(local.Options{Dir: t.TempDir(), GuestPath: c.guest}).Health(t.Context())
		if h.OK || !strings.Contains(h.Reason, c.want) {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
	file := writeFile(t, "a file where a directory should be")
	if h := local.New(local.Options{Dir: file, GuestPath: guestPath}).Health(t.Context()); h.OK || !strings.Contains(h.Reason, "cannot make the directory") {
		t.Errorf("no directory: %+v", h)
	}
	if _, err := sandbox.Open(t.Context(), local.New(local.Options{Dir: file, GuestPath: guestPath}), sandbox.Spec{}); v1.CodeOf(err) != v1.CodeStartFailed {
		t.Errorf("start without a directory: %v", err)
	}
	_, err := sandbox.Open(t.Context(), local.New(local.Options{Dir: t.TempDir(), GuestPath: "/bin/true"}), sandbox.Spec{})
	if c := v1.CodeOf(err); c != v1.CodeGuestLost && c != v1.CodeStartFailed {
		t.Errorf("start with another program: %v", err)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(p, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSpecsThatNeedIsolationAreRefused(t *testing.T) {
	b := local.New(local.Options{Dir: t.TempDir(), GuestPath: guestPath})
	for name, spec := range map[string]sandbox.Spec{
		"image": {Image: "alpine"}, "root file system": {RootFS: "/"}, "mount": {Mounts: []sandbox.Mount{{Host: "/opt", Path: "/mnt/x"}}}, "host name": {Hostname: "box"},
	} {
		if _, err := sandbox.Open(t.Context(), b, spec); !errors.Is(err, sandbox.ErrNotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, limits := range map[string]sandbox.Limits{
		"memory": {Memory: 256 << 20}, "cpus": {CPUs: 0.5}, "processes": {Processes: 64}, "disk": {Disk: 32 << 20}, "open files": {OpenFiles: 100},
	} {
		if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{Limits: limits}); !errors.Is(err, sandbox.ErrNotSupported) || !strings.Contains(err.Error(), "limit "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	caps := b.Capabilities(t.Context())
	if caps.Isolation != sandbox.IsolationNone || caps.MemoryLimit || caps.CPULimit || caps.ProcessLimit || caps.DiskLimit || caps.OpenFileLimit || caps.Egress != sandbox.EgressUnfiltered || caps.Snapshots != sandbox.SnapshotsNone {
		t.Errorf("wrong capabilities: %+v", caps)
	}
}

func TestProductionIsRefused(t *testing.T) {
	b := local.New(local.Options{Dir: t.TempDir(), GuestPath: guestPath})
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	for env, code := range map[string]v1.Code{"production": v1.CodeConsentMissing, "Production": v1.CodeInvalidSpec} {
		t.Setenv("RECLUSE_ENV", env)
		for what, try := range map[string]func() (*sandbox.Sandbox, error){
			"a new one":            func() (*sandbox.Sandbox, error) { return sandbox.Open(t.Context(), b, sandbox.Spec{}) },
			"one that has started": func() (*sandbox.Sandbox, error) { return sandbox.Attach(t.Context(), b, sb.ID()) },
		} {
			got, err := try()
			if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != code || e.Message == "" || e.Remedy == "" {
				t.Errorf("%s with %s: %v", what, env, err)
			}
			if err == nil {
				_ = got.Close()
			}
		}
	}
	// Existing sandboxes can still be ended.
	if err := b.Stop(t.Context(), sb.ID()); err != nil {
		t.Error(err)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

func TestStateIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	fi, err := os.Stat(filepath.Join(dir, local.Name, sb.ID()))
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the sandbox's directory: %v, %v", fi.Mode(), err)
	}
}

func pidOf(t *testing.T, b sandbox.Backend, id string) int {
	t.Helper()
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.ID == id {
			return i.PID
		}
	}
	t.Fatalf("%s is not listed", id)
	return 0
}

// leftovers returns the remaining directories of sandboxes, and the processes that refer to them.
func leftovers(t *testing.T, dir string, ids []string) []string {
	t.Helper()
	var left []string
	for _, id := range ids {
		if _, err := os.Stat(filepath.Join(dir, local.Name, id)); err == nil {
			left = append(left, id)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		env, _ := os.ReadFile(p + "/environ") // an ended process has none
		cwd, _ := os.Readlink(p + "/cwd")
		for _, id := range ids {
			if strings.Contains(string(env), id) || strings.Contains(cwd, id) {
				name, _ := os.ReadFile(p + "/comm")
				left = append(left, p+" "+string(name))
			}
		}
	}
	return left
}

func TestANetworkThatIsNotFiltered(t *testing.T) {
	sb, err := sandbox.Open(t.Context(), local.New(local.Options{Dir: t.TempDir(), GuestPath: guestPath}), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if err := sb.SetNetwork(t.Context(), v1.Network{Preset: v1.NetworkPackages}, 2); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("a policy that the backend cannot enforce: %v", err)
	}
	if err := sb.SetNetwork(t.Context(), v1.Network{Preset: v1.NetworkAll}, 2); err != nil {
		t.Error(err)
	}
	d, err := sb.CheckNetwork(t.Context(), "example.com:22")
	if err != nil || d.Action != v1.NetworkAllow || d.Rule != string(sandbox.EgressUnfiltered) {
		t.Errorf("%+v, %v", d, err)
	}
}
