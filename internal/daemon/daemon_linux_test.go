package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// Environment variables that make the test program act as a server, and control its behaviour.
const (
	asServer = "RECLUSE_TEST_DAEMON_DATA"
	lingers  = "RECLUSE_TEST_DAEMON_LINGER"
	built    = "RECLUSE_TEST_DAEMON_BUILT"
	settings = "RECLUSE_TEST_DAEMON_CONFIG"
	occupied = "RECLUSE_TEST_DAEMON_BUSY"
	byHand   = "RECLUSE_TEST_DAEMON_BY_HAND"
	failing  = "RECLUSE_TEST_DAEMON_FAILS"
	mute     = "RECLUSE_TEST_DAEMON_MUTE"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if data := os.Getenv(asServer); data != "" {
		os.Exit(serve(data))
	}
	goleak.VerifyTestMain(m)
}

// serve runs a minimal server.
func serve(data string) int {
	switch {
	case os.Getenv(failing) != "":
		_ = ReportStart(os.Stdout, &v1.Error{Code: v1.CodeDiskFull, Op: "try", Message: "no room", Remedy: "make some", Err: errors.New("ENOSPC")})
		return 1
	case os.Getenv(mute) != "":
		_, _ = os.Stderr.WriteString("panic: something broke\n")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p, err := NewPlace(data, "")
	if err != nil {
		return 3
	}
	o := HostOptions{Background: os.Getenv(byHand) == ""}
	if n, err := strconv.ParseInt(os.Getenv(built), 10, 64); err == nil {
		o.Stamp.Built = time.Unix(n, 0)
	}
	o.Stamp.Config = os.Getenv(settings)
	if d, err := time.ParseDuration(os.Getenv(lingers)); err == nil {
		o.IdleExit = d
	}
	h, err := p.Claim(ctx, o)
	if err != nil {
		_ = ReportStart(os.Stdout, err)
		return 4
	}
	defer h.Release()
	if err := h.Ready(ctx, func() bool { return os.Getenv(occupied) != "" }); err != nil {
		return 5
	}
	_ = ReportStart(os.Stdout, nil)
	select {
	case <-ctx.Done():
	case <-h.Leaving():
	}
	return 0
}

// place returns an empty place whose servers end with the test. It makes the test parallel.
func place(t *testing.T, env ...string) *Place {
	t.Helper()
	t.Parallel()
	p, err := NewPlace(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	// without it, a server with the race detector stays a second longer than its lock
	p.Env = append(env, asServer+"="+p.Data, "GORACE=atexit_sleep_ms=0")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

func ensure(t *testing.T, p *Place, me Stamp) Status {
	t.Helper()
	c, err := p.Ensure(t.Context(), me, p.Background())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return c.Status
}

func TestTwentyFirstCallersStartOneServer(t *testing.T) {
	p := place(t)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		pids   = map[int]int{}
		starts int
	)
	start := p.Background()
	counted := func(ctx context.Context) error {
		mu.Lock()
		starts++
		mu.Unlock()
		return start(ctx)
	}
	for range 20 {
		wg.Go(func() {
			c, err := p.Ensure(t.Context(), Stamp{}, counted)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			mu.Lock()
			defer mu.Unlock()
			pids[c.Status.PID]++
		})
	}
	wg.Wait()
	if starts != 1 || len(pids) != 1 {
		t.Errorf("%d starts, servers %v", starts, pids)
	}
}

func TestAServerWithNothingToDoEndsByItself(t *testing.T) {
	p := place(t, lingers+"=50ms")
	c, err := p.Ensure(t.Context(), Stamp{}, p.Background())
	if err != nil {
		t.Fatal(err)
	}
	// A connected caller keeps the server running.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if l, err := filelock.Acquire(ctx, p.lockFile()); err == nil {
		l.Release()
		t.Error("it left while a caller held it")
	}
	c.Close()
	if !p.awaitRelease(t.Context(), patience) {
		t.Error("it stays for ever")
	}
	if s := ensure(t, p, Stamp{}); s.PID == c.Status.PID {
		t.Error("the dead one answered")
	}
}

func TestAServerThatLeavesBeforeItsCallerComesIsStartedAgain(t *testing.T) {
	p := place(t, lingers+"=50ms")
	begin, starts := p.Background(), 0
	start := func(ctx context.Context) error {
		if err := begin(ctx); err != nil {
			return err
		}
		if starts++; starts > 1 {
			return nil
		}
		if !p.awaitRelease(ctx, patience) {
			t.Error("it stays for ever")
		}
		return nil
	}
	c, err := p.Ensure(t.Context(), Stamp{}, start)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if starts < 2 {
		t.Errorf("%d starts", starts)
	}
}

func TestKilledServerIsReplaced(t *testing.T) {
	p := place(t)
	first := ensure(t, p, Stamp{})
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !p.awaitRelease(t.Context(), patience) {
		t.Fatal("it lives")
	}
	if _, err := os.Stat(p.control()); err != nil {
		t.Fatalf("the killed server should have left its socket: %v", err)
	}
	if second := ensure(t, p, Stamp{}); second.PID == first.PID {
		t.Error("the dead one answered")
	}
}

// freeze stops a process and waits until all its threads are stopped.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, task := range tasks {
		for {
			b, err := os.ReadFile(task)
			if err != nil || strings.Contains(string(b), ") T ") {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestHungServerIsReplaced(t *testing.T) {
	p := place(t)
	// not shorter, because on a busy machine the new server needs this time to answer
	p.answerWait, p.killWait = time.Second, 500*time.Millisecond
	first := ensure(t, p, Stamp{})
	freeze(t, first.PID)
	if second := ensure(t, p, Stamp{}); second.PID == first.PID {
		t.Error("the stopped one answered")
	}
}

func TestServerWhoseSocketWasRemovedIsReplaced(t *testing.T) {
	p := place(t)
	first := ensure(t, p, Stamp{})
	if err := os.Remove(p.control()); err != nil {
		t.Fatal(err)
	}
	if second := ensure(t, p, Stamp{}); second.PID == first.PID {
		t.Error("one that nobody can reach answered")
	}
}

func TestOlderServerIsReplacedAndANewerOneUsed(t *testing.T) {
	p := place(t, built+"=1000")
	first := ensure(t, p, Stamp{Built: time.Unix(1000, 0)})
	if s := ensure(t, p, Stamp{Built: time.Unix(500, 0)}); s.PID != first.PID {
		t.Error("an older caller replaced it")
	}
	p.Env = append(p.Env, built+"=2000")
	if s := ensure(t, p, Stamp{Built: time.Unix(2000, 0)}); s.PID == first.PID || s.Stamp.Built.Unix() != 2000 {
		t.Errorf("a newer caller got %+v", s)
	}
}

func TestAnIdleServerWithAnotherConfigurationIsReplaced(t *testing.T) {
	p := place(t)
	p.Env = append(p.Env, settings+"=one")
	first := ensure(t, p, Stamp{Config: "one"})
	if first.Stamp.Config != "one" {
		t.Fatalf("started with %+v", first)
	}
	held, err := p.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.Env = append(p.Env, settings+"=two", occupied+"=1")
	if s := ensure(t, p, Stamp{Config: "two"}); s.PID != first.PID {
		t.Error("one that somebody else holds was replaced")
	}
	time.AfterFunc(idleWait/5, func() { _ = held.Close() }) // a caller that disconnects a moment later does not count
	second := ensure(t, p, Stamp{Config: "two"})
	if second.PID == first.PID || second.Stamp.Config != "two" {
		t.Fatalf("an idle one was not replaced: %+v", second)
	}
	for _, config := range []string{"", "two", "one"} {
		if s := ensure(t, p, Stamp{Config: config}); s.PID != second.PID {
			t.Errorf("a busy one was replaced for %q", config)
		}
	}
}

func TestStaleSocketAndRubbishInTheStatus(t *testing.T) {
	p := place(t)
	l, err := net.Listen("unix", p.control())
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if err := os.WriteFile(p.statusFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(t, p, Stamp{})
}

// startByHand starts a server that is not in the background.
func startByHand(t *testing.T, p *Place) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(append(os.Environ(), p.Env...), byHand+"=1")
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
	if err := p.await(t.Context(), out.(*os.File), 0); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestServerStartedByHandTakesOver(t *testing.T) {
	p := place(t)
	first := ensure(t, p, Stamp{})
	cmd := startByHand(t, p)
	s := ensure(t, p, Stamp{Built: time.Now()})
	if s.PID != cmd.Process.Pid || s.PID == first.PID {
		t.Errorf("found %+v, want the one started by hand, %d; it is never replaced", s, cmd.Process.Pid)
	}
	// A second such server is refused, with the pid of the first.
	_, err := p.Claim(t.Context(), HostOptions{})
	if v1.CodeOf(err) != CodeRunning || !contains(err, strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("got %v", err)
	}
}

func TestServerStartedByHandStaysWhenItsWordIsHalfWritten(t *testing.T) {
	p := place(t)
	cmd := startByHand(t, p)
	whole, err := os.ReadFile(p.statusFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.statusFile(), whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := p.Claim(t.Context(), HostOptions{})
	if v1.CodeOf(err) != CodeRunning || !contains(err, strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("got %v", err)
	}
	if h != nil {
		h.Release()
	}
}

func TestServerIsWaitedForWhileItsWordIsHalfWritten(t *testing.T) {
	p := place(t)
	first := ensure(t, p, Stamp{})
	whole, err := os.ReadFile(p.statusFile())
	if err != nil {
		t.Fatal(err)
	}
	hidden := p.control() + ".hidden"
	if err := errors.Join(os.Rename(p.control(), hidden), os.WriteFile(p.statusFile(), whole[:len(whole)/2], 0o600)); err != nil {
		t.Fatal(err)
	}
	found := make(chan Status, 1)
	go func() {
		defer close(found)
		c, err := p.Ensure(t.Context(), Stamp{}, p.Background())
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
		found <- c.Status
	}()
	// when it holds this lock, it has found no server
	for held := false; !held && t.Context().Err() == nil; time.Sleep(pollInterval) {
		if held, err = filelock.Held(p.startLock()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(hidden, p.control()); err != nil {
		t.Fatal(err)
	}
	if s := <-found; s.PID != first.PID {
		t.Errorf("%d was replaced by %d", first.PID, s.PID)
	}
}

// victim starts a process that is not a server. The returned function ends it and reports whether it had run until
// then.
func victim(t *testing.T) (pid int, spared func() bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceValue(func() syscall.Signal {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
	})
	t.Cleanup(func() { ended() })
	// an earlier end would have been by another signal
	return cmd.Process.Pid, func() bool { return ended() == syscall.SIGKILL }
}

func TestAnotherProcessWithTheDeadServersPidIsSpared(t *testing.T) {
	for name, act := range map[string]func(context.Context, *Place) error{
		"ensure": func(ctx context.Context, p *Place) error {
			_, err := p.Ensure(ctx, Stamp{}, p.Background())
			return err
		},
		"stop": func(ctx context.Context, p *Place) error { return p.Stop(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			p := place(t)
			pid, spared := victim(t)
			// The new server holds the lock and has not written its status yet.
			l, err := filelock.Try(p.lockFile())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			if err := atomicfile.WriteJSON(p.statusFile(), Status{PID: pid, ProcessStart: 1, Phase: Serving, Background: true}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := act(ctx, p); err == nil {
				t.Error("it found a server where there is none")
			}
			if !spared() {
				t.Error("a stranger was ended")
			}
		})
	}
}

func TestStartThatFailsSaysWhy(t *testing.T) {
	p := place(t, failing+"=1")
	_, err := p.Ensure(t.Context(), Stamp{}, p.Background())
	e, ok := errors.AsType[*v1.Error](err)
	if !ok || e.Code != v1.CodeDiskFull || e.Remedy != "make some" || !contains(err, "ENOSPC") {
		t.Errorf("got %v", err)
	}
}

func TestServerThatEndsWithoutAWordIsToldByItsLog(t *testing.T) {
	p := place(t, mute+"=1")
	_, err := p.Ensure(t.Context(), Stamp{}, p.Background())
	if v1.CodeOf(err) != CodeNotReady || !contains(err, "something broke") {
		t.Errorf("got %v", err)
	}
}

func TestLongDataDirectory(t *testing.T) {
	dir := t.TempDir()
	for len(dir) < 150 {
		dir = filepath.Join(dir, "a-directory-with-a-long-name")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	p, err := NewPlace(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	h, err := p.Claim(t.Context(), HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if err := h.Ready(t.Context(), func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	c, err := p.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	fi, err := os.Stat(p.control())
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func TestLogDoesNotGrowWithoutEnd(t *testing.T) {
	p, err := NewPlace(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.max = 100
	for range 30 {
		if n, err := l.Write([]byte("0123456789")); n != 10 || err != nil {
			t.Fatal(n, err)
		}
	}
	for _, name := range []string{p.Log(), p.Log() + ".old"} {
		if fi, err := os.Stat(name); err != nil || fi.Size() != 100 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFileInPlaceOfTheSocketIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), file); err == nil {
		t.Error("listened in place of a file")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

func contains(err error, part string) bool { return err != nil && strings.Contains(err.Error(), part) }
