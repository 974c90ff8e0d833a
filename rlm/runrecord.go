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

// runRecord is the state of a stored run, read from its directory.
type runRecord struct {
	id, dir      string
	saved        saved
	startEvent   v1.RunStarted
	started      time.Time
	worked       time.Duration // without the time between two programs
	contexts     v1.ContextLoaded
	turns        []v1.TurnEnded         // of the root node; complete turns only
	lastTurn     int                    // the last turn that started
	cells        map[int][]recordedCell // of the root node, by turn
	summary      map[int]string
	sandbox      v1.SandboxReady
	snapshot     string
	snapshotTurn int
	unfinished   bool // code of an incomplete turn has started
	answer       *v1.RunAnswer
	ended        *Result
	spent        []sampleSpent
	model        string         // of the root node, under the name that was last requested
	models       map[int]string // the model that last answered, by depth
	resumed      bool
	recording    *recording
}

// readRun reads a stored run, up to and including turn upto; negative: all of it. For noModels, see recording.
func (e *Engine) readRun(id string, upto int, noModels bool) (*runRecord, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	p := &runRecord{
		id:        id,
		dir:       dir,
		summary:   map[int]string{},
		cells:     map[int][]recordedCell{},
		models:    map[int]string{},
		recording: newRecording(noModels),
	}
	data, err := os.ReadFile(filepath.Join(dir, runFile))
	if err == nil {
		err = json.Unmarshal(data, &p.saved)
	}
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeRunNotFound,
			Op:      "read run " + id,
			Message: "the directory of the run is incomplete",
			Err:     err,
		}
	}
	var last time.Time
	for ev, err := range trajectory.Read(dir) {
		if err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "read run " + id, Err: err}
		}
		if p.started.IsZero() {
			p.started, last = ev.Time, ev.Time
		}
		if ev.Kind != v1.KindResumed {
			p.worked += ev.Time.Sub(last)
		}
		last = ev.Time
		if err := p.apply(&ev); err != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "read run " + id, Err: err}
		}
		if upto >= 0 && ev.Node == "0" && ev.Kind == v1.KindTurnEnded && ev.Turn == upto {
			break
		}
	}
	if p.startEvent.Forked != "" && !p.resumed {
		p.dropSharedUsage()
	}
	return p, nil
}

// dropSharedUsage removes the time and usage of the turns that a fork shares with its original. They count for the
// original only.
func (p *runRecord) dropSharedUsage() { p.spent, p.worked = nil, 0 }

// apply updates the record with an event.
func (p *runRecord) apply(e *v1.RunEvent) error {
	if err := p.recording.add(e); err != nil {
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
		for model, u := range c.UsageByModel() {
			p.spent = append(p.spent, sampleSpent{Spent{Model: model, Depth: depth, Usage: u}, sampleOf(e.Node)})
		}
		p.models[depth] = c.Model
	case v1.KindRunStarted:
		err := e.Decode(&p.startEvent)
		p.model = p.startEvent.Model
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
		return e.Decode(&p.sandbox)
	case v1.KindTurnStarted:
		p.lastTurn, p.unfinished = e.Turn, false
		delete(p.cells, e.Turn) // from a program that died in this turn
	case v1.KindCellStarted, v1.KindCellEnded:
		return p.applyCell(e)
	case v1.KindTurnEnded:
		var t v1.TurnEnded
		if err := e.Decode(&t); err != nil {
			return err
		}
		if e.Turn != len(p.turns)+1 {
			return fmt.Errorf("turn %d follows turn %d", e.Turn, len(p.turns))
		}
		p.turns, p.unfinished = append(p.turns, t), false
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
		p.snapshot, p.snapshotTurn = s.ID, e.Turn
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
		if p.startEvent.Forked != "" && !p.resumed {
			p.dropSharedUsage() // the events before this one are shared with the original
		}
		p.resumed = true
	case v1.KindRunEnded:
		p.ended = &Result{}
		return e.Decode(p.ended)
	default: // the other events do not matter here
	}
	return nil
}

// runDir returns the directory of a stored run.
func (e *Engine) runDir(id string) (string, error) {
	notFound := &v1.Error{
		Code:    v1.CodeRunNotFound,
		Op:      "find run",
		Message: fmt.Sprintf("run %q not found", id),
		Remedy:  "list the runs",
	}
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

// Events yields the events of a stored run so far.
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

// Delete removes a stored run: its events, its copy of the context, and its sandbox and snapshot if its program was
// killed. It returns an error with code busy if a program works on the run.
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
	if p, err := e.readRun(id, -1, false); err == nil && p.ended == nil {
		if m, err := e.o.Sandboxes.Attach(ctx, p.sandbox.ID); p.sandbox.ID != "" && err == nil {
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
