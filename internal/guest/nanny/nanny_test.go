//go:build linux

package nanny

import (
	"errors"
	"io"
	"os"
	ossignal "os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func spawn(t *testing.T) *Nanny {
	t.Helper()
	return spawnFor(t, Config{UID: -1})
}

func spawnFor(t *testing.T, cfg Config) *Nanny {
	t.Helper()
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	n, err := Spawn(guest.Path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// shell runs a script under the nanny and returns its pid and a pipe with its output.
func shell(t *testing.T, n *Nanny, script string) (int, *os.File) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	e, err := n.Start(&Start{
		Path: []byte("/bin/sh"), Argv: [][]byte{[]byte("sh"), []byte("-c"), []byte(script)},
		Env: [][]byte{[]byte("PATH=/usr/bin:/bin")}, Dir: []byte("/"),
	}, []int{int(null.Fd()), int(w.Fd()), int(w.Fd())})
	if err != nil || e.PID == 0 {
		t.Fatalf("%+v %v", e, err)
	}
	return e.PID, r
}

func next(t *testing.T, n *Nanny) *Event {
	t.Helper()
	e, err := n.Next()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestANannyServesOneCommandAfterTheOther(t *testing.T) {
	n := spawn(t)
	for code := range 5 {
		shell(t, n, "exit "+string(rune('0'+code)))
		e := next(t, n)
		if !e.Exited || !e.Empty || syscall.WaitStatus(e.Status).ExitStatus() != code {
			t.Fatalf("%+v", e)
		}
	}
}

func TestWhatCannotBeStartedIsTold(t *testing.T) {
	n := spawn(t)
	for path, code := range map[string]int{"/none": 127, "/etc": 126, "/etc/passwd": 126} {
		e, err := n.Start(&Start{Path: []byte(path), Argv: [][]byte{[]byte("x")}, Dir: []byte("/")}, nil)
		if err != nil || e.PID != 0 {
			t.Fatalf("%s: %+v %v", path, e, err)
		}
		if got, text := DescribeStartError(path, e.Errno); got != code || !strings.Contains(text, path) {
			t.Errorf("%s: %d %s", path, got, text)
		}
	}
}

func TestAMuteStartIsToldByItsEnd(t *testing.T) {
	n := spawn(t)
	begin := func(path string, args ...string) {
		t.Helper()
		s := &Start{Path: []byte(path), Dir: []byte("/"), Mute: true}
		for _, a := range append([]string{path}, args...) {
			s.Argv = append(s.Argv, []byte(a))
		}
		if err := n.Begin(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	begin("/bin/sh", "-c", "exit 3")
	if e := next(t, n); !e.Exited || !e.Empty || e.PID == 0 || syscall.WaitStatus(e.Status).ExitStatus() != 3 {
		t.Fatalf("%+v", e)
	}
	begin("/none")
	if e := next(t, n); e.Errno != int(syscall.ENOENT) || e.PID != 0 || e.Exited {
		t.Fatalf("%+v", e)
	}
	before := n.Tree()
	begin("/bin/sleep", "1000")
	if err := n.RequestPID(); err != nil {
		t.Fatal(err)
	}
	named := next(t, n)
	if named.PID == 0 || named.Exited {
		t.Fatalf("%+v", named)
	}
	// A signal for another tree is dropped: requests are served in order, and the process still runs at the next one.
	if err := errors.Join(n.SignalTree(before, syscall.SIGTERM), n.RequestPID()); err != nil {
		t.Fatal(err)
	}
	if e := next(t, n); e.PID != named.PID || e.Exited {
		t.Fatalf("%+v", e)
	}
	if p, ok := proc.Get(named.PID); !ok || p.Zombie {
		t.Fatal("killed by a signal for another tree")
	}
	if err := n.SignalTree(n.Tree(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := next(t, n); !e.Exited || e.PID != named.PID {
		t.Fatalf("%+v", e)
	}
	if err := n.RequestPID(); err != nil { // nothing runs, so there is no event
		t.Fatal(err)
	}
	shell(t, n, "exit 0")
	if e := next(t, n); !e.Exited {
		t.Fatalf("%+v", e)
	}
}

// This must hold whatever this program itself has inherited.
func TestSignalsDoToCommandsWhatTheyDoByDefault(t *testing.T) {
	testneed.Root(t, "to look after another user's commands")
	n := spawnFor(t, Config{UID: 65534, GID: 65534})
	_, out := shell(t, n, "grep -E '^Sig(Blk|Ign):' /proc/self/status")
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, set, _ := strings.Cut(strings.TrimSpace(line), "\t"); strings.Trim(set, "0") != "" {
			t.Errorf("%s", line)
		}
	}
	if strings.Count(string(text), "\n") != 2 {
		t.Errorf("%q", text)
	}
	if e := next(t, n); !e.Exited {
		t.Fatalf("%+v", e)
	}
}

// A shell starts background processes like this.
func TestWhatThisProgramIgnoresItsCommandsHear(t *testing.T) {
	ossignal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	n := spawn(t)
	ossignal.Reset(syscall.SIGINT, syscall.SIGHUP)
	for _, s := range []string{"INT", "HUP"} {
		shell(t, n, "kill -"+s+" $$; exit 0")
		if e := next(t, n); !e.Exited || !syscall.WaitStatus(e.Status).Signaled() {
			t.Errorf("%s: %+v", s, e)
		}
	}
}

func TestNothingEscapes(t *testing.T) {
	n := spawn(t)
	_, out := shell(t, n, `
		trap '' TERM INT HUP
		setsid sh -c 'trap "" TERM; sleep 1000' &
		(setsid sh -c '(sleep 1001 &) ; exec sleep 1002' &)
		sh -c 'kill -STOP $$' &
		echo ready
		while :; do sleep 1; done`)
	buf := make([]byte, 16)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	if err := n.SignalTree(n.Tree(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if e := next(t, n); e.Empty {
			break
		}
	}
	below, err := proc.Descendants(n.PID())
	if err != nil || len(below) != 0 {
		t.Fatalf("still running: %+v %v", below, err)
	}
}

// Each process forks another one and ends, so the tree changes all the time. The number of processes is constant:
// a growing fork bomb may only run in a sandbox, which bounds it.
func TestATreeThatKeepsForkingIsEnded(t *testing.T) {
	n := spawn(t)
	_, out := shell(t, n, `f() { f & }; for i in 1 2 3 4 5; do f & done; echo go; while :; do sleep 1; done`)
	buf := make([]byte, 4)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = n.SignalTree(n.Tree(), syscall.SIGKILL) })
	for {
		if e := next(t, n); e.Empty {
			break
		}
	}
}

func TestSurvivorsAreListedAndKilledByName(t *testing.T) {
	n := spawn(t)
	shell(t, n, "sleep 1003 & a=$!; sleep 1004 & b=$!; until grep -q sleep /proc/$a/comm && grep -q sleep /proc/$b/comm; do :; done; exit 0")
	e := next(t, n)
	if !e.Exited || e.Empty || e.Total != 2 || len(e.Survivors) != 2 {
		t.Fatalf("%+v", e)
	}
	if !strings.HasPrefix(e.Survivors[0].Command, "sleep 100") {
		t.Errorf("%+v", e.Survivors)
	}
	wrong := e.Survivors[0]
	wrong.Start++
	if err := n.Kill([]Process{wrong}); err != nil { // as if the pid was reused by another process
		t.Fatal(err)
	}
	if err := n.RequestList(); err != nil {
		t.Fatal(err)
	}
	if l := next(t, n); !l.Listed || l.Total != 2 {
		t.Fatalf("another process was killed: %+v", l)
	}
	if err := n.Kill(e.Survivors); err != nil {
		t.Fatal(err)
	}
	if e := next(t, n); !e.Empty {
		t.Fatalf("%+v", e)
	}
}

func TestANannysEndTakesItsTreeAlong(t *testing.T) {
	n := spawn(t)
	pid, _ := shell(t, n, "exec sleep 1005")
	n.Close()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		p, ok := proc.Get(pid)
		if !ok || p.Zombie || p.Name != "sleep" {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the process still runs")
		}
	}
}

func TestANannyThatIsStoppedGoesOn(t *testing.T) {
	n := spawn(t)
	for range 3 {
		shell(t, n, "kill -STOP $PPID; exit 7")
		if e := next(t, n); !e.Exited || syscall.WaitStatus(e.Status).ExitStatus() != 7 {
			t.Fatalf("%+v", e)
		}
	}
}
