//go:build linux

package agent

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// survivorPrefix begins the id of a survivor in the list of operations; its pid follows.
	survivorPrefix = "pid-"
	// survivorGrace is the time between SIGTERM and SIGKILL for a survivor.
	survivorGrace = 2 * time.Second
	// maxSurvivors is the number of survivors that are listed, because a list must fit into one frame.
	maxSurvivors = 256
)

// survivors returns the processes that ended cells and commands have left running. Each of them is below a nanny, which
// distinguishes them from the guest's own processes. The operation of that nanny has ended, or an earlier cell of the
// same interpreter has left the process.
func (a *Agent) survivors() []proc.Process {
	all, err := proc.List()
	if err != nil {
		return nil
	}
	nannies, owners := a.nannies.PIDs(), a.nannies.Owners()
	interpreters, known := a.contexts.Processes()
	byPID := map[int]proc.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	var out []proc.Process
	for _, p := range all {
		if p.Zombie || nannies[p.PID] || interpreters[p.PID] {
			continue
		}
		earlier := false
		for q, ok := p, true; ok && q.PID != os.Getpid(); q, ok = byPID[q.PPID] {
			if nannies[q.PID] {
				if o := owners[q.PID]; earlier || o == nil || o.Finished() {
					out = append(out, p)
				}
				break
			}
			earlier = earlier || known[nanny.Process{PID: q.PID, Start: q.Start}]
		}
	}
	return out
}

// listSurvivors returns the survivors as entries of the list of operations.
func (a *Agent) listSurvivors() []*wire.Op {
	var out []*wire.Op
	left := a.survivors()
	var up unix.Sysinfo_t
	if unix.Sysinfo(&up) != nil {
		up.Uptime = 0
	}
	for _, p := range left[:min(len(left), maxSurvivors)] {
		const tick = time.Second / 100 // USER_HZ, which is 100 on every Linux
		age := max(0, time.Duration(up.Uptime)*time.Second-time.Duration(p.Start)*tick)
		out = append(out, &wire.Op{
			Id:            survivorPrefix + strconv.Itoa(p.PID),
			Kind:          "process",
			Command:       proc.Command(p),
			Running:       true,
			Pid:           int32(p.PID),
			StartedUnixNs: time.Now().Add(-age).UnixNano(),
		})
	}
	return out
}

// signalSurvivor signals a survivor. known is false if the id is not that of a survivor.
func (a *Agent) signalSurvivor(s *wire.Signal) (bad *wire.Error, known bool) {
	number, found := strings.CutPrefix(s.Id, survivorPrefix)
	pid, err := strconv.Atoi(number)
	if !found || err != nil {
		return nil, false
	}
	left := a.survivors()
	var targets []proc.Process
	for _, p := range left {
		if p.PID == pid {
			targets = []proc.Process{p}
		}
	}
	if targets == nil {
		return wire.Errorf("not_found", "process %d is not a survivor of an ended operation", pid), true
	}
	if s.Tree || s.Cancel {
		targets = withChildren(targets[0], left)
	}
	if !s.Cancel {
		if s.Signal <= 0 || s.Signal > 64 {
			return wire.Errorf("invalid_request", "invalid signal %d", s.Signal), true
		}
		return signalAll(targets, syscall.Signal(s.Signal)), true
	}
	bad = signalAll(targets, syscall.SIGTERM)
	_ = signalAll(targets, syscall.SIGCONT) // a stopped process handles SIGTERM only after this; it may have ended
	time.AfterFunc(survivorGrace, func() {
		// A process that ignores SIGTERM may have started more. While it is stopped, it cannot start others during the
		// search.
		_ = signalAll(targets, syscall.SIGSTOP) // some may have ended
		if now, ok := proc.Get(pid); ok && now.Start == targets[0].Start {
			targets = append(targets, withChildren(now, a.survivors())...)
		}
		_ = signalAll(targets, syscall.SIGKILL) // the list shows processes that are still left
	})
	return bad, true
}

// withChildren returns a process and its descendants among others.
func withChildren(root proc.Process, others []proc.Process) []proc.Process {
	below := map[int]bool{root.PID: true}
	out := []proc.Process{root}
	for grown := true; grown; {
		grown = false
		for _, p := range others {
			if below[p.PPID] && !below[p.PID] {
				below[p.PID], grown = true, true
				out = append(out, p)
			}
		}
	}
	return out
}

// signalAll sends a signal to each target that is still the same process. It returns an error if the first cannot be
// signalled.
func signalAll(targets []proc.Process, s syscall.Signal) (bad *wire.Error) {
	for i, p := range targets {
		now, ok := proc.Get(p.PID)
		err := error(syscall.ESRCH)
		if ok && now.Start == p.Start && !now.Zombie {
			err = unix.Kill(p.PID, s)
		}
		if i == 0 && err != nil {
			bad = wire.Errorf("not_found", "process %d: %v", p.PID, err)
		}
	}
	return bad
}
