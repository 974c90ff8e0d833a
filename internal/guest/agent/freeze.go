//go:build linux

package agent

import (
	"cmp"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// frozen is everybody in the sandbox, standing still so that somebody can be chosen from among them.
type frozen struct {
	all  []proc.Process
	ours map[int]bool
	held []proc.Process // whom we have stopped, and nobody else; children before their parents
}

// freezeRounds bounds how often freeze looks for those who were born while it stopped the others.
const freezeRounds = 8

// freeze stops everybody but the guest and its nannies. Whoever stood still before is not ours to wake later, and
// that can only be seen before: afterwards all look alike.
func (a *Agent) freeze() (*frozen, error) {
	all, err := proc.List()
	if err != nil {
		return nil, err
	}
	f := &frozen{all: all, ours: a.ours()}
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

func (f *frozen) stop(these []proc.Process) {
	if os.Getpid() == 1 {
		// The whole machine is ours, so one call stops all of it, also those who are being born. The nannies go on at once.
		_ = unix.Kill(-1, syscall.SIGSTOP) // nobody there is no failure
		for pid := range f.ours {
			_ = unix.Kill(pid, syscall.SIGCONT)
		}
	}
	for _, p := range these {
		if !p.Zombie && !f.ours[p.PID] && p.State != 'T' && unix.Kill(p.PID, syscall.SIGSTOP) == nil {
			f.held = append(f.held, p)
		}
	}
}

// newcomers gives those who are not yet known.
func (f *frozen) newcomers(known map[int]bool) []proc.Process {
	pids, err := proc.PIDs()
	if err != nil {
		return nil
	}
	var fresh []proc.Process
	for _, pid := range pids {
		if known[pid] {
			continue
		}
		if p, ok := proc.Get(pid); ok {
			p.State = 'R' // it ran until we stopped it, for it has just been born
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// thaw lets those go on whom which chooses. Children first: a shell that looks after its jobs must find
// them running again, or it would take them for stopped ones.
func (f *frozen) thaw(which func(p proc.Process) bool) {
	f.held = slices.DeleteFunc(f.held, func(p proc.Process) bool {
		if !which(p) {
			return false
		}
		_ = unix.Kill(p.PID, syscall.SIGCONT) // one that has gone needs none
		return true
	})
}

// orphans gives the process groups that have lost every tie to their session once the doomed are gone. When a member of
// such a group ends while others of it are stopped, the kernel sends all of them SIGHUP.
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
		if ok && !p.Zombie && !doomed[p.PID] && !doomed[p.PPID] && parent.Session == p.Session && parent.Group != p.Group {
			delete(orphaned, p.Group)
		}
	}
	return orphaned
}
