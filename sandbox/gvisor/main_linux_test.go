//go:build linux

package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

const (
	// answerWait is how long to wait for an answer of the stand-in guest.
	answerWait = 20 * time.Second
	// nobody is the UID of the ordinary user in tests.
	nobody = 65534
	// asUserEnv marks the test process that runs as an ordinary user.
	asUserEnv = "RECLUSE_TEST_AS_USER"
)

// standIn is the guest of these tests: a shell that evaluates each line it receives.
var standIn = []string{"/bin/sh", "-c", `while IFS= read -r line; do eval "$line"; done`}

var (
	enginePath string
	rootsDir   string // the built default root, shared by all tests, because making it takes half a second
)

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	engine, guest, err := testbin.Programs()
	if err != nil {
		fmt.Fprintln(os.Stderr, "programs for tests:", err)
		return 1
	}
	enginePath = engine.Path
	// The examples find the programs in the way of a user program.
	if err := errors.Join(os.Setenv("RECLUSE_ENGINE", engine.Path), os.Setenv("RECLUSE_GUEST", guest.Path)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if rootsDir, err = os.MkdirTemp("", "recluse-roots-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		_ = os.RemoveAll(rootsDir)
		if dir, err := backendDir(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}()
	code := m.Run()
	if err := sandboxtest.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestAsOrdinaryUser runs the tests named Engine, Stream and HostRoot again as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	testneed.Sandboxes(t)
	if os.Getuid() != 0 {
		t.Skip("the whole suite already runs as an ordinary user")
	}
	// The temporary directories of Go tests are not accessible for other users.
	dir, err := os.MkdirTemp("", "recluse-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	self, engine, guest := filepath.Join(dir, "self"), filepath.Join(dir, "engine"), filepath.Join(dir, "guest")
	copyProgram(t, "/proc/self/exe", self)
	copyProgram(t, enginePath, engine)
	copyProgram(t, os.Getenv("RECLUSE_GUEST"), guest)
	cmd := exec.Command(self, "-test.run=^Test(Engine|Stream|HostRoot)", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asUserEnv + "=1", "RECLUSE_ENGINE=" + engine, "RECLUSE_GUEST=" + guest, "TMPDIR=" + dir, "HOME=" + dir, "PATH=/usr/bin:/bin"}
	runtime.LockOSThread() // Pdeathsig kills the child when the thread that started it exits
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "--- SKIP") {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestEngineLife") {
		t.Fatalf("the tests did not run:\n%s", out)
	}
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// bench is an engine with its directories for one test. At the end of the test it checks that nothing is left.
type bench struct {
	t    testing.TB
	dir  string
	eng  *engine
	root *hostRoot
}

func newBench(t testing.TB) *bench {
	t.Helper()
	testneed.Sandboxes(t)
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, eng: &engine{path: enginePath, root: filepath.Join(dir, "state"), userns: os.Getuid() != 0}}
	if err := os.Mkdir(b.eng.root, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := buildHostRoot(t.Context(), rootsDir, "/", false)
	if err != nil {
		t.Fatal(err)
	}
	b.root = root
	t.Cleanup(b.checkEmpty)
	return b
}

// checkEmpty fails the test if processes, engine files or mounts are left.
func (b *bench) checkEmpty() {
	b.t.Helper()
	var left []string
	for deadline := time.Now().Add(answerWait); ; time.Sleep(10 * time.Millisecond) {
		if left = b.leftovers(); len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("left behind: %v", left)
			return
		}
	}
}

func (b *bench) leftovers() []string {
	var left []string
	files, _ := os.ReadDir(b.eng.root)
	for _, f := range files {
		left = append(left, "file "+f.Name())
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		line, _ := os.ReadFile(p)
		if strings.Contains(string(line), "--root="+b.eng.root) {
			left = append(left, "process "+p)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), b.dir) {
		left = append(left, "a mount below "+b.dir)
	}
	return left
}

// box is one sandbox in a test.
type box struct {
	*bench
	id, dir string
	stream  *fifo.Stream
	lines   *bufio.Reader
}

// prepare makes the sandbox directory and its bundle.
func (b *bench) prepare(id string, change func(*bundleSpec)) *box {
	b.t.Helper()
	x := &box{bench: b, id: id, dir: filepath.Join(b.dir, id)}
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	spec := &bundleSpec{
		root: b.root.dir, binds: b.root.binds, hostname: "box", argv: standIn,
		env: []string{"PATH=/usr/bin:/bin"}, capabilities: guestCapabilities,
		mounts: []specs.Mount{memoryFS("/tmp", "size=64m", "mode=1777"), memoryFS(v1.DefaultHome, "size=16m", "mode=755", "uid=1000", "gid=1000")},
	}
	if change != nil {
		change(spec)
	}
	if err := spec.write(x.dir); err != nil {
		b.t.Fatal(err)
	}
	return x
}

// start runs the sandbox, or restores it from image, and attaches to it.
func (x *box) start(ctx context.Context, image string) error {
	pipes, err := fifo.MakeWithStderr(x.dir)
	if err != nil {
		return err
	}
	defer pipes.Close()
	if image == "" {
		err = x.eng.run(ctx, x.id, x.dir, nil, pipes)
	} else {
		err = x.eng.restore(ctx, x.id, x.dir, image, nil, pipes)
	}
	if err != nil {
		return err
	}
	x.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerWait)
		defer cancel()
		if err := x.eng.delete(ctx, x.id); err != nil && !errors.Is(err, errNoSandbox) {
			x.t.Error(err)
		}
	})
	return x.attach()
}

func (x *box) attach() error {
	s, err := fifo.Open(x.dir)
	if err != nil {
		return err
	}
	x.stream, x.lines = s, bufio.NewReader(s)
	x.t.Cleanup(func() { _ = s.Close() })
	return nil
}

func (b *bench) mustStart(id string, change func(*bundleSpec), image string) *box {
	b.t.Helper()
	x := b.prepare(id, change)
	if err := x.start(b.t.Context(), image); err != nil {
		b.t.Fatal(err)
	}
	return x
}

// ask sends one line to the stand-in guest and returns its answer.
func (x *box) ask(line string) string {
	x.t.Helper()
	answer, err := x.try(line)
	if err != nil {
		x.t.Fatal(err)
	}
	return answer
}

// try is ask for a sandbox that may end before it answers.
func (x *box) try(line string) (string, error) {
	if _, err := x.stream.Write([]byte(line + "\n")); err != nil {
		return "", fmt.Errorf("send %q: %w", line, err)
	}
	if err := x.stream.SetReadDeadline(time.Now().Add(answerWait)); err != nil {
		return "", err
	}
	answer, err := x.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("answer to %q: %w (%s)", line, err, fifo.PendingStderr(x.dir))
	}
	return strings.TrimSuffix(answer, "\n"), nil
}

func (x *box) expect(line, want string) {
	x.t.Helper()
	if got := x.ask(line); got != want {
		x.t.Errorf("%s: got %q, want %q", line, got, want)
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
