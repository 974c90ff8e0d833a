//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// backendDir is the directory of all tests that do not change it, so that the template is made once.
var backendDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "recluse-backend-") })

func testBackend(t testing.TB) *Backend {
	t.Helper()
	dir, err := backendDir()
	if err != nil {
		t.Fatal(err)
	}
	return backendIn(t, dir)
}

func backendIn(t testing.TB, dir string) *Backend {
	t.Helper()
	testneed.Sandboxes(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{DataDir: filepath.Join(dir, "data"), CacheDir: filepath.Join(dir, "cache"), Engine: engine.Path, Guest: guest.Path, Network: sandboxtest.Network()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.sweeping.Wait) // before the directory is removed
	return b
}

func open(t testing.TB, b *Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	return sandboxtest.Open(t, b, spec)
}

func cell(t testing.TB, sb *sandbox.Sandbox, code string) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantCode(t *testing.T, err error, code v1.Code) {
	t.Helper()
	if v1.CodeOf(err) != code {
		t.Fatalf("got %v (%s), want %s", err, v1.CodeOf(err), code)
	}
}

// wantError checks code, message and remedy of an error, and that each is in the text once.
func wantError(t *testing.T, err error, code v1.Code, message, remedy string) {
	t.Helper()
	e, ok := errors.AsType[*v1.Error](err)
	if !ok {
		t.Fatalf("not a typed error: %v", err)
	}
	wantCode(t, err, code)
	if !strings.Contains(e.Message, message) || message == "" != (e.Message == "") {
		t.Errorf("message %q, want %q: %v", e.Message, message, err)
	}
	if !strings.Contains(e.Remedy, remedy) || remedy == "" != (e.Remedy == "") {
		t.Errorf("remedy %q, want %q: %v", e.Remedy, remedy, err)
	}
	for _, part := range []string{e.Message, e.Remedy} {
		if part != "" && strings.Count(err.Error(), part) != 1 {
			t.Errorf("%q is not in the text exactly once: %v", part, err)
		}
	}
	if e.Err != nil && strings.Contains(e.Message, e.Err.Error()) {
		t.Errorf("the message repeats the cause: %v", err)
	}
}

func TestBackendSuite(t *testing.T) {
	b := testBackend(t)
	scope, groups := sandboxtest.Everything, []string(nil)
	if os.Getenv(asUserEnv) != "" && !testneed.AllTests() {
		// limits of memory and processors require root
		scope, groups = sandboxtest.MachineFeatures, []string{"attachments", "snapshots", "disk", "root", "life"}
	}
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		Scope:     scope,
		Only:      groups,
		KillGuest: killGuest, EndUnknown: endUntold(t),
		Leftovers: func(_ *testing.T, ids []string) []string { return leftovers(b, ids) },
	})
}

// TestCapabilitiesAreThoseOfThisUser also guards the suite, which skips tests of missing capabilities.
func TestCapabilitiesAreThoseOfThisUser(t *testing.T) {
	users := []bool{true}
	if os.Getuid() == 0 {
		users = append(users, false)
	}
	for _, asUser := range users {
		b := backendIn(t, t.TempDir())
		b.opts.AsUser = asUser && os.Getuid() == 0 // an ordinary user does not need the option
		b.opts.Network.Proxy = func(*url.URL) (*url.URL, error) { return nil, nil }
		if notes := b.Capabilities(t.Context()).Notes; !strings.Contains(strings.Join(notes, "\n"), "HTTPS_PROXY") {
			t.Errorf("behind a proxy: %q", notes)
		}
		b.opts.Network.Proxy = nil
		c := b.Capabilities(t.Context())
		notes := strings.Join(c.Notes, "\n")
		if c.Isolation != sandbox.IsolationKernel || c.Snapshots != sandbox.SnapshotsMemory || c.Egress != sandbox.EgressAllPorts || !c.ProcessLimit || !c.DiskLimit || !c.WritableRoot || !c.OpenFileLimit || !c.Python || !c.Bash {
			t.Errorf("as an ordinary user %t: %+v", asUser, c)
		}
		if asUser && (c.MemoryLimit || c.CPULimit || !strings.Contains(notes, "ordinary user cannot make cgroups")) {
			t.Errorf("as an ordinary user: memory %t, CPU %t, %q", c.MemoryLimit, c.CPULimit, notes)
		}
		if asUser || c.MemoryLimit && c.CPULimit && notes == "" {
			continue
		}
		if os.Getenv("CI") != "" {
			t.Errorf("as root: memory %t, CPU %t, %q", c.MemoryLimit, c.CPULimit, notes)
		}
		t.Logf("LOUD: limits are not tested here: %s", notes)
	}
}

