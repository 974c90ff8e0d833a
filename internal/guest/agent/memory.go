//go:build linux

package agent

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// The host's kernel is a bad judge of who uses a sandbox's memory. All of it belongs
// to gVisor's one memory file: a killed process frees nothing until gVisor has
// given its pages back, and what was filled by read(2) counts as gVisor's own. A hard limit
// therefore tends to kill the whole sandbox. So the guest, who sees true figures inside,
// watches, and kills the largest process before the limit is reached; the host's
// limit stands a reserve above it, as a backstop.
const (
	// fastest is how quickly code can fill memory: the next look comes before it can be full.
	fastest = 2 << 30 // bytes a second
	// soonest and latest bound the pause between two looks.
	soonest = 4 * time.Millisecond
	latest  = 500 * time.Millisecond
	// asleep is the pause while nothing can run; a new operation ends it.
	asleep = time.Minute
	// patience is how long the memory of killed processes has to come back before others are chosen: longer than the kernel leaves
	// its garbage lying (cmd/recluse-engine, heap.go). spent is after how long without a change no more of it is to be expected.
	patience = 3 * time.Second
	spent    = 100 * time.Millisecond
	// mercy is how long it has where the kernel has yet to collect its garbage, and before somebody is chosen who has too little to be the
	// culprit: a busy machine takes its time.
	mercy = 10 * time.Second
)

// police keeps the sandbox below its memory limit.
func (a *Agent) police() {
	for {
		m, ok := meminfo()
		if !ok {
			time.Sleep(latest)
			continue
		}
		left := a.cfg.Memory - m.used
		if left <= 0 {
			a.killLargest(m)
			continue
		}
		if a.calm() {
			select {
			case <-a.ops.stir:
			case <-time.After(asleep):
			}
			// Nothing could grow until now, so what was left still is, and the new operation has our core for itself.
		}
		pause := time.Duration(float64(left) / fastest * float64(time.Second) / 2)
		time.Sleep(min(max(pause, soonest), latest))
	}
}

// calm reports that nothing in the sandbox can use more memory: no operation runs, no command has left anything behind, and the interpreters
// wait for their next cell with no thread or child beside them. Hundreds of idle sandboxes must not cost a core to watch.
func (a *Agent) calm() bool {
	for _, o := range a.ops.all() {
		if !o.finished() {
			return false
		}
	}
	// As many tasks as when it was last found out: nothing has been started that is still there. The table costs a hundred times as much.
	tasks := taskCount()
	if tasks > 0 && tasks == a.calmTasks {
		return true
	}
	a.calmTasks = 0
	if !a.nothingElseRuns() {
		return false
	}
	if taskCount() == tasks { // else somebody came or went while we looked
		a.calmTasks = tasks
	}
	return true
}

// taskCount is how many threads there are in the sandbox, ours included; 0: unknown.
func taskCount() int {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int(si.Procs)
}

// nothingElseRuns looks through the table for anything but us, our nannies and resting interpreters.
func (a *Agent) nothingElseRuns() bool {
	all, err := proc.List()
	if err != nil {
		return false
	}
	ours := a.ours()
	a.mu.Lock()
	interps := map[int]bool{}
	for _, i := range a.interps {
		interps[i.pid] = true
	}
	a.mu.Unlock()
	for _, p := range all {
		if !p.Zombie && !ours[p.PID] && (!interps[p.PID] || p.Threads > 1) {
			return false
		}
	}
	return true
}

// memory is what the sandbox's kernel says of its memory.
type memory struct {
	total  int64
	used   int64 // files in memory included; may be more than there is
	kernel int64 // what is neither a process's nor a file's: the kernel's own, and what it has not yet given back; at least this much
}

// meminfo reads it.
func meminfo() (memory, bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return memory{}, false
	}
	defer f.Close()
	buf := make([]byte, 2<<10)
	n, err := f.Read(buf)
	if err != nil {
		return memory{}, false
	}
	buf = buf[:n]
	field := func(name string) (int64, bool) {
		i := bytes.Index(buf, []byte(name))
		if i < 0 {
			return 0, false
		}
		w := bytes.Fields(buf[i+len(name):])
		if len(w) == 0 {
			return 0, false
		}
		kb, err := strconv.ParseInt(string(w[0]), 10, 64)
		return kb << 10, err == nil
	}
	total, ok1 := field("MemTotal:")
	free, ok2 := field("MemFree:")
	if !ok1 || !ok2 {
		return memory{}, false
	}
	// gVisor never shows less than nothing as free. What processes and files have is shown as it is.
	anon, _ := field("AnonPages:")
	mapped, _ := field("Mapped:")
	m := memory{total: total, used: max(total-free, anon+mapped), kernel: max(total-free-anon-mapped, 0)}
	// And it counts the pages of its file only now and then, the more rarely the more there are. How large the file is
	// can be asked for at any time; only the kernel's heap is not in it.
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.used = max(m.used, int64((si.Totalram-si.Freeram)*uint64(max(si.Unit, 1))))
	}
	return m, true
}

