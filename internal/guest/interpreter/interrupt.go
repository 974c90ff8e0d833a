//go:build linux

package interpreter

import (
	"syscall"
	"time"
)

const (
	// interruptWait is the time between the first interrupt and SIGKILL if the caller has set no grace.
	interruptWait = 2 * time.Second
	// interrupts is how often a cell is interrupted within its grace.
	interrupts = 4
)

// send sends a signal to the interpreter, unless the cell has ended.
func (r *cellRun) send(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		_ = r.interp.nanny.Signal(r.interp.tree, s, false)
	}
}

// interrupt interrupts the cell, and kills the interpreter if the cell does not end.
func (r *cellRun) interrupt() {
	r.send(syscall.SIGINT)
	grace := time.Duration(r.Options.GraceNs)
	if grace <= 0 {
		grace = interruptWait
	}
	go func() {
		again := time.NewTicker(grace / interrupts)
		defer again.Stop()
		last := time.NewTimer(grace)
		defer last.Stop()
		for {
			select {
			case <-r.op.Done():
				return
			case <-again.C:
				// Code may swallow an interrupt, and a stopped interpreter receives none.
				r.send(syscall.SIGCONT)
				r.send(syscall.SIGINT)
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

// signal sends a signal that the caller has requested.
func (r *cellRun) signal(s int32, tree bool) error {
	r.op.RecordSignal(s)
	r.mu.Lock()
	i := r.interp
	r.mu.Unlock()
	if tree {
		return i.nanny.SignalTree(i.tree, syscall.Signal(s))
	}
	return i.nanny.Signal(i.tree, syscall.Signal(s), false)
}
