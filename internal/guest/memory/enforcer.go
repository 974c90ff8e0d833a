//go:build linux

// Package memory keeps a sandbox below its memory limit, and counts for each operation how many of its processes were
// OOM-killed.
//
// # Why the guest enforces the limit
//
// The host's kernel cannot attribute the memory of a sandbox to processes. All of it belongs to the one memory file of
// gVisor: killing a process frees nothing until gVisor has released its pages, and pages filled by read(2) are counted
// as gVisor's own. A hard limit therefore tends to kill the whole sandbox. So the guest, which sees correct figures
// inside, watches the usage and kills the largest process before the limit is reached. The host's limit is higher by a
// reserve, as a backstop.
//
// # The races
//
// Code can fill memory at 2 GiB/s, so the pause between two checks depends on the free memory: at most half the time in
// which it could be filled, but never so short that the checks alone keep a core busy. Watching hundreds of idle
// sandboxes must not cost a core either, so the enforcer sleeps until an operation begins while nothing runs that could
// allocate (idle).
//
// While the enforcer chooses a victim, the offender could fork or allocate more. So everything except the guest and its
// nannies is stopped first (freeze.go). Stopping races with forks: freeze searches for new processes until there are
// none.
//
// The memory of a killed process is released some time after the process has ended, because gVisor releases pages,
// pipes and sockets in the background. Until then the figures would point to the next largest process, such as the
// interpreter that replaces the dead one. So the enforcer waits, with everything still stopped, until the usage is
// below the limit or no longer falls (awaitRelease).
//
// Where the host's kernel itself kills processes, as in a container on runc, its counter is the only information.
// Account attributes those kills to operations, as far as possible.
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
	// fillRate is how fast code can fill memory, in bytes per second: the next check comes before memory can be full.
	fillRate = 2 << 30
	// minPause and maxPause bound the pause between two checks.
	minPause = 4 * time.Millisecond
	maxPause = 500 * time.Millisecond
	// idlePause is the pause while nothing can run; a new operation ends it.
	idlePause = time.Minute
	// releaseWait is how long the memory of killed processes may take to be released before other processes are chosen:
	// longer than the interval of garbage collections of gVisor's kernel (cmd/recluse-engine, heap.go). After
	// releaseStall without a change no more is expected.
	releaseWait  = 3 * time.Second
	releaseStall = 100 * time.Millisecond
	// maxReleaseWait replaces releaseWait while gVisor's kernel has garbage to collect, and before a process is chosen
	// that has too little memory to be the cause: a busy machine is slow.
	maxReleaseWait = 10 * time.Second

	// attributable is the part of the used memory, 1/attributable, that a tree must have to be the cause by that alone.
	attributable = 4
	// crowd is the number of processes above which half of the limit is freed at once, because the remaining processes
	// would soon fill it again.
	crowd = 16
	// headroom is the part of the limit, 1/headroom, that is freed in addition.
	headroom = 16

	// A pipe or socket is assumed to hold at least minChannel and at most maxChannel, which is the maximum size of a
	// pipe.
	minChannel = 64 << 10
	maxChannel = 1 << 20
)

// Sandbox is the enforcer's view of the processes in a sandbox.
type Sandbox interface {
	// Own returns the pids of the guest and its nannies, which are neither stopped nor killed.
	Own() map[int]bool
	// Trees returns the process tree of each nanny, by the pid of the nanny.
	Trees() map[int]Tree
	// Idle reports whether no operation is running.
	Idle() bool
}

// Tree is the process tree of one nanny: a command, or an interpreter and its cells.
type Tree struct {
	Owner Owner // the operation that runs there; nil: none
	Main  int   // pid of the interpreter, whose loss costs the state of its context; 0: not an interpreter
}

// Owner is the operation that a tree belongs to.
type Owner interface {
	Finished() bool
	// Killed records that a process was OOM-killed.
	Killed(pid int)
}

// Enforcer keeps a sandbox below its limit.
type Enforcer struct {
	limit   int64
	sandbox Sandbox
	started <-chan struct{} // receives when an operation has begun
	machine machine

	lastKill  time.Time // when the end of the last victims was noticed
	idleTasks int       // the number of tasks when the sandbox was last found idle; 0: unknown
}

// NewEnforcer returns an enforcer of limit bytes. caches means that the kernel keeps files of disks in memory, which it
// gives back when processes need it. started receives when an operation begins.
func NewEnforcer(limit int64, caches bool, s Sandbox, started <-chan struct{}) *Enforcer {
	return &Enforcer{limit: limit, sandbox: s, started: started, machine: kernel{caches}}
}

// Run enforces the limit. It does not return.
func (e *Enforcer) Run() {
	for {
		e.step()
	}
}

// step checks the usage once, kills if necessary, and waits until the next check is due.
func (e *Enforcer) step() {
	u, ok := e.machine.usage()
	if !ok {
		time.Sleep(maxPause)
		return
	}
	left := e.limit - u.used
	if left <= 0 {
		e.killLargest(u)
		return
	}
	if e.idle() {
		select {
		case <-e.started:
		case <-time.After(idlePause):
		}
		// Nothing could allocate until now, so left is still correct, and the new operation has the core for itself.
	}
	pause := time.Duration(float64(left) / fillRate * float64(time.Second) / 2)
	time.Sleep(min(max(pause, minPause), maxPause))
}