// load is one process and what it has of the sandbox's memory.
type load struct {
	proc.Process
	bytes int64
}

// tree is what one nanny looks after: the processes of one command, or of an interpreter and its cells.
type tree struct {
	procs   []load
	bytes   int64
	running bool // its operation has not ended
	main    int  // pid of the interpreter, whose loss costs the session's state; 0 without
}

// killLargest ends processes of the tree with the most memory until enough is free, and notes for whose operation that was. The
// tree counts and not the process: a hundred small ones are one offender, and the largest process of all may be somebody's
// innocent interpreter. While it chooses everybody else stands still, or they would outrun it.
func (a *Agent) killLargest(m memory) {
	used := m.used
	still, err := a.freeze()
	if err != nil {
		return
	}
	defer still.thaw(func(proc.Process) bool { return true })
	all, ours := still.all, still.ours
	worst := worstTree(a.sorted(all, ours, m.kernel), used)
	if worst == nil {
		time.Sleep(soonest)
		return
	}
	if grace := mercy - time.Since(a.punished); worst.bytes < used/attributable && grace > 0 {
		a.settle(nil, grace) // it is the dead one's memory that is still counted, and nobody else has enough to answer for it
		return
	}
	slices.SortFunc(worst.procs, func(x, y load) int {
		// The interpreter last, unless it is by far the largest: its children may only seem as large, by sharing its pages.
		bx, by := x.bytes, y.bytes
		if x.PID == worst.main {
			bx /= 2
		}
		if y.PID == worst.main {
			by /= 2
		}
		return cmp.Compare(by, bx)
	})
	parent := map[int]int{}
	for _, p := range all {
		parent[p.PID] = p.PPID
	}
	excess := used - a.cfg.Memory + a.cfg.Memory/headroom
	if len(worst.procs) > crowd {
		excess += a.cfg.Memory / 2 // those that are left would soon be here again
	}
	var victims []load
	for _, p := range worst.procs {
		victims = append(victims, p)
		if excess -= p.bytes; excess <= 0 {
			break
		}
	}
	if excess > 0 && len(worst.procs) <= crowd {
		victims = victims[:1] // what is known of them does not explain it, so they are ended one by one
	}
	doomed := map[int]bool{}
	for _, v := range victims {
		doomed[v.PID] = true
	}
	orphans := still.orphans(doomed)
	still.thaw(func(p proc.Process) bool { return orphans[p.Group] && !doomed[p.PID] })
	for _, v := range victims {
		a.blame(v.Process, parent)
		_ = unix.Kill(v.PID, syscall.SIGKILL) // one that has gone is what we want
	}
	a.settle(victims, patience)
	a.punished = time.Now()
}

// settle waits until the memory of killed processes has come back, which takes longer than their end. Until then everybody stands still:
// the figures would accuse whoever is next, such as the interpreter that takes a dead one's place, and those who are left would fill the
// reserve meanwhile. Without victims it only waits.
func (a *Agent) settle(victims []load, grace time.Duration) {
	least := int64(math.MaxInt64)
	var fell time.Time // when it was last seen to become less
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		m, ok := meminfo()
		if !ok || m.used < a.cfg.Memory {
			return
		}
		// What waited in pipes and sockets is the kernel's until it collects its garbage.
		garbage := m.kernel >= a.cfg.Memory/headroom
		if waited := time.Since(began); waited > mercy || waited > grace && !garbage {
			return
		}
		dying := slices.ContainsFunc(victims, func(v load) bool {
			p, ok := proc.Get(v.PID)
			return ok && p.Start == v.Start && !p.Zombie
		})
		if dying || m.used < least {
			least, fell = min(least, m.used), time.Now()
		}
		if len(victims) > 0 && time.Since(fell) > spent && !garbage {
			return // all that they had is back, and it was not enough
		}
	}
}

