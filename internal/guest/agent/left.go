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
	// leftPrefix begins the id of a process that is listed beside the operations; its pid follows.
	leftPrefix = "pid-"
	// leftGrace is how long such a process has between SIGTERM and SIGKILL.
	leftGrace = 2 * time.Second
	// maxLeft is how many are listed, because a list must fit into one frame.
	maxLeft = 256
)

// left returns the processes that ended cells and commands have left running. Each lives below a nanny, which tells them from the guest's
// own processes, and below none whose operation still runs, unless an earlier cell of the same interpreter has left it.
func (a *Agent) left() []proc.Process {
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

// describeLeft returns these processes as they are listed.
func (a *Agent) describeLeft() []*wire.Op {
	var out []*wire.Op
	left := a.left()
	var up unix.Sysinfo_t
	if unix.Sysinfo(&up) != nil {
		up.Uptime = 0
	}
	for _, p := range left[:min(len(left), maxLeft)] {
		const tick = time.Second / 100 // of every Linux that user space sees
		age := max(0, time.Duration(up.Uptime)*time.Second-time.Duration(p.Start)*tick)
		out = append(out, &wire.Op{
			Id: leftPrefix + strconv.Itoa(p.PID), Kind: "process", Command: proc.Command(p), Running: true, Pid: int32(p.PID),
			StartedUnixNs: time.Now().Add(-age).UnixNano(),
		})
	}
	return out
}

// signalLeft signals a process that is not an operation's any more. known is false for an id of another kind.
func (a *Agent) signalLeft(s *wire.Signal) (bad *wire.Error, known bool) {
	number, found := strings.CutPrefix(s.Id, leftPrefix)
	pid, err := strconv.Atoi(number)
	if !found || err != nil {
		return nil, false
	}
	left := a.left()
	var targets []proc.Process
	for _, p := range left {
		if p.PID == pid {
			targets = []proc.Process{p}
		}
	}
	if targets == nil {
		return wire.Errorf("not_found", "no process %d that an ended operation has left", pid), true
	}
	if s.Tree || s.Cancel {
		targets = withChildren(targets[0], left)
	}
	if !s.Cancel {
		if s.Signal <= 0 || s.Signal > 64 {
			return wire.Errorf("invalid_request", "invalid signal %d", s.Signal), true
		}
		return killed(targets, syscall.Signal(s.Signal)), true
	}
	bad = killed(targets, syscall.SIGTERM)
	_ = killed(targets, syscall.SIGCONT) // a stopped process would not receive it; that it has ended is no error
	time.AfterFunc(leftGrace, func() {
		// One that ignores SIGTERM may have started more since; stopped, it starts no others while they are looked for.
		_ = killed(targets, syscall.SIGSTOP) // those that have ended need nothing
		if now, ok := proc.Get(pid); ok && now.Start == targets[0].Start {
			targets = append(targets, withChildren(now, a.left())...)
		}
		_ = killed(targets, syscall.SIGKILL) // ps shows what is left
	})
	return bad, true
}

// withChildren returns a process and those of others that live below it.
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

// killed sends a signal to processes that are still those that were found. It fails if the first cannot be signalled.
func killed(targets []proc.Process, s syscall.Signal) (bad *wire.Error) {
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