// TestTheGuestAloneKeepsMemory tests the memory limit of ordinary users, who have no cgroups.
func TestTheGuestAloneKeepsMemory(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.AsUser = true // also if this user is root
	if b.Capabilities(t.Context()).MemoryLimit {
		t.Fatal("the sandbox has a cgroup")
	}
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
	cell(t, sb, "x = 42")
	const hog = "hog = []\nwhile True: hog.append(bytearray(8 << 20))"
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", hog}})
	if err != nil {
		t.Fatal(err)
	}
	if v.Ended != v1.EndedMemory || v.MemoryKills < 1 {
		t.Errorf("a command ended by %s, with %d kills for memory: %s", v.Ended, v.MemoryKills, v)
	}
	if v := cell(t, sb, "x"); v.Result.Text() != "42" {
		t.Errorf("the interpreter was harmed: %s", v)
	}
	if v := cell(t, sb, hog); v.Ended != v1.EndedMemory && (v.Error == nil || v.Error.Name != "MemoryError") {
		t.Errorf("a cell ended by %s: %s", v.Ended, v)
	}
	if v := cell(t, sb, "1 + 1"); v.Result.Text() != "2" {
		t.Errorf("the sandbox was harmed: %s", v)
	}
}

// endUntold reports whether the kernel does not report how a reaped process ended. Linux 6.15 is the first that does.
func endUntold(t *testing.T) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major < 6 || major == 6 && minor < 15
}

// TestBackendSuiteAsOrdinaryUser runs the suite again without root.
func TestBackendSuiteAsOrdinaryUser(t *testing.T) {
	testneed.Sandboxes(t)
	if os.Getuid() != 0 {
		t.Skip("the whole suite already runs as an ordinary user")
	}
	dir, err := os.MkdirTemp("", "recluse-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"TestBackendSuite", "TestCapabilitiesAreThoseOfThisUser", "TestTheGuestAloneKeepsMemory"}
	self := filepath.Join(dir, "self")
	copyProgram(t, "/proc/self/exe", self)
	for _, p := range []string{engine.Path, guest.Path} {
		copyProgram(t, p, filepath.Join(dir, filepath.Base(p)))
	}
	cmd := exec.Command(self, "-test.run=^("+strings.Join(names, "|")+")$", "-test.v", "-test.timeout=8m")
	cmd.Dir = dir
	cmd.Env = []string{
		asUserEnv + "=1", "RECLUSE_ENGINE=" + filepath.Join(dir, filepath.Base(engine.Path)), "RECLUSE_GUEST=" + filepath.Join(dir, filepath.Base(guest.Path)),
		"TMPDIR=" + dir, "HOME=" + dir, "PATH=/usr/bin:/bin", "CI=" + os.Getenv("CI"), testneed.AllVariable + "=" + os.Getenv(testneed.AllVariable),
	}
	runtime.LockOSThread() // Pdeathsig kills the child when the thread that started it exits
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Fatalf("%s did not run:\n%s", name, out)
		}
	}
}

// guestPID returns the host's process that runs the guest.
func guestPID(b *Backend, id string) (int, error) {
	st, err := b.driver(b.engine.Path, false).state(id)
	if err != nil {
		return 0, err
	}
	for _, pid := range descendants(st.Sandbox.Pid) {
		if mapsFile(pid, "/"+filepath.Base(b.guest.Path)) {
			return pid, nil
		}
	}
	return 0, errors.New("no process maps the guest's program")
}