// idle reports whether nothing in the sandbox can allocate memory: no operation is running, commands have no survivors,
// and the interpreters wait for their next cell without other threads or children.
func (e *Enforcer) idle() bool {
	if !e.sandbox.Idle() {
		return false
	}
	// If the number of tasks is the same as at the last full check, no started process is left. Reading the process
	// table costs a hundred times as much.
	tasks := e.machine.tasks()
	if tasks > 0 && tasks == e.idleTasks {
		return true
	}
	e.idleTasks = 0
	if !e.nothingElseRuns() {
		return false
	}
	if e.machine.tasks() == tasks { // otherwise a task started or ended meanwhile
		e.idleTasks = tasks
	}
	return true
}

// nothingElseRuns reports whether the process table has only the guest, its nannies and waiting interpreters.
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
		if !p.Zombie && !p.Kernel && !own[p.PID] && (!interpreters[p.PID] || p.Threads > 1) {
			return false
		}
	}
	return true
}

// load is a process and its share of the sandbox's memory.
type load struct {
	proc.Process
	bytes int64
}

// family is the processes of one tree with their memory.
type family struct {
	procs   []load
	bytes   int64
	running bool // the operation has not ended
	main    int  // Tree.Main
}

// killLargest kills processes of the tree with the most memory until enough is free, and records the kills with their
// owner. It compares trees and not processes: a hundred small processes of one command are one offender, and the
// largest single process may be an innocent interpreter.
func (e *Enforcer) killLargest(u usage) {
	stopped, err := freeze(e.machine, e.sandbox.Own())
	if err != nil {
		return
	}
	defer stopped.thaw(func(proc.Process) bool { return true })
	worst := worstFamily(e.families(stopped.all, stopped.own, u.kernel), u.used)
	if worst == nil {
		time.Sleep(minPause)
		return
	}
	if grace := maxReleaseWait - time.Since(e.lastKill); worst.bytes < u.used/attributable && grace > 0 {
		// Memory of dead processes is still counted, and no live tree has enough to be the cause.
		e.awaitRelease(nil, grace)
		return
	}
	victims := e.chooseVictims(worst, u.used)
	doomed := map[int]bool{}
	for _, v := range victims {
		doomed[v.PID] = true
	}
	orphans := stopped.orphans(doomed)
	stopped.thaw(func(p proc.Process) bool { return orphans[p.Group] && !doomed[p.PID] })
	parents := map[int]int{}
	for _, p := range stopped.all {
		parents[p.PID] = p.PPID
	}
	for _, v := range victims {
		e.recordKill(v.PID, parents)
		_ = e.machine.signal(v.PID, syscall.SIGKILL) // it may have ended already
	}
	e.awaitRelease(victims, releaseWait)
	e.lastKill = time.Now()
}

// chooseVictims returns the processes of a family to kill, largest first, until enough is free.
func (e *Enforcer) chooseVictims(worst *family, used int64) []load {
	slices.SortFunc(worst.procs, func(x, y load) int {
		// The interpreter comes last, unless it is by far the largest: its children may only look as large, because
		// they share its pages.
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
		n = 1 // their memory does not explain the usage, so kill one at a time
	}
	return worst.procs[:n]
}

// awaitRelease waits until the memory of killed processes has been released, while everything is stopped. Without
// victims it waits until the usage is below the limit or grace is over.
func (e *Enforcer) awaitRelease(victims []load, grace time.Duration) {
	least := int64(math.MaxInt64)
	var fell time.Time // when the usage last decreased
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		u, ok := e.machine.usage()
		if !ok || u.used < e.limit {
			return
		}
		// Data that waited in pipes and sockets belongs to gVisor's kernel until its next garbage collection.
		garbage := u.kernel >= e.limit/headroom
		if waited := time.Since(began); waited > maxReleaseWait || waited > grace && !garbage {
			return
		}
		dying := slices.ContainsFunc(victims, func(v load) bool {
			p, ok := e.machine.process(v.PID)
			return ok && p.Start == v.Start && !p.Zombie
		})
		if dying || u.used < least {
			least, fell = min(least, u.used), time.Now()
		}
		if len(victims) > 0 && time.Since(fell) > releaseStall && !garbage {
			return // all their memory is released, and it was not enough
		}
	}
}

// families groups the processes by their nannies. Memory of the kernel itself may be data in pipes and sockets, so it
// is distributed among the processes that have them open. Each share is bounded by what the pipes and sockets can hold,
// because the memory may also be left over from dead processes.
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

// worstFamily returns the family to kill from. If none has enough memory to be the cause by that alone, a family that
// is running is more likely the cause than one that is waiting.
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

// recordKill records a kill with the operation that the victim belongs to.
func (e *Enforcer) recordKill(victim int, parents map[int]int) {
	trees := e.sandbox.Trees()
	for pid := victim; pid > 0; pid = parents[pid] {
		if o := trees[pid].Owner; o != nil {
			o.Killed(victim)
			return
		}
	}
}
