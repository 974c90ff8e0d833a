//go:build linux

package interpreter

import (
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// endWait is how long an interpreter that has closed its end of the pipe may take to exit, so that its own exit
	// status is reported. On a busy machine the shutdown of Python takes more than half a second.
	endWait = 3 * time.Second
	// deathWait is how long the guest waits for the exit status of a killed interpreter.
	deathWait = 5 * time.Second
	// Limits for the parts of an exception in a verdict, in bytes.
	maxErrorName, maxErrorValue, maxTraceback = 200, 64 << 10, 256 << 10
)

// cellEnd is the last frame of a cell.
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
	Spawned  int   `json:"spawned"`
}

// discardDead discards an interpreter that died while no cell ran. The next verdict of the context reports the loss.
//
// Preconditions: the caller holds the turn.
func (r *cellRun) discardDead(i *interpreter) {
	i.mu.Lock()
	closing := i.closing // the caller of Close knows about the loss
	i.mu.Unlock()
	if i.cells > 0 && !closing {
		r.contexts.mu.Lock()
		r.contexts.lost[i.context] = true
		r.contexts.mu.Unlock()
	}
	i.discard()
}

// verdict returns the verdict of the cell. It returns nil if the interpreter has ended and the cell did not cause that.
func (r *cellRun) verdict(end *cellEnd, err error) *wire.Verdict {
	o, i := r.op, r.interp
	v := &wire.Verdict{Displays: r.displays, HasResult: r.hasResult, DisplaysDropped: r.dropped, ExitCode: -1}
	if err != nil {
		return r.deathVerdict(v)
	}
	i.cells++
	i.mu.Lock()
	v.StateKept = !i.closing
	i.mu.Unlock()
	v.CpuNs, v.PeakMemory = end.CPUNanos, end.MaxRSS
	why := o.Ending()
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
	if e := end.Error; e != nil {
		v.CellError = &wire.CellError{
			Name:      wire.Clip(e.Name, maxErrorName),
			Value:     wire.Clip(e.Value, maxErrorValue),
			Traceback: wire.Clip(e.Traceback, maxTraceback),
		}
		if e.Line != nil {
			v.CellError.Line = int32(*e.Line)
		}
	}
	kill := v.Ending == why && why != wire.Ending_ENDING_UNKNOWN || r.Options.KillSurvivors
	// After an interrupt, the list is always requested: once the nanny answers, it has sent the signal, and the signal
	// cannot hit the next cell.
	if kill || end.Spawned > 0 || len(i.known) > 0 || why != wire.Ending_ENDING_UNKNOWN {
		r.survivors(v, kill)
	}
	i.setOutput(nil)
	return v
}

// deathVerdict completes the verdict of a cell whose interpreter died. It returns nil if the interpreter exited, by a
// thread of an earlier cell, before it reached the first line of this cell: its exit status must not be reported as
// that of the cell. A signal is reported, because even code that cannot be parsed may have caused it.
func (r *cellRun) deathVerdict(v *wire.Verdict) *wire.Verdict {
	i := r.interp
	// The process may have closed its end and continue to run, or have executed another program. Then it is killed.
	exited := r.awaitDeath(endWait)
	if exited == nil {
		_ = i.nanny.Signal(i.tree, syscall.SIGKILL, false)
		exited = r.awaitDeath(deathWait)
	}
	i.emitMu.Lock()
	i.drain()
	i.op = nil
	i.emitMu.Unlock()
	v.Ending, v.Signal = wire.Ending_ENDING_SIGNAL, int32(syscall.SIGKILL)
	var fate operation.Fate
	if exited == nil {
		fate = r.op.Fate(nil)
	} else {
		ws := syscall.WaitStatus(exited.Status)
		fate = r.op.Fate(&ws)
		if ws.Exited() && i.page.Begun() != i.seq && fate.Why == wire.Ending_ENDING_UNKNOWN && !fate.Memory {
			return nil
		}
		v.CpuNs, v.PeakMemory = exited.Usage.CPUNanos, exited.Usage.MaxRSS
		if ws.Signaled() {
			v.Signal = int32(ws.Signal())
		} else {
			v.Ending, v.ExitCode, v.Signal = wire.Ending_ENDING_EXIT, int32(ws.ExitStatus()), 0
		}
		addSurvivors(v, exited.Survivors, true)
		v.SurvivorsTotal = int64(exited.Total)
	}
	switch {
	case fate.Why != wire.Ending_ENDING_UNKNOWN:
		v.Ending, v.ExitCode = fate.Why, -1
	case fate.Memory:
		v.Ending, v.ExitCode = wire.Ending_ENDING_MEMORY, -1
	case fate.Requested != 0 && fate.Requested == v.Signal:
		v.Ending = wire.Ending_ENDING_KILLED
	}
	i.discard()
	return v
}

// awaitDeath waits for the exit event of the interpreter. It returns nil if there is none within limit.
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
