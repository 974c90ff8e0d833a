//go:build linux

// Package memory keeps a sandbox below its memory limit, and counts for each operation which of its processes were killed for memory.
//
// # Why the guest enforces the limit
//
// The host's kernel cannot tell who uses a sandbox's memory. All of it belongs to gVisor's one memory file: a killed process frees
// nothing until gVisor has returned its pages, and what was filled by read(2) counts as gVisor's own. A hard limit therefore tends to
// kill the whole sandbox. So the guest, which sees true figures inside, watches and kills the largest process before the limit is
// reached; the host's limit is a reserve higher, as a backstop.
//
// # The races
//
// Code can fill memory at 2 GiB/s, so the pause between two looks depends on what is left: at most half the time in which the rest
// could be filled, and never so short that watching alone keeps a core busy. Hundreds of idle sandboxes must not cost a core to watch
// either, so the enforcer sleeps until an operation begins as long as nothing runs that could allocate (calm).
//
// The offender would outrun whoever chooses, by forking or by allocating, so everything but the guest and its nannies is stopped
// first (freeze.go). Stopping races with forks: processes that were born meanwhile are looked for until there are none.
//
// A killed process's memory returns later than it ends, because gVisor releases pages, pipes and sockets in the background. Until
// then the figures would accuse the next largest, such as the interpreter that replaces the dead one. So the enforcer waits, with
// everything still stopped, until usage is below the limit or no longer falls (settle).
//
// Where the host's kernel kills for memory itself, as in a container on runc, its counter is all there is to read; Account tells
// whose processes it killed, as far as that can be known.
package memory

