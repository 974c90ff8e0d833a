//go:build linux

package agent

import (
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// cellEnd is the interpreter's last word on a cell.
type cellEnd struct {
	ID       uint32 `json:"id"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exit_code"`
	Error    *struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
		Line      *int   `json:"line"`
	} `json:"error"`
	CPUNanos int64 `json:"cpu_ns"`
	MaxRSS   int64 `json:"maxrss"`
	Result   bool  `json:"result"`
	Spawned  int   `json:"spawned"`
}

// bury does away with an interpreter that died without a cell to tell it.
//
// Preconditions: the caller holds the turn.
func (r *cellRun) bury(i *interpreter) {
	i.mu.Lock()
	told := i.closing // whoever closes a context knows
	i.mu.Unlock()
	if i.cells > 0 && !told {
		r.agent.mu.Lock()
		r.agent.untold[i.context] = true
		r.agent.mu.Unlock()
	}
	i.discard()
}

// tellLoss reports whether the context lost its state between cells. The answer is given once.
func (a *Agent) tellLoss(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	lost := a.untold[name]
	delete(a.untold, name)
	return lost
}

// verdict gives nil when the interpreter has ended and the cell had no part in that.
func (r *cellRun) verdict(end *cellEnd, err error) *wire.Verdict {
	o, i := r.op, r.interp
	v := &wire.Verdict{Displays: r.displays, HasResult: r.hasResult, DisplaysDropped: r.dropped, ExitCode: -1}
	if err != nil {
		return r.obituary(v)
	}
	i.cells++
	i.mu.Lock()
	v.StateKept = !i.closing
	i.mu.Unlock()
	v.CpuNs, v.PeakMemory = end.CPUNanos, end.MaxRSS
	why := o.ending()
	switch {
	case why != wire.Ending_ENDING_UNKNOWN && end.Status != "ok":
		v.Ending = why
		if why == wire.Ending_ENDING_KILLED {
			v.Signal = int32(syscall.SIGKILL)
		}
	default:
		v.Ending = wire.Ending_ENDING_EXIT
		v.ExitCode = 0
		if end.ExitCode != nil {
			v.ExitCode = int32(*end.ExitCode)
		} else if end.Status != "ok" {
			v.ExitCode = 1
		}
	}
	if end.Error != nil {
		v.CellError = &wire.CellError{Name: clip(end.Error.Name, 200), Value: clip(end.Error.Value, 64<<10), Traceback: clip(end.Error.Traceback, 256<<10)}
		if end.Error.Line != nil {
			v.CellError.Line = int32(*end.Error.Line)
		}
	}
	kill := v.Ending == why && why != wire.Ending_ENDING_UNKNOWN || r.req.Options.KillSurvivors
	// After an interrupt the list is asked for in any case: once it is answered the signal has
	// been sent, and cannot hit the next cell.
	if kill || end.Spawned > 0 || len(i.known) > 0 || why != wire.Ending_ENDING_UNKNOWN {
		r.survivors(v, kill)
	}
	i.emitMu.Lock()
	i.op = nil
	i.emitMu.Unlock()
	return v
}

// survivors lists what this cell left alive, and ends it if asked.
func (r *cellRun) survivors(v *wire.Verdict, kill bool) {
	i := r.interp
	all, ok := i.list()
	fresh := i.fresh(all)
	for k, p := range fresh {
		if k < 64 {
			v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: kill})
		}
	}
	v.SurvivorsTotal = int64(len(fresh))
	deadline := time.Now().Add(killWait)
	for kill && ok && len(fresh) > 0 && time.Now().Before(deadline) {
		_ = i.nanny.Kill(fresh)
		time.Sleep(time.Millisecond)
		all, ok = i.list()
		fresh = i.fresh(all)
	}
	if ok {
		i.remember(all)
	}
}

// obituary says how the interpreter died. It gives nil when it left, by a thread of a cell before, and had not reached the first line of
// this one: an exit status would be taken for the cell's own. A signal is told, for code that cannot even be read may have brought it about.
func (r *cellRun) obituary(v *wire.Verdict) *wire.Verdict {
	o, i := r.op, r.interp
	// It may have closed its end and live on, or have become another program; it is of no use any more. One that is
	// about to end has a moment to say how.
	exited := r.awaitDeath(follow)
	if exited == nil {
		_ = i.nanny.Signal(i.tree, syscall.SIGKILL, false)
		exited = r.awaitDeath(deathWait)
	}
	i.emitMu.Lock()
	i.drain()
	i.op = nil
	i.emitMu.Unlock()
	if exited != nil {
		o.judge(syscall.WaitStatus(exited.Status))
	}
	o.mu.Lock()
	why, asked, oom := o.why, o.asked, o.oom
	o.mu.Unlock()
	v.Ending, v.Signal = wire.Ending_ENDING_SIGNAL, int32(syscall.SIGKILL)
	if exited != nil {
		v.Signal = 0
		ws := syscall.WaitStatus(exited.Status)
		if ws.Exited() && i.page.Begun() != i.seq && why == wire.Ending_ENDING_UNKNOWN && !oom {
			return nil
		}
		v.CpuNs, v.PeakMemory = exited.Usage.CPUNanos, exited.Usage.MaxRSS
		if ws.Signaled() {
			v.Signal = int32(ws.Signal())
		} else {
			v.Ending, v.ExitCode = wire.Ending_ENDING_EXIT, int32(ws.ExitStatus())
		}
		for k, p := range exited.Survivors {
			if k < 64 {
				v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: true})
			}
		}
		v.SurvivorsTotal = int64(exited.Total)
	}
	switch {
	case why != wire.Ending_ENDING_UNKNOWN:
		v.Ending, v.ExitCode = why, -1
	case oom:
		v.Ending, v.ExitCode = wire.Ending_ENDING_MEMORY, -1
	case asked != 0 && asked == v.Signal:
		v.Ending = wire.Ending_ENDING_KILLED
	}
	i.discard()
	return v
}

func (r *cellRun) awaitDeath(limit time.Duration) *nanny.Event {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case e, ok := <-r.interp.events:
			if !ok {
				return nil
			}
			if e.Exited {
				return e
			}
		case <-late.C:
			return nil
		}
	}
}
