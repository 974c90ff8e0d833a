//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// backendDir is shared by the tests that do not change it, so that the template is made once.
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
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{DataDir: filepath.Join(dir, "data"), CacheDir: filepath.Join(dir, "cache"), Engine: engine.Path, Guest: guest.Path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.sweeping.Wait) // before the directory goes away
	return b
}

func open(t testing.TB, b *Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), b, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func cell(t testing.TB, sb *sandbox.Sandbox, code string) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Fatalf("got %v (%s), want %s", err, sandbox.CodeOf(err), code)
	}
}

// wantError asks for all that a typed error has to say, each thing once.
func wantError(t *testing.T, err error, code sandbox.Code, message, remedy string) {
	t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
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
			t.Errorf("%q is said more than once: %v", part, err)
		}
	}
	if e.Err != nil && strings.Contains(e.Message, e.Err.Error()) {
		t.Errorf("its cause is in the message already: %v", err)
	}
}

func TestBackendSuite(t *testing.T) {
	b := testBackend(t)
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: killGuest, EndUntold: endUntold(t),
		Leftovers: func(_ *testing.T, ids []string) []string { return leftovers(b, ids) },
	})
}

// TestCapabilitiesAreThoseOfThisUser also keeps the suite honest: what a capability denies it does not try.
func TestCapabilitiesAreThoseOfThisUser(t *testing.T) {
	users := []bool{true}
	if os.Getuid() == 0 {
		users = append(users, false)
	}
	for _, asUser := range users {
		b := backendIn(t, t.TempDir())
		b.opts.AsUser = asUser && os.Getuid() == 0 // who is none needs no pretence
		c := b.Capabilities(t.Context())
		notes := strings.Join(c.Notes, "\n")
		if c.Isolation != sandbox.IsolationKernel || c.Snapshots != sandbox.SnapshotsMemory || !c.NetworkOff || !c.ProcessLimit || !c.DiskLimit || !c.OpenFileLimit || !c.Python || !c.Bash {
			t.Errorf("as an ordinary user %t: %+v", asUser, c)
		}
		if asUser && (c.MemoryLimit || c.CPULimit || !strings.Contains(notes, "ordinary user may not make cgroups")) {
			t.Errorf("as an ordinary user: memory %t, CPU %t, %q", c.MemoryLimit, c.CPULimit, notes)
		}
		if asUser || c.MemoryLimit && c.CPULimit && notes == "" {
			continue
		}
		if os.Getenv("CI") != "" {
			t.Errorf("as root: memory %t, CPU %t, %q", c.MemoryLimit, c.CPULimit, notes)
		}
		t.Logf("LOUD: limits are not tried here: %s", notes)
	}
}

// TestTheGuestAloneKeepsMemory is for ordinary users, who have no cgroups.
func TestTheGuestAloneKeepsMemory(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.AsUser = true // also where we are root
	if b.Capabilities(t.Context()).MemoryLimit {
		t.Fatal("there is a cgroup, and the guest is not alone")
	}
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
	cell(t, sb, "x = 42")
	const hog = "hog = []\nwhile True: hog.append(bytearray(8 << 20))"
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", hog}})
	if err != nil {
		t.Fatal(err)
	}
	if v.Ended != sandbox.EndedMemory || v.MemoryKills < 1 {
		t.Errorf("a command ended by %s, with %d kills for memory: %s", v.Ended, v.MemoryKills, v)
	}
	if v := cell(t, sb, "x"); v.Result.Text() != "42" {
		t.Errorf("the interpreter was harmed: %s", v)
	}
	if v := cell(t, sb, hog); v.Ended != sandbox.EndedMemory && (v.Error == nil || v.Error.Name != "MemoryError") {
		t.Errorf("a cell ended by %s: %s", v.Ended, v)
	}
	if v := cell(t, sb, "1 + 1"); v.Result.Text() != "2" {
		t.Errorf("the sandbox was harmed: %s", v)
	}
}

// endUntold reports whether the kernel is older than 6.15, which is the first to tell how a process ended after it was reaped.
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
	if os.Getuid() != 0 {
		t.Skip("the whole suite runs as an ordinary user already")
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
		"TMPDIR=" + dir, "HOME=" + dir, "PATH=/usr/bin:/bin", "CI=" + os.Getenv("CI"),
	}
	runtime.LockOSThread() // the child ends with the thread that has started it, and threads end here with what they did
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