import (
	"cmp"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

const (
	// fastest is how quickly code can fill memory, in bytes a second: the next look comes before it can be full.
	fastest = 2 << 30
	// soonest and latest bound the pause between two looks.
	soonest = 4 * time.Millisecond
	latest  = 500 * time.Millisecond
	// asleep is the pause while nothing can run; a new operation ends it.
	asleep = time.Minute
	// returning is how long the memory of killed processes has to return before others are chosen: longer than gVisor's kernel leaves
	// its garbage uncollected (cmd/recluse-engine, heap.go). exhausted is after how long without a change no more of it is expected.
	returning = 3 * time.Second
	exhausted = 100 * time.Millisecond
	// longest replaces returning where the kernel has yet to collect its garbage, and before a process is chosen that has too little to
	// be the culprit: a busy machine takes its time.
	longest = 10 * time.Second

	// attributable is the part of the memory in use, 1/attributable, that a tree must have to be the culprit by that alone.
	attributable = 4
	// crowd is the number of processes from which on half of a tree's memory is freed at once, because the rest would soon fill it again.
	crowd = 16
	// headroom is the part of the limit, 1/headroom, that is freed at once.
	headroom = 16

	// A pipe or socket is assumed to hold at least minChannel and at most maxChannel, which is what a pipe can be made to hold.
	minChannel = 64 << 10
	maxChannel = 1 << 20
)

// Sandbox is what the enforcer has to know of the processes in a sandbox.
type Sandbox interface {
	// Own returns the pids of the guest and its nannies, which are neither stopped nor killed.
	Own() map[int]bool
	// Trees returns what runs below each nanny, by the nanny's pid.
	Trees() map[int]Tree
	// Idle reports that no operation runs.
	Idle() bool
}

// Tree is what runs below one nanny: the processes of one command, or of an interpreter and its cells.
type Tree struct {
	Owner Owner // the operation that runs there; nil: none
	Main  int   // pid of the interpreter, whose loss costs the session's state; 0: the tree has none
}

// Owner is the operation that a tree belongs to.
type Owner interface {
	Finished() bool
	// Killed records that a process was killed for memory.
	Killed(pid int)
}

// Enforcer keeps a sandbox below its limit.
type Enforcer struct {
	limit   int64
	sandbox Sandbox
	started <-chan struct{} // receives when an operation has begun
	machine machine

	lastKill  time.Time // when the last victims were seen to have ended
	calmTasks int       // the number of tasks with which nothing was found to run; 0: unknown
}

// NewEnforcer returns an enforcer of limit bytes. started receives when an operation begins.
func NewEnforcer(limit int64, s Sandbox, started <-chan struct{}) *Enforcer {
	return &Enforcer{limit: limit, sandbox: s, started: started, machine: kernel{}}
}

// Run enforces the limit for ever.
func (e *Enforcer) Run() {
	for {
		e.step()
	}
}

// step looks once, kills if it must, and waits until the next look is due.
func (e *Enforcer) step() {
	u, ok := e.machine.usage()
	if !ok {
		time.Sleep(latest)
		return
	}
	left := e.limit - u.used
	if left <= 0 {
		e.killLargest(u)
		return
	}
	if e.calm() {
		select {
		case <-e.started:
		case <-time.After(asleep):
		}
		// Nothing could grow until now, so what was left still is, and the new operation has the core for itself.
	}
	pause := time.Duration(float64(left) / fastest * float64(time.Second) / 2)
	time.Sleep(min(max(pause, soonest), latest))
}

// calm reports that nothing in the sandbox can use more memory: no operation runs, no command has left anything behind, and the
// interpreters wait for their next cell with no thread or child beside them.
func (e *Enforcer) calm() bool {
	if !e.sandbox.Idle() {
		return false
	}
	// With as many tasks as when it was last found out, nothing has been started that is still there. The table costs a hundred times as much.
	tasks := e.machine.tasks()
	if tasks > 0 && tasks == e.calmTasks {
		return true
	}
	e.calmTasks = 0
	if !e.nothingElseRuns() {
		return false
	}
	if e.machine.tasks() == tasks { // else a task came or went meanwhile
		e.calmTasks = tasks
	}
	return true
}

// nothingElseRuns looks through the table for anything but the guest, its nannies and resting interpreters.
func (e *Enforcer) nothingElseRuns() bool {
	all, err := e.machine.list()
	if err != nil {
		return false
	}
	own := e.sandbox.Own()
	interpreters := map[int]bool{}
	for _, t := range e.sandbox.Trees() {
		interpreters[t.Main] = t.Main != 0
	}
	for _, p := range all {
		if !p.Zombie && !own[p.PID] && (!interpreters[p.PID] || p.Threads > 1) {
			return false
		}
	}
	return true
}

// load is one process and what it has of the sandbox's memory.
type load struct {
	proc.Process
	bytes int64
}

// family is the processes of one tree.
type family struct {
	procs   []load
	bytes   int64
	running bool // its operation has not ended
	main    int  // as in Tree
}

// killLargest kills processes of the tree with the most memory until enough is free, and tells their owner. The tree counts and not
// the process: a hundred small ones are one offender, and the largest process of all may be an innocent interpreter.
func (e *Enforcer) killLargest(u usage) {
	still, err := freeze(e.machine, e.sandbox.Own())
	if err != nil {
		return
	}
	defer still.thaw(func(proc.Process) bool { return true })
	worst := worstFamily(e.families(still.all, still.own, u.kernel), u.used)
	if worst == nil {
		time.Sleep(soonest)
		return
	}
	if grace := longest - time.Since(e.lastKill); worst.bytes < u.used/attributable && grace > 0 {
		e.settle(nil, grace) // memory of the dead is still counted, and nothing alive has enough to be the culprit
		return
	}
	victims := e.choose(worst, u.used)
	doomed := map[int]bool{}
	for _, v := range victims {
		doomed[v.PID] = true
	}
	orphans := still.orphans(doomed)
	still.thaw(func(p proc.Process) bool { return orphans[p.Group] && !doomed[p.PID] })
	parents := map[int]int{}
	for _, p := range still.all {
		parents[p.PID] = p.PPID
	}
	for _, v := range victims {
		e.blame(v.PID, parents)
		_ = e.machine.signal(v.PID, syscall.SIGKILL) // one that has gone is what we want
	}
	e.settle(victims, returning)
	e.lastKill = time.Now()
}

// choose returns the processes of a family to kill, largest first, until enough is free.
func (e *Enforcer) choose(worst *family, used int64) []load {
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
	excess := used - e.limit + e.limit/headroom
	if len(worst.procs) > crowd {
		excess += e.limit / 2
	}
	n := 0
	for excess > 0 && n < len(worst.procs) {
		excess -= worst.procs[n].bytes
		n++
	}
	if excess > 0 && len(worst.procs) <= crowd {
		n = 1 // what is known of them does not explain the usage, so they are killed one by one
	}
	return worst.procs[:n]
}

// settle waits until the memory of killed processes has returned, while everything stands still. Without victims it only waits.
func (e *Enforcer) settle(victims []load, grace time.Duration) {
	least := int64(math.MaxInt64)
	var fell time.Time // when usage was last seen to become less
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		u, ok := e.machine.usage()
		if !ok || u.used < e.limit {
			return
		}
		// What waited in pipes and sockets is the kernel's until it collects its garbage.
		garbage := u.kernel >= e.limit/headroom
		if waited := time.Since(began); waited > longest || waited > grace && !garbage {
			return
		}
		dying := slices.ContainsFunc(victims, func(v load) bool {
			p, ok := e.machine.process(v.PID)
			return ok && p.Start == v.Start && !p.Zombie
		})
		if dying || u.used < least {
			least, fell = min(least, u.used), time.Now()
		}
		if len(victims) > 0 && time.Since(fell) > exhausted && !garbage {
			return // all that they had is back, and it was not enough
		}
	}
}