func killGuest(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	pid, err := guestPID(sb.Backend().(*Backend), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// leftovers lists what is left of sandboxes on the host.
func leftovers(b *Backend, ids []string) []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, id := range ids {
		for _, l := range lines {
			if text, _ := os.ReadFile(l); bytes.Contains(text, []byte(id)) && !strings.Contains(l, strconv.Itoa(os.Getpid())) {
				left = append(left, l+": "+string(text))
			}
		}
		if _, err := os.Stat(b.sandboxes.Path(id)); err == nil {
			left = append(left, b.sandboxes.Path(id))
		}
		if mounts, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(mounts, []byte(id)) {
			left = append(left, "mount of "+id)
		}
		if host, _ := b.limits(); host != nil {
			for _, tree := range host.trees() {
				if _, err := os.Stat(filepath.Join(tree, cgroupBase, id)); err == nil {
					left = append(left, filepath.Join(tree, cgroupBase, id))
				}
			}
		}
		if files, _ := filepath.Glob(filepath.Join(b.dir, "engine", "*"+id+"*")); len(files) > 0 {
			left = append(left, files...)
		}
	}
	return left
}

func TestSandboxProcessKilled(t *testing.T) {
	b := testBackend(t)
	noticedInTime(t, func() (killed time.Time) {
		sb := open(t, b, sandbox.Spec{})
		st, err := b.driver(b.engine.Path, false).state(sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		lost := func(err error) {
			t.Helper()
			wantCode(t, err, v1.CodeSandboxLost)
			if !strings.Contains(err.Error(), "the sandbox's process "+strconv.Itoa(st.Sandbox.Pid)) || !endUntold(t) && !strings.Contains(err.Error(), "killed by SIGKILL") {
				t.Errorf("the error lacks the process or its end: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), answerWait)
		defer cancel()
		ready := &said{ready: make(chan struct{})}
		result := make(chan error, 1)
		go func() {
			_, err := sb.Run(ctx, sandbox.Command{Shell: "echo ready; sleep 1000", RunOptions: sandbox.RunOptions{Stdout: ready}})
			result <- err
		}()
		select {
		case <-ready.ready:
		case err := <-result:
			t.Fatal(err)
		}
		killed = time.Now()
		if err := syscall.Kill(st.Sandbox.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		lost(<-result)
		_, err = sb.Cell(ctx, sandbox.Cell{Code: "1"})
		lost(err)
		return killed
	})
}

// said is the output of a command, which tells when there is some.
type said struct {
	ready chan struct{}
	once  sync.Once
}

func (s *said) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.ready) })
	return len(p), nil
}

func TestWhatADeadProgramLeftIsEnded(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	var ids []string
	for _, persist := range []bool{false, true} {
		sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Persist: persist})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID())
		sb.Detach()
		r, err := b.load(sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		r.Owner.Start++ // as if the PID now belonged to another process
		if err := b.sandboxes.Save(sb.ID(), r); err != nil {
			t.Fatal(err)
		}
	}
	b = backendIn(t, filepath.Dir(filepath.Dir(b.dir)))
	b.opts.NoTemplates = true
	open(t, b, sandbox.Spec{})
	if left := leftovers(b, ids[:1]); len(left) != 0 {
		t.Errorf("the orphan still exists: %v", left)
	}
	sb, err := sandbox.Attach(t.Context(), b, ids[1])
	if err != nil {
		t.Fatalf("the persistent sandbox: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

func TestOnlyOneMayBeAttached(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	_, err := sandbox.Attach(t.Context(), b, sb.ID())
	wantCode(t, err, v1.CodeBusy)
	if !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the error lacks the PID of the attached process: %v", err)
	}
	_, err = sandbox.Attach(t.Context(), b, "s000000000000")
	wantCode(t, err, v1.CodeNotFound)
	_, err = sandbox.Attach(t.Context(), b, "../x")
	wantCode(t, err, v1.CodeNotFound)
}

func TestNumericPythonFromTheHost(t *testing.T) {
	if err := exec.Command("/usr/bin/python3", "-c", "import numpy, pandas, matplotlib").Run(); err != nil {
		testneed.Lacking(t, "python3-numpy, python3-pandas or python3-matplotlib")
	}
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 30}})
	v, err := sb.Cell(t.Context(), sandbox.Cell{RunOptions: sandbox.RunOptions{Timeout: 2 * time.Minute}, Code: `
import numpy as np, pandas as pd, matplotlib.pyplot as plt
df = pd.DataFrame({"a": np.arange(5), "b": np.arange(5) ** 2})
plt.plot(df.a, df.b)
df.b.sum()`})
	if err != nil || v.Error != nil {
		t.Fatalf("%v %v %+v", v, err, v.Error)
	}
	if v.Result.Text() != "30" || len(v.Displays) != 1 || !strings.HasPrefix(v.Displays[0].Format("image/png"), "iVBORw0KGgo") {
		t.Errorf("%s, %d displays", v.Result.Text(), len(v.Displays))
	}
	v = cell(t, sb, "df")
	if !strings.Contains(v.Result.Format("text/html"), "<table") {
		t.Errorf("a data frame has no table: %v", v.Result)
	}
	forks, err := sb.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range forks {
		seen[cell(t, f, "np.random.rand()").Result.Text()] = true
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(seen) != 2 {
		t.Errorf("two forks draw the same numbers: %v", seen)
	}
}

func TestVerdictsCarryNoSecretsOfTheHost(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "env; cat /proc/*/environ 2>/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.load(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{r.Token, "RECLUSE_GUEST", b.dir} {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%q is visible inside", secret)
		}
	}
}

func TestProgramsAreChosenByPath(t *testing.T) {
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	opts := Options{DataDir: filepath.Join(dir, "data"), CacheDir: filepath.Join(dir, "cache"), Engine: engine.Path, Guest: guest.Path}
	b, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if b.engine.Hash != engine.Hash || b.guest.Hash != guest.Hash {
		t.Errorf("wrong programs: %+v, %+v", b.engine, b.guest)
	}
	for name, path := range map[string]string{"nothing": filepath.Join(dir, "none"), "a directory": dir, "no program": "/etc/passwd"} {
		opts.Guest = path
		_, err := New(opts)
		if remedy, _ := v1.SplitRemedy(err); v1.CodeOf(err) != v1.CodeEngineMissing || !strings.Contains(remedy, "correct the path") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
