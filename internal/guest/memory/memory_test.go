//go:build linux

package memory

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// fake is a machine whose processes are rows of a map.
type fake struct {
	procs    map[int]proc.Process
	bytes    map[int]int64
	channels map[int]int
	kernel   int64
	killed   []int
	resumed  []int
	// returns is how long the memory of a dead process is still counted.
	returns time.Duration
	owed    []debt
	onStop  func(pid int) // called when a process is stopped
}

// debt is memory of a dead process that is still counted.
type debt struct {
	bytes int64
	until time.Time
}

func newFake() *fake {
	return &fake{procs: map[int]proc.Process{}, bytes: map[int]int64{}, channels: map[int]int{}}
}

// add makes a process in a process group and a session of its own tree.
func (f *fake) add(pid, parent int, bytes int64) {
	f.procs[pid] = proc.Process{PID: pid, PPID: parent, Group: pid, Session: 1, Start: uint64(pid), State: 'S', Threads: 1}
	f.bytes[pid] = bytes
}

func (f *fake) usage() (usage, bool) {
	used := f.kernel
	for _, d := range f.owed {
		if time.Now().Before(d.until) {
			used += d.bytes
		}
	}
	for _, n := range f.bytes {
		used += n
	}
	return usage{total: 1 << 30, used: used, kernel: f.kernel}, true
}

func (f *fake) tasks() int { return len(f.procs) }

func (f *fake) list() ([]proc.Process, error) {
	return slices.SortedFunc(maps.Values(f.procs), func(x, y proc.Process) int { return x.PID - y.PID }), nil
}

func (f *fake) pids() ([]int, error) { return slices.Sorted(maps.Keys(f.procs)), nil }

func (f *fake) process(pid int) (proc.Process, bool) {
	p, ok := f.procs[pid]
	return p, ok
}

func (f *fake) footprint(pid int) (int64, int) { return f.bytes[pid], f.channels[pid] }

func (f *fake) stopAll(map[int]bool) {}

func (f *fake) signal(pid int, s syscall.Signal) error {
	p, ok := f.procs[pid]
	if !ok {
		return syscall.ESRCH
	}
	switch s {
	case syscall.SIGSTOP:
		p.State = 'T'
		f.procs[pid] = p
		if f.onStop != nil {
			f.onStop(pid)
		}
	case syscall.SIGCONT:
		p.State = 'S'
		f.procs[pid] = p
		f.resumed = append(f.resumed, pid)
	case syscall.SIGKILL:
		f.owed = append(f.owed, debt{f.bytes[pid], time.Now().Add(f.returns)})
		delete(f.procs, pid)
		delete(f.bytes, pid)
		f.killed = append(f.killed, pid)
	}
	return nil
}

// owner is an operation.
type owner struct {
	finished bool
	killed   []int
}

func (o *owner) Finished() bool { return o.finished }
func (o *owner) Killed(pid int) { o.killed = append(o.killed, pid) }

// sandbox has the guest as process 1 and nannies below it.
type sandbox map[int]Tree

func (s sandbox) Trees() map[int]Tree { return s }

func (s sandbox) Own() map[int]bool {
	own := map[int]bool{1: true}
	for pid := range s {
		own[pid] = true
	}
	return own
}

func (s sandbox) Idle() bool {
	for _, t := range s {
		if t.Owner != nil && !t.Owner.Finished() {
			return false
		}
	}
	return true
}

func enforcer(f *fake, s sandbox, limit int64) *Enforcer {
	f.add(1, 0, 0)
	for pid := range s {
		f.add(pid, 1, 0)
	}
	return &Enforcer{limit: limit, sandbox: s, started: make(chan struct{}), machine: f}
}

// allRun checks that only processes are stopped that were stopped before.
func (f *fake) allRun(t *testing.T, but ...int) {
	t.Helper()
	for pid, p := range f.procs {
		if p.State == 'T' != slices.Contains(but, pid) {
			t.Errorf("process %d is in state %c", pid, p.State)
		}
	}
}

