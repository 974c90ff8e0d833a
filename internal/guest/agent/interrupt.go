//go:build linux

package agent

import (
	"syscall"
	"time"
)

// tell sends a signal to the interpreter, unless the cell has ended.
func (r *cellRun) tell(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		_ = r.interp.nanny.Signal(r.interp.tree, s, false)
	}
}

// interrupt asks the cell to stop, and ends the interpreter if it does not.
func (r *cellRun) interrupt() {
	r.tell(syscall.SIGINT)
	grace := time.Duration(r.req.Options.GraceNs)
	if grace <= 0 {
		grace = interruptWait
	}
	go func() {
		again := time.NewTicker(grace / 4)
		defer again.Stop()
		last := time.NewTimer(grace)
		defer last.Stop()
		for {
			select {
			case <-r.op.done:
				return
			case <-again.C:
				// Code may swallow one interrupt; a stopped interpreter hears none.
				r.tell(syscall.SIGCONT)
				r.tell(syscall.SIGINT)
			case <-last.C:
				r.mu.Lock()
				defer r.mu.Unlock()
				if !r.over {
					r.killed = true
					_ = r.interp.nanny.SignalTree(r.interp.tree, syscall.SIGKILL)
				}
				return
			}
		}
	}()
}

func (r *cellRun) signal(s int32, tree bool) error {
	r.op.mu.Lock()
	r.op.asked = s
	r.op.mu.Unlock()
	r.mu.Lock()
	i := r.interp
	r.mu.Unlock()
	if tree {
		return i.nanny.SignalTree(i.tree, syscall.Signal(s))
	}
	return i.nanny.Signal(i.tree, syscall.Signal(s), false)
}
