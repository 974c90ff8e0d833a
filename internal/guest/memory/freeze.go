//go:build linux

package memory

import (
	"cmp"
	"slices"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// frozen is the list of all processes of the sandbox, which are stopped while victims are chosen.
type frozen struct {
	machine machine
	all     []proc.Process
	own     map[int]bool
	held    []proc.Process // processes stopped by freeze; children before their parents
}

// freezeRounds bounds how often freeze searches for processes that were started while it stopped the others.
const freezeRounds = 8

// freeze stops all processes except own. Processes that were stopped before must not be continued later. They must be
// recognised before the first signal, because afterwards all are stopped.
func freeze(m machine, own map[int]bool) (*frozen, error) {
	all, err := m.list()
	if err != nil {
		return nil, err
	}
	f := &frozen{machine: m, all: all, own: own}
	f.stopParents()
	known := map[int]bool{}
	fresh := all
	for range freezeRounds {
		f.stop(fresh)
		for _, p := range fresh {
			known[p.PID] = true
		}
		if fresh = f.newcomers(known); len(fresh) == 0 {
			break
		}
		f.all = append(f.all, fresh...)
	}
	slices.SortFunc(f.held, func(x, y proc.Process) int {
		return cmp.Or(cmp.Compare(y.Start, x.Start), cmp.Compare(y.PID, x.PID))
	})
	return f, nil
}

// parentsWait is how long stopParents waits for all of them. Meanwhile other processes take more memory.
const parentsWait = 3 * time.Millisecond

// stopParents stops the processes that have children, each one before the next and the oldest first. A shell that
// waits for its jobs would otherwise see that they were stopped before it is stopped itself, and report them.
func (f *frozen) stopParents() {
	parents := map[int]bool{}
	for _, p := range f.all {
		parents[p.PPID] = true
	}
	inOrder := slices.Clone(f.all)
	slices.SortFunc(inOrder, func(x, y proc.Process) int {
		return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.PID, y.PID))
	})
	end := time.Now().Add(parentsWait)
	for _, p := range inOrder {
		if !parents[p.PID] || !f.hold(p) {
			continue
		}
		for time.Now().Before(end) {
			if now, ok := f.machine.process(p.PID); !ok || now.Zombie || now.State == 'T' {
				break
			}
		}
	}
}

func (f *frozen) stop(these []proc.Process) {
	f.machine.stopAll(f.own)
	held := map[int]bool{}
	for _, p := range f.held {
		held[p.PID] = true
	}
	for _, p := range these {
		if !held[p.PID] {
			f.hold(p)
		}
	}
}

// hold stops a process if it runs. It reports whether it did.
func (f *frozen) hold(p proc.Process) bool {
	if p.Zombie || f.own[p.PID] || p.State == 'T' || f.machine.signal(p.PID, syscall.SIGSTOP) != nil {
		return false
	}
	f.held = append(f.held, p)
	return true
}

// newcomers returns the processes that are not yet known.
func (f *frozen) newcomers(known map[int]bool) []proc.Process {
	pids, err := f.machine.pids()
	if err != nil {
		return nil
	}
	var fresh []proc.Process
	for _, pid := range pids {
		if known[pid] {
			continue
		}
		if p, ok := f.machine.process(pid); ok {
			p.State = 'R' // a new process was running until it was stopped
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// thaw continues the processes for which which returns true. Children come first: a shell with job control must find
// its jobs running, or it would treat them as stopped.
func (f *frozen) thaw(which func(p proc.Process) bool) {
	f.held = slices.DeleteFunc(f.held, func(p proc.Process) bool {
		if !which(p) {
			return false
		}
		_ = f.machine.signal(p.PID, syscall.SIGCONT) // it may have ended
		return true
	})
}

// orphans returns the process groups that are orphaned once the doomed processes have ended. When a member of an
// orphaned group ends while others are stopped, the kernel sends SIGHUP to the whole group.
func (f *frozen) orphans(doomed map[int]bool) map[int]bool {
	byPID := map[int]proc.Process{}
	for _, p := range f.all {
		byPID[p.PID] = p
	}
	orphaned := map[int]bool{}
	for pid := range doomed {
		orphaned[byPID[pid].Group] = true
	}
	for _, p := range f.all {
		parent, ok := byPID[p.PPID]
		if ok && !p.Zombie && !doomed[p.PID] && !doomed[p.PPID] &&
			parent.Session == p.Session && parent.Group != p.Group {
			delete(orphaned, p.Group)
		}
	}
	return orphaned
}