func TestTheLargestTreeLosesItsLargestProcess(t *testing.T) {
	f := newFake()
	greedy, modest := &owner{}, &owner{}
	e := enforcer(f, sandbox{10: {Owner: greedy}, 20: {Owner: modest}}, 512*mib)
	f.add(11, 10, 50*mib)
	f.add(12, 11, 400*mib)
	f.add(21, 20, 100*mib)
	e.step()
	if want := []int{12}; !slices.Equal(f.killed, want) || !slices.Equal(greedy.killed, want) || modest.killed != nil {
		t.Errorf("killed %v, of them %v and %v by owner", f.killed, greedy.killed, modest.killed)
	}
	f.allRun(t)
	if slices.ContainsFunc(f.resumed, func(pid int) bool { return pid < 10 || pid == 20 }) {
		t.Errorf("the guest or a nanny was stopped: %v", f.resumed)
	}
}

func TestManySmallProcessesAreOneOffender(t *testing.T) {
	f := newFake()
	bomb := &owner{}
	e := enforcer(f, sandbox{10: {Owner: bomb}, 20: {Main: 21}}, 512*mib)
	f.add(21, 20, 100*mib) // larger than any of them
	for pid := 100; pid < 200; pid++ {
		f.add(pid, 10, 5*mib)
	}
	e.step()
	u, _ := f.usage()
	if f.procs[21].PID == 0 || u.used > 512*mib/2+100*mib {
		t.Errorf("%d killed, %d MiB in use, the interpreter is there: %t", len(f.killed), u.used/mib, f.procs[21].PID != 0)
	}
	if len(bomb.killed) != len(f.killed) {
		t.Errorf("%d killed, %d recorded", len(f.killed), len(bomb.killed))
	}
	f.allRun(t)
}

func TestAnInterpreterOutlivesItsChildren(t *testing.T) {
	f := newFake()
	e := enforcer(f, sandbox{10: {Owner: &owner{}, Main: 11}}, 512*mib)
	f.add(11, 10, 300*mib)
	f.add(12, 11, 290*mib) // a fork, which shares most of its pages with its parent
	e.step()
	if !slices.Equal(f.killed, []int{12}) {
		t.Errorf("killed %v", f.killed)
	}
	f.add(11, 10, 600*mib)
	e.step()
	if !slices.Equal(f.killed, []int{12, 11}) {
		t.Errorf("killed %v, want the interpreter, which is too large by itself", f.killed)
	}
}

func TestWhereNoneHasEnoughARunningTreeSuffers(t *testing.T) {
	f := newFake()
	busy := &owner{}
	e := enforcer(f, sandbox{10: {Owner: busy}, 20: {Owner: &owner{finished: true}, Main: 21}}, 512*mib)
	f.add(11, 10, 20*mib)
	f.add(21, 20, 60*mib)
	f.kernel = 500 * mib // in pipes, which processes do not show
	f.channels[11] = 2
	synctest.Test(t, func(*testing.T) { e.step() })
	if !slices.Equal(f.killed, []int{11}) {
		t.Errorf("killed %v", f.killed)
	}
}

func TestWhatWaitsInPipesCountsForThoseWhoHoldThem(t *testing.T) {
	f := newFake()
	hoarder := &owner{}
	e := enforcer(f, sandbox{10: {Owner: hoarder}, 20: {Main: 21}}, 512*mib)
	f.add(11, 10, 5*mib)
	f.channels[11] = 400
	f.add(21, 20, 150*mib)
	f.kernel = 400 * mib
	synctest.Test(t, func(*testing.T) { e.step() })
	if !slices.Equal(hoarder.killed, []int{11}) {
		t.Errorf("killed %v", f.killed)
	}
}

// While the memory of a killed process is still counted, no other process is killed for it.
func TestOthersAreNotAccusedOfWhatTheDeadHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.returns = 2 * time.Second
		e := enforcer(f, sandbox{10: {Owner: &owner{}}, 20: {Owner: &owner{}, Main: 21}}, 512*mib)
		f.add(11, 10, 450*mib)
		f.add(21, 20, 100*mib)
		f.kernel = 40 * mib // garbage
		for range 3 {
			if u, _ := f.usage(); u.used >= 512*mib {
				e.step()
			}
		}
		if !slices.Equal(f.killed, []int{11}) {
			t.Errorf("killed %v", f.killed)
		}
		f.allRun(t)
	})
}