const (
	// attributable is the part of the memory in use, 1/attributable, that a tree must have to be the culprit by that alone.
	attributable = 4
	// crowd is the number of processes from which on a tree is ended by halves and not one by one.
	crowd = 16
	// headroom is the part of the limit, 1/headroom, that is made free at once.
	headroom = 16
)

// A pipe or socket is taken to hold at least minChannel and at most maxChannel, which is what a pipe can be made to hold.
const (
	minChannel = 64 << 10
	maxChannel = 1 << 20
)

// sorted sorts the processes by whose they are. What the kernel has for itself may wait in pipes and sockets, so it is shared out among those
// who have them open. None is given more than it can hold: it may as well be what the dead have left.
func (a *Agent) sorted(all []proc.Process, ours map[int]bool, kernel int64) []*tree {
	byPID := map[int]proc.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	a.mu.Lock()
	mains := map[int]int{}
	for _, i := range a.interps {
		mains[i.nanny.PID()] = i.pid
	}
	busy := map[int]bool{}
	for pid, o := range a.trees {
		busy[pid] = !o.finished()
	}
	a.mu.Unlock()
	found := map[int]*tree{}
	var out []*tree
	channels, sum := map[int]int{}, 0
	for _, p := range all {
		if p.Zombie || ours[p.PID] {
			continue
		}
		root := p.PPID
		for q, ok := byPID[root]; ok && !ours[root]; q, ok = byPID[root] {
			root = q.PPID
		}
		t := found[root]
		if t == nil {
			t = &tree{running: busy[root], main: mains[root]}
			found[root] = t
			out = append(out, t)
		}
		// Most of it is resident, as often as it is shared; some is only held open.
		bytes, n := proc.Held(p.PID)
		channels[p.PID], sum = n, sum+n
		t.procs = append(t.procs, load{p, bytes + proc.Resident(p.PID)})
	}
	each := min(max(kernel/int64(max(sum, 1)), minChannel), maxChannel)
	for _, t := range out {
		for i := range t.procs {
			t.procs[i].bytes += each * int64(channels[t.procs[i].PID])
			t.bytes += t.procs[i].bytes
		}
	}
	return out
}

// worstTree chooses the one to suffer. Where no tree has enough to be the culprit, one that runs now is likelier than one that rests.
func worstTree(trees []*tree, used int64) *tree {
	var worst *tree
	for _, t := range trees {
		if worst == nil || t.bytes > worst.bytes {
			worst = t
		}
	}
	if worst == nil || worst.bytes >= used/attributable {
		return worst
	}
	var busy *tree
	for _, t := range trees {
		if t.running && (busy == nil || t.bytes > busy.bytes) {
			busy = t
		}
	}
	if busy != nil {
		return busy
	}
	return worst
}

// ours are the processes that must not be taken for the sandbox's: the guest and its nannies.
func (a *Agent) ours() map[int]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	ours := maps.Clone(a.nannies)
	ours[os.Getpid()] = true
	return ours
}

// blame finds the operation below whose nanny the victim lives.
func (a *Agent) blame(victim proc.Process, parent map[int]int) {
	for pid := victim.PID; pid > 0; pid = parent[pid] {
		a.mu.Lock()
		o := a.trees[pid]
		a.mu.Unlock()
		if o == nil {
			continue
		}
		o.mu.Lock()
		o.kills++
		o.oom = o.oom || o.pid == victim.PID
		if o.pid == 0 {
			o.fell = victim.PID
		}
		o.mu.Unlock()
		return
	}
}

// endStrays kills what came to us because its nanny died.
func (a *Agent) endStrays() {
	for range 1000 {
		if !a.endStraysOnce() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// endStraysOnce reports whether there were any.
func (a *Agent) endStraysOnce() (found bool) {
	a.spawnMu.Lock()
	defer a.spawnMu.Unlock()
	all, err := proc.List()
	if err != nil {
		return false
	}
	ours := a.ours()
	for _, p := range all {
		if p.PPID != os.Getpid() || ours[p.PID] {
			continue
		}
		found = true
		_ = unix.Kill(p.PID, syscall.SIGKILL) // gone is what we want
		var ws unix.WaitStatus
		_, _ = unix.Wait4(p.PID, &ws, unix.WNOHANG, nil)
	}
	return found
}