// guestPID finds the host's process that carries the guest.
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

// leftovers names what the host still holds of sandboxes.
func leftovers(b *Backend, ids []string) []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, id := range ids {
		for _, l := range lines {
			if text, _ := os.ReadFile(l); bytes.Contains(text, []byte(id)) && !strings.Contains(l, strconv.Itoa(os.Getpid())) {
				left = append(left, l+": "+string(text))
			}
		}
		if _, err := os.Stat(b.sandboxDir(id)); err == nil {
			left = append(left, b.sandboxDir(id))
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
			wantCode(t, err, sandbox.CodeSandboxLost)
			if !strings.Contains(err.Error(), "the sandbox's process "+strconv.Itoa(st.Sandbox.Pid)) || !endUntold(t) && !strings.Contains(err.Error(), "killed by SIGKILL") {
				t.Errorf("it does not say which, or how: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), answerWait)
		defer cancel()
		ready := &said{ready: make(chan struct{})}
		result := make(chan error, 1)
		go func() {
			_, err := sb.Run(ctx, sandbox.Command{Shell: "echo ready; sleep 1000", Stdout: ready})
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

func TestSnapshotSurvivesAndIsChecked(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "import json; x = 41")
	take := func(t *testing.T) *sandbox.Snapshot {
		t.Helper()
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.DeleteSnapshot(context.Background(), snap.ID); err != nil {
				t.Error(err)
			}
		})
		return snap
	}
	change := func(t *testing.T, snap *sandbox.Snapshot, f func(*manifest)) {
		t.Helper()
		path := filepath.Join(b.snapshotDir(snap.ID), manifestFile)
		m := &manifest{}
		if err := statefile.Read(path, m); err != nil {
			t.Fatal(err)
		}
		f(m)
		if err := statefile.Write(path, m); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(t *testing.T, snap *sandbox.Snapshot, code sandbox.Code) (err error) {
		t.Helper()
		toldInTime(t, func() {
			_, err = sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
			wantCode(t, err, code)
		})
		return err
	}
	t.Run("it holds interpreter state", func(t *testing.T) {
		snap := take(t)
		cell(t, sb, "x = 0")
		got, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{Env: map[string]string{"COLOUR": "green"}})
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if v := cell(t, got, "import os; (x, os.environ['COLOUR'])"); v.Result.Text() != "(41, 'green')" {
			t.Errorf("%s %+v", v.Result.Text(), v.Error)
		}
		if snap.Size == 0 || snap.Parent != sb.ID() {
			t.Errorf("%+v", snap)
		}
		cell(t, sb, "x = 41")
	})
	t.Run("a changed file of the host is named", func(t *testing.T) {
		snap := take(t)
		var held string
		change(t, snap, func(m *manifest) {
			for i, h := range m.Held {
				if held == "" && strings.Contains(h.Path, "python3") {
					m.Held[i].Mtime--
					held = h.Path
				}
			}
		})
		if held == "" {
			t.Fatal("the interpreter is not among the files that the snapshot holds")
		}
		if err := refused(t, snap, sandbox.CodeSnapshotStale); !strings.Contains(err.Error(), held) {
			t.Errorf("the error does not name %s: %v", held, err)
		}
	})
	t.Run("a damaged one", func(t *testing.T) {
		snap := take(t)
		files, err := filepath.Glob(filepath.Join(b.snapshotDir(snap.ID), checkpointDir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil || len(data) == 0 {
				continue
			}
			data[len(data)/2] ^= 0xff
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
			_ = refused(t, snap, sandbox.CodeSnapshotCorrupt)
			data[len(data)/2] ^= 0xff
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("one with a broken manifest", func(t *testing.T) {
		snap := take(t)
		if err := os.WriteFile(filepath.Join(b.snapshotDir(snap.ID), manifestFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = refused(t, snap, sandbox.CodeSnapshotCorrupt)
	})
	t.Run("one of another version", func(t *testing.T) {
		snap := take(t)
		change(t, snap, func(m *manifest) { m.Format = 99 })
		_ = refused(t, snap, sandbox.CodeSnapshotVersion)
	})
	t.Run("one whose engine is gone", func(t *testing.T) {
		snap := take(t)
		change(t, snap, func(m *manifest) { m.Record.Engine = strings.Repeat("0", 64) })
		_ = refused(t, snap, sandbox.CodeSnapshotVersion)
	})
	t.Run("one that does not exist", func(t *testing.T) {
		for _, id := range []string{"p0000", "../../etc", ""} {
			_ = refused(t, &sandbox.Snapshot{ID: id}, sandbox.CodeNotFound)
		}
	})
	if v := cell(t, sb, "x"); v.Result.Text() != "41" {
		t.Errorf("the original was harmed: %v", v)
	}
}

func TestSnapshotOnAFullDisk(t *testing.T) {
	testneed.Root(t, "mounting a small disk")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	b := backendIn(t, dir)
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "import os; data = os.urandom(90 << 20); x = 7")
	_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	wantCode(t, err, sandbox.CodeDiskFull)
	if entries, err := os.ReadDir(filepath.Join(b.dir, "snapshots")); err != nil || len(entries) != 0 {
		t.Errorf("something is left: %v %v", entries, err)
	}
	if v := cell(t, sb, "x, len(data)"); v.Result.Text() != "(7, 94371840)" {
		t.Errorf("the sandbox was harmed: %v %v", v, v.Result.Text())
	}
}

func TestATemplateIsMadeAgainWhenTheHostChanged(t *testing.T) {
	b := backendIn(t, t.TempDir())
	open(t, b, sandbox.Spec{})
	find := func() string {
		dirs, err := filepath.Glob(filepath.Join(b.dir, "templates", "*", manifestFile))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		return dirs[0]
	}
	m := &manifest{}
	if err := statefile.Read(find(), m); err != nil {
		t.Fatal(err)
	}
	was := m.Snapshot.Created
	m.Held[0].Mtime++
	if err := statefile.Write(find(), m); err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{})
	if v := cell(t, sb, "1+1"); v.Result.Text() != "2" {
		t.Fatal(v)
	}
	if err := statefile.Read(find(), m); err != nil || !m.Snapshot.Created.After(was) {
		t.Fatalf("the stale template was used: %v", err)
	}
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
		r.Owner.Start++ // as if the pid belonged to somebody else by now
		if err := statefile.Write(filepath.Join(b.sandboxDir(sb.ID()), recordFile), r); err != nil {
			t.Fatal(err)
		}
	}
	b = backendIn(t, filepath.Dir(filepath.Dir(b.dir)))
	b.opts.NoTemplates = true
	open(t, b, sandbox.Spec{})
	if left := leftovers(b, ids[:1]); len(left) != 0 {
		t.Errorf("the orphan is still there: %v", left)
	}
	sb, err := sandbox.Attach(t.Context(), b, ids[1])
	if err != nil {
		t.Fatalf("the one that should persist: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

func TestOnlyOneMayBeAttached(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	_, err := sandbox.Attach(t.Context(), b, sb.ID())
	wantCode(t, err, sandbox.CodeBusy)
	if !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the error does not name who: %v", err)
	}
	_, err = sandbox.Attach(t.Context(), b, "s000000000000")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = sandbox.Attach(t.Context(), b, "../x")
	wantCode(t, err, sandbox.CodeNotFound)
}

func TestAnOrdinaryUsersMountsAreReadOnly(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.AsUser = true
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, err = sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data", Writable: true}}})
	wantCode(t, err, sandbox.CodeNotSupported)
}

func TestMounts(t *testing.T) {
	testneed.Root(t, "a writable mount")
	b := testBackend(t)
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "data"), []byte("42"), 0o644)); err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data"}, {Host: dir, Path: "/mnt/out", Writable: true}}})
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "cat /data/data; touch /data/x 2>/dev/null || echo ' read-only'; echo made > /mnt/out/made"})
	if err != nil || v.Stdout.String() != "42 read-only\n" || !v.OK() {
		t.Fatalf("%v %v %s %s", v, err, v.Stdout, v.Stderr)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(got) != "made\n" {
		t.Errorf("%q %v", got, err)
	}
	for _, bad := range []string{"/", "/etc", "//etc", "/proc", "/root", "/var/../etc", "/run"} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: bad, Path: "/data"}}})
		wantError(t, err, sandbox.CodeMountRefused, "this path is not shown to a sandbox", "made for sharing")
	}
	for bad, want := range map[string][2]string{
		"relative":                      {"this path is not shown to a sandbox", "give an absolute path"},
		filepath.Join(dir, "not there"): {"it does not exist", "create it first"},
	} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: bad, Path: "/data"}}})
		wantError(t, err, sandbox.CodeMountRefused, want[0], want[1])
	}
	for _, bad := range []string{"/", "/etc", "/usr/lib", "data", "/proc/x", "/home/user/x", "/tmp"} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: bad}}})
		wantCode(t, err, sandbox.CodeInvalidSpec)
	}
}

