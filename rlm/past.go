package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
)

// past is what the log of a run says about it.
type past struct {
	id, dir  string
	saved    saved
	started  v1.RunStarted
	begun    time.Time
	worked   time.Duration // without the time between two programs
	contexts v1.ContextLoaded
	turns    []v1.TurnEnded     // of the root, whole ones
	lastTurn int                // the last that had begun
	cells    map[int][]pastCell // of the root, by turn
	summary  map[int]string
	box      v1.SandboxReady
	snapshot string
	snapTurn int
	dirty    bool // code of an unfinished turn had begun
	answer   *v1.RunAnswer
	ended    *Result
	spent    []Spent
	model    string         // the root's, by the name it was asked for last
	models   map[int]string // who answered at which depth
	resumed  bool
	tape     *tape
}

// readPast reads a run's directory. Events behind the end of turn upto are left out; negative: none are.
func (e *Engine) readPast(id string, upto int, only bool) (*past, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	p := &past{id: id, dir: dir, summary: map[int]string{}, cells: map[int][]pastCell{}, models: map[int]string{}, tape: newTape(only)}
	data, err := os.ReadFile(filepath.Join(dir, runFile))
	if err == nil {
		err = json.Unmarshal(data, &p.saved)
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeRunNotFound, Op: "read run " + id, Message: "the run's directory is not whole", Err: err}
	}
	var last time.Time
	for ev, err := range trajectory.Read(dir) {
		if err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "read run " + id, Err: err}
		}
		if p.begun.IsZero() {
			p.begun, last = ev.Time, ev.Time
		}
		if ev.Kind != v1.KindResumed {
			p.worked += ev.Time.Sub(last)
		}
		last = ev.Time
		if err := p.take(&ev); err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "read run " + id, Err: err}
		}
		if upto >= 0 && ev.Node == "0" && ev.Kind == v1.KindTurnEnded && ev.Turn == upto {
			break
		}
	}
	if p.started.Forked != "" && !p.resumed {
		p.disown()
	}
	return p, nil
}

// disown leaves time and money of the shared turns to the run that a fork was made from.
func (p *past) disown() { p.spent, p.worked = nil, 0 }

func (p *past) take(e *v1.RunEvent) error {
	if err := p.tape.add(e); err != nil {
		return err
	}
	root := e.Node == "0"
	switch e.Kind {
	case v1.KindCallEnded:
		var c v1.CallEnded
		if err := e.Decode(&c); err != nil {
			return err
		}
		depth := e.Depth
		if c.Call == v1.CallSub {
			depth++
		}
		p.spent = append(p.spent, Spent{Model: c.Model, Depth: depth, Usage: c.Usage})
		p.models[depth] = c.Model
	case v1.KindRunStarted:
		err := e.Decode(&p.started)
		p.model = p.started.Model
		return err
	default: // the other events do not matter here
	}
	if !root {
		return nil
	}
	switch e.Kind {
	case v1.KindContext:
		return e.Decode(&p.contexts)
	case v1.KindSandbox:
		return e.Decode(&p.box)
	case v1.KindTurnStarted:
		p.lastTurn, p.dirty = e.Turn, false
		delete(p.cells, e.Turn) // those of a program that died in it
	case v1.KindCellStarted, v1.KindCellEnded:
		return p.takeCell(e)
	case v1.KindTurnEnded:
		var t v1.TurnEnded
		if err := e.Decode(&t); err != nil {
			return err
		}
		if e.Turn != len(p.turns)+1 {
			return fmt.Errorf("turn %d follows turn %d", e.Turn, len(p.turns))
		}
		p.turns, p.dirty = append(p.turns, t), false
	case v1.KindCompacted:
		var c v1.Compacted
		if err := e.Decode(&c); err != nil {
			return err
		}
		p.summary[e.Turn] = c.Summary
	case v1.KindSnapshot:
		var s v1.SnapshotTaken
		if err := e.Decode(&s); err != nil {
			return err
		}
		p.snapshot, p.snapTurn = s.ID, e.Turn
	case v1.KindAnswer:
		p.answer = &v1.RunAnswer{}
		return e.Decode(p.answer)
	case v1.KindResumed:
		p.ended = nil
		var again v1.Resumed
		if err := e.Decode(&again); err != nil {
			return err
		}
		p.saved.Limits = again.Limits.Over(p.saved.Limits)
		if again.Model != "" {
			p.saved.Model, p.model = again.Model, again.Model
		}
		if again.Tools != nil {
			p.saved.Tools = again.Tools
		}
		if p.started.Forked != "" && !p.resumed {
			p.disown() // here the fork itself begins
		}
		p.resumed = true
	case v1.KindRunEnded:
		p.ended = &Result{}
		return e.Decode(p.ended)
	default: // the other events do not matter here
	}
	return nil
}

func (e *Engine) runDir(id string) (string, error) {
	notFound := &v1.Error{Code: v1.CodeRunNotFound, Op: "find run", Message: fmt.Sprintf("there is no run %q", id), Remedy: "list the runs"}
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return "", notFound
	}
	dir := filepath.Join(e.dir, id)
	if _, err := os.Stat(filepath.Join(dir, runFile)); err != nil {
		notFound.Err = err
		return "", notFound
	}
	return dir, nil
}

// Events gives the events of a kept run up to now.
func (e *Engine) Events(id string) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		dir, err := e.runDir(id)
		if err != nil {
			yield(v1.RunEvent{}, err)
			return
		}
		trajectory.Read(dir)(yield)
	}
}

// Delete removes a run with its events, its copy of the context, and what a killed program has left of its machine. One that is being worked
// on is refused.
func (e *Engine) Delete(ctx context.Context, id string) error {
	dir, err := e.runDir(id)
	if err != nil {
		return err
	}
	unlock, err := lockRun(dir)
	if err != nil {
		return err
	}
	defer unlock()
	var temp error
	if p, err := e.readPast(id, -1, false); err == nil && p.ended == nil {
		if m, err := e.o.Sandboxes.Attach(ctx, p.box.ID); p.box.ID != "" && err == nil {
			temp = m.Close()
		}
		if p.snapshot != "" {
			temp = errors.Join(temp, e.o.Sandboxes.DeleteSnapshot(ctx, p.snapshot))
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, contextDir)); err == nil {
		temp = errors.Join(temp, os.RemoveAll(filepath.Dir(to))) // see relocate
	}
	if err := errors.Join(temp, os.RemoveAll(dir)); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "delete run", Err: err}
	}
	return nil
}
