//go:build linux

package interpreter

import (
	"maps"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// killWait is how long killed survivors may take to end.
	killWait = 10 * time.Second
	// maxSurvivors is the number of survivors that a verdict lists.
	maxSurvivors = 64
)

// survivors adds the survivors of this cell to the verdict, and kills them if kill is set.
func (r *cellRun) survivors(v *wire.Verdict, kill bool) {
	i := r.interp
	all, ok := i.list()
	fresh := i.fresh(all)
	addSurvivors(v, fresh, kill)
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

// addSurvivors adds survivors to a verdict.
func addSurvivors(v *wire.Verdict, survivors []nanny.Process, killed bool) {
	for _, p := range survivors[:min(len(survivors), maxSurvivors)] {
		v.Survivors = append(v.Survivors, &wire.Process{Pid: int32(p.PID), Command: p.Command, Killed: killed})
	}
}

// list requests from the nanny the processes below it, without the interpreter.
func (i *interpreter) list() ([]nanny.Process, bool) {
	if i.nanny.RequestList() != nil {
		return nil, false
	}
	for e := range i.events {
		if e.Listed {
			return e.Survivors, true
		}
		if e.Exited || e.Empty {
			return nil, false
		}
	}
	return nil, false
}

// fresh returns the processes that were neither left by an earlier cell nor started by a survivor of one.
func (i *interpreter) fresh(all []nanny.Process) []nanny.Process {
	byPID := map[int]nanny.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	old := func(p nanny.Process) bool { return i.known[nanny.Process{PID: p.PID, Start: p.Start}] }
	var out []nanny.Process
	for _, p := range all {
		inherited := false
		for q, ok := p, true; ok && !inherited; q, ok = byPID[q.PPID] {
			inherited = old(q)
		}
		if !inherited {
			out = append(out, p)
		}
	}
	return out
}

// remember makes all the known survivors of earlier cells.
func (i *interpreter) remember(all []nanny.Process) {
	clear(i.known)
	for _, p := range all {
		i.known[nanny.Process{PID: p.PID, Start: p.Start}] = true
	}
	i.left.Store(new(maps.Clone(i.known)))
}

// Processes returns the pids of the interpreters, and the survivors of their ended cells, as of the end of the last
// cell.
func (c *Contexts) Processes() (interpreters map[int]bool, left map[nanny.Process]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	interpreters, left = map[int]bool{}, map[nanny.Process]bool{}
	for _, i := range c.live {
		interpreters[i.pid] = true
		if known := i.left.Load(); known != nil {
			maps.Copy(left, *known)
		}
	}
	return interpreters, left
}
