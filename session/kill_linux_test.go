package session

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// With these variables, a test process becomes the child that is killed. It works in a data directory until it reaches
// a failpoint, or until the test kills it.
const (
	childEnv     = "RECLUSE_TEST_CHILD"     // the data directory
	sharedEnv    = "RECLUSE_TEST_SHARED"    // the backend's
	scenarioEnv  = "RECLUSE_TEST_SCENARIO"  // what to do
	failpointEnv = "RECLUSE_TEST_FAILPOINT" // where to die
)

// child runs a scenario in a data directory, and is killed during it.
func child(dir string) int {
	b, err := newBackend(os.Getenv(sharedEnv))
	if err != nil {
		fmt.Println(err)
		return 3
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	sc := scenarios[os.Getenv(scenarioEnv)]
	var armed, taken atomic.Bool
	failpoint = func(name string) {
		switch {
		case !armed.Load():
		case name == os.Getenv(failpointEnv):
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it arrives
		case name == sc.ahead && !taken.CompareAndSwap(false, true):
			select {} // until the process is killed by the goroutine that is ahead
		}
	}
	m, err := New(ctx, Options{Backends: []sandbox.Backend{b}, Require: backend.Requirements{AllowContainer: true}, DataDir: dir, NoPool: !sc.pool, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return 3
	}
	choose(m)
	if os.Getenv(failpointEnv) == "" {
		return busy(ctx, m)
	}
	if sc.prepare != nil {
		if err := sc.prepare(ctx, m); err != nil {
			fmt.Println("prepare:", err)
			return 3
		}
	}
	armed.Store(true)
	if err := sc.act(ctx, m); err != nil {
		fmt.Println("act:", err)
		return 3
	}
	time.Sleep(5 * time.Second) // background work may still reach the failpoint
	fmt.Println("the failpoint was never reached")
	return 3
}

// bystander is a session that busy does not use. In it, x is 41.
const bystander = "bystander"

// busy repeats all kinds of changes, while the session bystander is unused.
func busy(ctx context.Context, m *Manager) int {
	s, opened, err := m.Open(ctx, Key{Name: bystander}, OpenOptions{})
	if err == nil && opened.New {
		_, err = s.Cell(ctx, sandbox.Cell{Code: "x = 41"})
	}
	if err != nil {
		fmt.Println(err)
		return 3
	}
	fmt.Println("busy")
	for n := 0; ctx.Err() == nil; n++ {
		_ = prepared(ctx, m) // each of these calls may fail because another is in progress
		_ = saveOne(ctx, m)
		_ = doze(ctx, m)
		_ = touch(ctx, m)
		_ = with(func(ctx context.Context, s *Session) error { return s.Restore(ctx, "one") })(ctx, m)
		_ = forkTwo(ctx, m)
		_ = m.DeleteSnapshot(ctx, Key{Name: "work"}, "*")
		for i := range m.List(ctx, ListOptions{}) {
			if s, err := m.Get(ctx, i.Key); err == nil && i.Key.Name != "work" && i.Key.Name != bystander {
				_ = s.End(ctx, "")
			}
		}
		if n%2 == 1 {
			_ = with(func(ctx context.Context, s *Session) error { return s.End(ctx, "") })(ctx, m)
		}
	}
	return 3
}

// spawn starts a child.
func spawn(dir, scenario, point string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, sharedEnv+"="+shared, scenarioEnv+"="+scenario, failpointEnv+"="+point)
	cmd.Stderr = os.Stderr
	return cmd
}

// takeOver starts a manager in the data directory of a killed one, and waits until it has cleaned up.
func takeOver(t *testing.T, dir string) *bench {
	t.Helper()
	b := realBackend(t)
	k := &bench{t: t, dir: dir, b: b, opts: quick(), tookOver: true}
	k.opts.Backends, k.opts.DataDir, k.opts.Logger = []sandbox.Backend{b}, dir, slog.New(slog.DiscardHandler)
	k.opts.Require.AllowContainer = true
	k.start()
	tookOver.Store(k.m.instance, true)
	t.Cleanup(func() {
		_ = k.m.DeleteSnapshot(context.Background(), Key{Name: "work"}, "*")
		k.close()
		nothing := func() bool { return k.images() == 0 && k.sandboxes() == 0 }
		await(t, "nothing is left", func() bool { return nothing() || k.nextManagerCollects() && nothing() })
	})
	await(t, "every sandbox belongs to a session", func() bool {
		k.collect()
		awake := 0
		for i, err := range k.m.List(t.Context(), ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			if i.Sandbox != "" {
				awake++
			}
		}
		return k.sandboxes() == awake
	})
	return k
}

// tookOver has the instances whose manager was killed.
var tookOver sync.Map

// late reports whether a Docker engine made a sandbox only after its manager was killed. The engine finishes the
// requests of a killed manager later, and the next manager finds the result.
func (k *bench) late(i sandbox.Info) bool {
	return dockertest.Chosen() && k.tookOver && i.Labels[labelMaker] != k.m.maker
}

// collect runs the collection for late sandboxes and images, because on a busy machine the manager's own late
// collections may be over. On gVisor nothing is late, and the first inventory must be enough.
func (k *bench) collect() {
	k.t.Helper()
	if !dockertest.Chosen() {
		return
	}
	if _, err := k.m.GC(k.t.Context()); err != nil {
		k.t.Error(err)
	}
}

// nextManagerCollects starts another manager that removes what is left over, even after the end of the test.
func (k *bench) nextManagerCollects() bool {
	k.t.Helper()
	m, err := New(context.Background(), k.opts)
	if err != nil {
		k.t.Fatal(err)
	}
	k.m = m
	if _, err := m.GC(context.Background()); err != nil {
		k.t.Error(err)
	}
	k.close()
	return true
}

func TestAKillAtEveryStepLeavesTheOldOrTheNewState(t *testing.T) {
	testneed.Parallel(t)
	b := realBackend(t)
	for name, sc := range scenarios {
		if sc.sleeps && !sleeps(b) {
			continue
		}
		for _, point := range sc.points {
			t.Run(name+" "+point, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				cmd := spawn(dir, name, point)
				out, err := cmd.Output()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
					t.Fatalf("the process was not killed: %v: %s", err, out)
				}
				sc.check(t, takeOver(t, dir))
			})
		}
	}
}