func TestForksDuringTheFreezeAreStopped(t *testing.T) {
	f := newFake()
	e := enforcer(f, sandbox{10: {Owner: &owner{}}}, 512*mib)
	f.add(11, 10, 300*mib)
	next := 12
	f.onStop = func(int) {
		if next < 15 { // each is started while the previous one is being stopped
			f.add(next, 11, 100*mib)
			next++
		}
	}
	stopped, err := freeze(f, e.sandbox.Own())
	if err != nil {
		t.Fatal(err)
	}
	for pid, p := range f.procs {
		if p.State != 'T' && pid > 10 {
			t.Errorf("process %d was not stopped", pid)
		}
	}
	stopped.thaw(func(proc.Process) bool { return true })
	f.allRun(t)
	if want := []int{14, 13, 12, 11}; !slices.Equal(f.resumed, want) {
		t.Errorf("resumed %v, want children before parents: %v", f.resumed, want)
	}
}

// TestParentsAreStoppedFirst is for shells, which report jobs that were stopped before them.
func TestParentsAreStoppedFirst(t *testing.T) {
	f := newFake()
	e := enforcer(f, sandbox{10: {Owner: &owner{}}}, 512*mib)
	f.add(14, 10, 1*mib)
	f.add(12, 14, 400*mib)
	f.add(13, 12, 200*mib)
	p := f.procs[14]
	p.Start = 11 // its pid was used again
	f.procs[14] = p
	var order []int
	f.onStop = func(pid int) { order = append(order, pid) }
	e.step()
	if !slices.Equal(order, []int{14, 12, 13}) {
		t.Errorf("stopped in the order %v", order)
	}
	f.allRun(t)
}

func TestWhatStoodStillBeforeIsNotResumed(t *testing.T) {
	f := newFake()
	e := enforcer(f, sandbox{10: {Owner: &owner{}}, 20: {Owner: &owner{}}}, 512*mib)
	f.add(11, 10, 600*mib)
	f.add(21, 20, 10*mib)
	p := f.procs[21]
	p.State = 'T'
	f.procs[21] = p
	e.step()
	if !slices.Equal(f.killed, []int{11}) {
		t.Errorf("killed %v", f.killed)
	}
	f.allRun(t, 21)
}

// The kernel sends SIGHUP to a stopped group that becomes orphaned.
func TestAGroupThatBecomesAnOrphanIsResumedBeforeTheKill(t *testing.T) {
	f := newFake()
	e := enforcer(f, sandbox{10: {Owner: &owner{}}}, 512*mib)
	f.add(11, 10, 10*mib)  // a shell
	f.add(12, 11, 600*mib) // the leader of a pipeline
	f.add(13, 12, 10*mib)
	p := f.procs[13]
	p.Group = 12
	f.procs[13] = p
	stopped, err := freeze(f, e.sandbox.Own())
	if err != nil {
		t.Fatal(err)
	}
	if o := stopped.orphans(map[int]bool{12: true}); !o[12] || o[11] {
		t.Errorf("orphans: %v", o)
	}
	if o := stopped.orphans(map[int]bool{13: true}); o[12] {
		t.Errorf("the leader is still connected to the shell: %v", o)
	}
}

func TestNothingIsWatchedWhileNothingCanGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		started := make(chan struct{}, 1)
		resting := sandbox{10: {Owner: &owner{finished: true}, Main: 11}}
		e := enforcer(f, resting, 512*mib)
		e.started = started
		f.add(11, 10, 100*mib)
		took := func() time.Duration {
			began := time.Now()
			e.step()
			return time.Since(began)
		}
		if d := took(); d < idlePause {
			t.Errorf("it slept for %s", d)
		}
		started <- struct{}{}
		if d := took(); d > maxPause {
			t.Errorf("a new operation was noticed after %s", d)
		}
		p := f.procs[11]
		p.Threads = 2 // a thread left by a cell
		f.procs[11], e.idleTasks = p, 0
		if d := took(); d > maxPause {
			t.Errorf("with a thread beside the interpreter it slept for %s", d)
		}
		p.Threads = 1
		f.procs[11] = p
		f.add(12, 11, 0) // a survivor of a cell
		if d := took(); d > maxPause {
			t.Errorf("with a survivor it slept for %s", d)
		}
		delete(f.procs, 12)
		resting[10] = Tree{Owner: &owner{}, Main: 11}
		if d := took(); d > maxPause {
			t.Errorf("while a cell ran it slept for %s", d)
		}
		f.bytes[11] = 511 * mib
		if d := took(); d != minPause {
			t.Errorf("close to the limit it slept for %s", d)
		}
	})
}

func TestMeminfo(t *testing.T) {
	u, ok := parseMeminfo([]byte("MemTotal:        524288 kB\nMemFree:         0 kB\nAnonPages:       400000 kB\nMapped:          200000 kB\n"))
	if !ok || u.total != 512*mib || u.used != 600000<<10 || u.kernel != 0 {
		t.Errorf("%+v: used may exceed total", u)
	}
	u, ok = parseMeminfo([]byte("MemTotal:        524288 kB\nMemFree:         24288 kB\nAnonPages:       100000 kB\nMapped:          100000 kB\n"))
	if !ok || u.used != 500000<<10 || u.kernel != 300000<<10 {
		t.Errorf("%+v", u)
	}
	for _, bad := range []string{"", "MemTotal:", "MemTotal: x kB\nMemFree: 1 kB\n", "MemTotal: 1 kB\n"} {
		if u, ok := parseMeminfo([]byte(bad)); ok {
			t.Errorf("%q is %+v", bad, u)
		}
	}
}

func TestTheKernelsOwnFigures(t *testing.T) {
	var k kernel
	u, ok := k.usage()
	if !ok || u.total <= 0 || u.used <= 0 || u.used > u.total || Current(false).Total != u.total {
		t.Errorf("%+v", u)
	}
	if n := k.tasks(); n < 1 {
		t.Errorf("%d tasks", n)
	}
	if p, ok := k.process(os.Getpid()); !ok || p.PPID != os.Getppid() {
		t.Errorf("%+v", p)
	}
	if b, _ := k.footprint(os.Getpid()); b < mib {
		t.Errorf("a footprint of %d bytes", b)
	}
}

func TestFilesOfDisksAreNoUsage(t *testing.T) {
	text := "MemTotal: 600000 kB\nMemFree: 10000 kB\nMemAvailable: 400000 kB\nCached: 380000 kB\nAnonPages: 100000 kB\nShmem: 60000 kB\n"
	u, ok := parseAvailable([]byte(text))
	if !ok || u.total != 600000<<10 || u.used != 200000<<10 || u.kernel != 40000<<10 {
		t.Errorf("%+v", u)
	}
	if u, ok := parseAvailable([]byte("MemTotal: 600000 kB\nMemFree: 10000 kB\n")); ok {
		t.Errorf("without MemAvailable: %+v", u)
	}
}

func TestTheMemoryOfAContainer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files map[string]string
		want  Size
		ok    bool
	}{
		"version 2": {map[string]string{"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 300\nfile 400\nshmem 100\n"}, Size{1000, 400, 300}, true},
		"version 1": {map[string]string{
			"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "700", "memory/memory.stat": "cache 1\ntotal_cache 300\ntotal_shmem 0\n",
		}, Size{1000, 400, 300}, true},
		"no limit": {map[string]string{"memory.max": "max\n", "memory.current": "700\n"}, Size{}, false},
		"none":     {nil, Size{}, false},
	} {
		dir := t.TempDir()
		for file, text := range tt.files {
			file = filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got, ok := container(dir); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, tt.want)
		}
	}
}
