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
	// endWait is how long an interpreter that has closed its end of the pipe may take to exit by itself, so that its own exit status is reported.
	// On a busy machine the shutdown of Python takes more than half a second.
	endWait = 3 * time.Second
	// deathWait is how long the exit status of a killed interpreter is waited for.
	deathWait = 5 * time.Second
	// What a verdict holds of an exception, in bytes.
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

// bury discards an interpreter that died while no cell ran, whose next verdict has to tell it.
//
// Preconditions: the caller holds the turn.
func (r *cellRun) bury(i *interpreter) {
	i.mu.Lock()
	closing := i.closing // whoever closes a context knows
	i.mu.Unlock()
	if i.cells > 0 && !closing {
		r.contexts.mu.Lock()
		r.contexts.lost[i.context] = true
		r.contexts.mu.Unlock()
	}
	i.discard()
}

// verdict returns nil when the interpreter has ended and the cell had no part in that.
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
			Name: wire.Clip(e.Name, maxErrorName), Value: wire.Clip(e.Value, maxErrorValue), Traceback: wire.Clip(e.Traceback, maxTraceback),
		}
		if e.Line != nil {
			v.CellError.Line = int32(*e.Line)
		}
	}
	kill := v.Ending == why && why != wire.Ending_ENDING_UNKNOWN || r.Options.KillSurvivors
	// After an interrupt the list is asked for in any case: once it is answered the signal has been sent, and cannot hit the next cell.
	if kill || end.Spawned > 0 || len(i.known) > 0 || why != wire.Ending_ENDING_UNKNOWN {
		r.survivors(v, kill)
	}
	i.setOutput(nil)
	return v
}

// obituary fills in how the interpreter died. It returns nil when the interpreter exited, by a thread of an earlier cell, and had not
// reached the first line of this one: the exit status would be taken for the cell's own. A signal is reported, because code that cannot
// even be parsed may have caused it.
func (r *cellRun) obituary(v *wire.Verdict) *wire.Verdict {
	i := r.interp
	// It may have closed its end and live on, or have become another program: then it is killed.
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
		name(v, exited.Survivors, true)
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