func TestAKillAtAnyMomentLosesNothing(t *testing.T) {
	testneed.Sandboxes(t)
	testneed.Parallel(t)
	dir := t.TempDir()
	for n := range rounds(2, number(6, 3)) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			cmd := spawn(dir, "", "")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || !strings.Contains(line, "busy") {
				t.Fatalf("%s, %v", line, err)
			}
			pause := 500*time.Millisecond + time.Duration(rand.IntN(3000))*time.Millisecond
			time.Sleep(pause) // a random moment, not a condition
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed, as it should be
			t.Logf("killed after %s", pause)
			k := takeOver(t, dir)
			want(t, "x of the bystander", py(t, k.get(bystander), "x"), "41")
			if i := k.get(bystander).Info(); i.Restored != 0 || i.State != v1.StateReady {
				t.Errorf("the bystander is %s, and was restored %d times", i.State, i.Restored)
			}
			for i := range k.m.List(t.Context(), ListOptions{}) {
				if i.Key.Name == bystander {
					continue
				}
				s := k.get(i.Key.Name)
				if got := py(t, s, "globals().get('x', 1)"); got != "1" {
					t.Errorf("x in %s is %s", i.Key.Name, got)
				}
			}
			all, err := k.m.Snapshots(t.Context(), Key{})
			if err != nil {
				t.Fatal(err)
			}
			await(t, "images are those of the named snapshots", func() bool { k.collect(); return k.images() == len(all) })
		})
	}
}

func TestWhatIsNotOursIsLeftAlone(t *testing.T) {
	k := newBench(t, quick())
	for name, labels := range map[string]map[string]string{
		"another instance's": {labelInstance: "someone", labelSessionID: "n1", labelSession: "default/work"},
		"without labels":     nil,
	} {
		sb, err := sandbox.Open(t.Context(), k.b, sandbox.Spec{Labels: labels, Persist: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		k.restart()
		if _, err := k.m.GC(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := sb.Ping(t.Context()); err != nil {
			t.Errorf("a sandbox %s: %v", name, err)
		}
	}
}

func TestWhatComesLateFromAKilledManagerGoes(t *testing.T) {
	k := newBench(t, quick())
	if _, err := k.open("work").Save(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	// A service finishes the requests of a killed manager after the first inventory of the next manager.
	labels := map[string]string{labelInstance: k.m.instance, labelMaker: "earlier", labelSessionID: "n1", labelSession: "default/gone"}
	// The sandbox gets these labels when it is complete, because a collection may run at any moment.
	sb, err := sandbox.Open(t.Context(), k.b, sandbox.Spec{Labels: map[string]string{labelInstance: "another"}, Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	k.restart()
	if _, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Labels: labels}); err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	if err := k.b.(backend.Labeler).Label(t.Context(), sb.ID(), labels); err != nil {
		t.Fatal(err)
	}
	var looks time.Duration // on a busy machine only the last collection may find it
	for _, pause := range collectDelays {
		looks += pause
	}
	awaitBehind(t, looks, "only what a session has is left", func() bool { return k.sandboxes() == 1 && k.images() == 1 })
	want(t, "a cell", py(t, k.get("work"), "40 + 2"), "42")
}

func TestTwoManagersCannotShareADataDirectory(t *testing.T) {
	k := newBench(t, quick())
	_, err := New(t.Context(), k.opts)
	wantCode(t, "a second manager", err, v1.CodeDataLocked)
	if err != nil && !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("%v does not name the process", err)
	}
}
