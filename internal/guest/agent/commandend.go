//go:build linux

package agent

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// finish builds the verdict from the end of the main process, and kills or keeps the survivors. e is nil if the nanny
// has died.
func (c *running) finish(v *wire.Verdict, e *nanny.Event) {
	o := c.op
	if e == nil {
		c.drain(operation.DrainWait, false)
		c.closeInput()
		o.Finish(v)
		return
	}
	ws := syscall.WaitStatus(e.Status)
	fate := o.Fate(&ws)
	why := fate.Why
	switch {
	case why != wire.Ending_ENDING_UNKNOWN:
		v.Ending = why
	case fate.Memory && ws.Signaled():
		v.Ending = wire.Ending_ENDING_MEMORY
	case ws.Signaled() && fate.Requested == int32(ws.Signal()):
		v.Ending = wire.Ending_ENDING_KILLED
	case ws.Signaled():
		v.Ending = wire.Ending_ENDING_SIGNAL
	default:
		v.Ending = wire.Ending_ENDING_EXIT
	}
	v.ExitCode = -1
	if ws.Signaled() {
		v.Signal = int32(ws.Signal())
	} else if v.Ending == wire.Ending_ENDING_EXIT {
		v.ExitCode = int32(ws.ExitStatus())
	}
	usage := e.Usage
	gone := e.Empty
	kill := why != wire.Ending_ENDING_UNKNOWN || c.req.Options.KillSurvivors
	for _, p := range e.Survivors {
		v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: kill})
	}
	v.SurvivorsTotal = int64(e.Total)
	if !gone && kill {
		if c.req.Options.KillSurvivors && why == wire.Ending_ENDING_UNKNOWN {
			_ = c.nanny.SignalTree(c.tree, syscall.SIGKILL)
		}
		gone, usage = c.awaitEmpty(usage)
		if !gone {
			for _, p := range v.Survivors {
				p.Killed = false
			}
		}
	}
	wait := operation.DrainWait
	if c.tty != nil {
		wait = ptyDrain
	}
	c.drain(wait, gone)
	c.closeInput()
	v.CpuNs, v.PeakMemory = usage.CPUNanos, usage.MaxRSS
	n := c.nanny
	if gone {
		c.agent.nannies.Put(n)
	} else {
		// Survivors are left. The nanny returns to the pool when the last of them has ended.
		var over atomic.Bool
		o.SetSurvivors(func() bool { return !over.Load() })
		go func() {
			defer over.Store(true)
			for {
				e, err := n.Next()
				if err != nil {
					c.agent.nannies.CloseDead(n)
					return
				}
				if e.Empty {
					c.agent.nannies.Put(n)
					return
				}
			}
		}()
	}
	o.Finish(v)
}

// awaitEmpty waits until a tree that is being killed has ended. It returns false if that takes longer than killWait.
func (c *running) awaitEmpty(u nanny.Usage) (bool, nanny.Usage) {
	late := time.AfterFunc(killWait, func() { _ = c.nanny.RequestList() }) // the answer makes Next return
	defer late.Stop()
	for {
		e, err := c.nanny.Next()
		switch {
		case err != nil:
			return false, u
		case e.Empty:
			return true, e.Usage
		case e.Listed:
			return false, u
		}
	}
}

// drain waits for the rest of the output. If gone is set, every writer has ended, and drain waits for all output,
// however slow the listener is. Otherwise a process may hold the pipe open for ever, and drain returns once the pipe is
// empty after limit. A command that is being ended does not wait for a listener that does not read.
func (c *running) drain(limit time.Duration, gone bool) {
	select {
	case <-c.drained:
		return
	default:
	}
	t := time.NewTicker(limit)
	defer t.Stop()
	const most = 10 // rounds for a pipe that is written as fast as it is read
	var before int64
	for round := 1; ; {
		select {
		case <-c.drained:
			return
		case <-t.C:
		}
		dry, stuck := true, false
		var now int64
		for i, tap := range c.taps {
			d, waits := tap.dry()
			dry, stuck = dry && d, stuck || waits
			now += c.op.Output(i + 1).Size()
		}
		stuck = stuck && now == before
		before = now
		ending := c.op.Ending() != wire.Ending_ENDING_UNKNOWN
		switch {
		case stuck && ending:
			return
		case stuck || gone && c.tty == nil:
		case dry || round >= most:
			return
		default:
			round++
		}
	}
}