// bareRoot is a root file system with one static program and nothing else.
func bareRoot(t *testing.T) string {
	t.Helper()
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "recluse-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "app"), 0o755)); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, guest.Path, filepath.Join(dir, "app", "program"))
	return dir
}

func TestARootWithoutShellAndPython(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{RootFS: bareRoot(t)})
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"/app/program"}})
	if err != nil || v.ExitCode != 2 || !strings.Contains(v.Stderr.String(), "started by recluse") {
		t.Fatalf("%v %v %s", v, err, v.Stderr)
	}
	toldInTime(t, func() {
		_, err := sb.Run(t.Context(), sandbox.Command{Shell: "true"})
		wantCode(t, err, sandbox.CodeNoShell)
	})
	toldInTime(t, func() {
		_, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1"})
		wantCode(t, err, sandbox.CodeNoPython)
	})
	v, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"nothing"}})
	if err != nil || v.ExitCode != 127 {
		t.Errorf("%v %v", v, err)
	}
}

func TestRootsThatCannotBe(t *testing.T) {
	b := testBackend(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const name = "name a directory that holds a system"
	for what, c := range map[string]struct {
		spec            sandbox.Spec
		code            sandbox.Code
		message, remedy string
	}{
		"nothing there":       {sandbox.Spec{RootFS: "/does/not/exist"}, sandbox.CodeRootFS, "/does/not/exist cannot be used as one", "create it first"},
		"a file":              {sandbox.Spec{RootFS: file}, sandbox.CodeRootFS, "cannot be used as one", name},
		"all of the host":     {sandbox.Spec{RootFS: "/"}, sandbox.CodeRootFS, "cannot be used as one", "made for sharing"},
		"an empty directory":  {sandbox.Spec{RootFS: t.TempDir()}, sandbox.CodeRootFS, "cannot be used as one", name},
		"an empty archive":    {sandbox.Spec{Image: "tar:" + file}, sandbox.CodeInvalidSpec, "holds neither manifest.json nor index.json", "docker-save"},
		"no archive":          {sandbox.Spec{Image: "/none.tar"}, sandbox.CodeImageNotFound, "there is no file or directory", "check the path"},
		"too little memory":   {sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 20}}, sandbox.CodeInvalidSpec, "memory of 1048576 bytes", ""},
		"less than nothing":   {sandbox.Spec{Limits: sandbox.Limits{CPUs: -1}}, sandbox.CodeInvalidSpec, "-1 cpus", ""},
		"too few processes":   {sandbox.Spec{Limits: sandbox.Limits{Processes: 1}}, sandbox.CodeInvalidSpec, "1 processes", ""},
		"more disk than room": {sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 28, Disk: 1 << 30}}, sandbox.CodeInvalidSpec, "a disk of", ""},
	} {
		t.Run(what, func(t *testing.T) {
			toldInTime(t, func() {
				_, err := sandbox.Open(t.Context(), b, c.spec)
				wantError(t, err, c.code, c.message, c.remedy)
			})
		})
	}
}

func TestNumericPythonFromTheHost(t *testing.T) {
	if err := exec.Command("/usr/bin/python3", "-c", "import numpy, pandas, matplotlib").Run(); err != nil {
		testneed.Lacking(t, "python3-numpy, python3-pandas or python3-matplotlib")
	}
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 30}})
	v, err := sb.Cell(t.Context(), sandbox.Cell{Timeout: 2 * time.Minute, Code: `
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
		t.Errorf("other programs are used: %+v, %+v", b.engine, b.guest)
	}
	for name, path := range map[string]string{"nothing": filepath.Join(dir, "none"), "a directory": dir, "no program": "/etc/passwd"} {
		opts.Guest = path
		if _, err := New(opts); sandbox.CodeOf(err) != sandbox.CodeEngineMissing {
			t.Errorf("%s: %v", name, err)
		}
	}
}