// families sorts the processes by the nanny they run below. What the kernel has for itself may wait in pipes and sockets, so it is
// shared out among those who have them open. None is given more than it can hold: it may as well be what the dead have left.
func (e *Enforcer) families(all []proc.Process, own map[int]bool, kernel int64) []*family {
	byPID := map[int]proc.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	trees := e.sandbox.Trees()
	found := map[int]*family{}
	var out []*family
	channels, sum := map[int]int{}, 0
	for _, p := range all {
		if p.Zombie || own[p.PID] {
			continue
		}
		root := p.PPID
		for q, ok := byPID[root]; ok && !own[root]; q, ok = byPID[root] {
			root = q.PPID
		}
		f := found[root]
		if f == nil {
			t := trees[root]
			f = &family{running: t.Owner != nil && !t.Owner.Finished(), main: t.Main}
			found[root] = f
			out = append(out, f)
		}
		bytes, n := e.machine.footprint(p.PID)
		channels[p.PID], sum = n, sum+n
		f.procs = append(f.procs, load{p, bytes})
	}
	each := min(max(kernel/int64(max(sum, 1)), minChannel), maxChannel)
	for _, f := range out {
		for i := range f.procs {
			f.procs[i].bytes += each * int64(channels[f.procs[i].PID])
			f.bytes += f.procs[i].bytes
		}
	}
	return out
}

// worstFamily chooses the one to suffer. Where none has enough to be the culprit, one that runs now is likelier than one that rests.
func worstFamily(families []*family, used int64) *family {
	var worst, busy *family
	for _, f := range families {
		if worst == nil || f.bytes > worst.bytes {
			worst = f
		}
		if f.running && (busy == nil || f.bytes > busy.bytes) {
			busy = f
		}
	}
	if worst == nil || worst.bytes >= used/attributable || busy == nil {
		return worst
	}
	return busy
}

// blame tells the operation below whose nanny the victim lives.
func (e *Enforcer) blame(victim int, parents map[int]int) {
	trees := e.sandbox.Trees()
	for pid := victim; pid > 0; pid = parents[pid] {
		if o := trees[pid].Owner; o != nil {
			o.Killed(victim)
			return
		}
	}
}
