package rlm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// How a resumed run gets its sandbox.
const (
	HowAttached = "attached" // the old sandbox still ran
	HowRestored = "restored" // from the last snapshot
	HowRebuilt  = "rebuilt"  // a new sandbox, in which all cells were run again
)

// ContinueOptions changes a stored run that is resumed or forked. Fields that are not set keep the values of the run.
type ContinueOptions struct {
	Model  string       // name of the model for further calls; recorded replies stay
	Limits v1.RunLimits // fields that are set replace the limits of the run
}

// Resume continues a run whose program died, or that ended without an answer. It attaches the sandbox of the run, if
// the sandbox still runs and no code was interrupted in it. Otherwise it restores the last snapshot or makes a new
// sandbox, and runs the later cells again with the recorded replies. Only calls that had no reply yet are paid again.
func (e *Engine) Resume(ctx context.Context, id string, o ContinueOptions) (*Run, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	// Lock before reading: otherwise events could be missed that another program still writes.
	unlock, err := lockRun(dir)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Run, error) {
		unlock()
		return nil, err
	}
	p, err := e.readRun(id, -1, false)
	if err != nil {
		return fail(err)
	}
	if p.ended != nil && p.ended.Reason == v1.ReasonAnswered {
		return fail(&v1.Error{
			Code:    v1.CodeRunEnded,
			Op:      "resume run",
			Message: "the run already has an answer",
			Remedy:  "fork the run at one of its turns",
		})
	}
	r, err := e.continueRun(ctx, p, o, unlock)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// continueRun starts a run in the directory of a stored one, which the caller has locked. The run unlocks the directory
// when it ends. If continueRun returns an error, the caller must unlock it.
func (e *Engine) continueRun(ctx context.Context, p *runRecord, o ContinueOptions, unlock func()) (*Run, error) {
	q := Question{
		Query:   p.saved.Query,
		Schema:  p.saved.Schema,
		Model:   or(o.Model, p.saved.Model),
		Labels:  p.saved.Labels,
		History: p.saved.History,
		Limits:  o.Limits.Over(p.saved.Limits),
		Samples: p.saved.Samples,
	}
	r, err := e.prepare(q, p.id)
	if err != nil {
		return nil, err
	}
	if r.model, err = r.modelFor(0, q.Model); err != nil {
		return nil, err
	}
	if name := r.model.Info().Name; name != p.startEvent.Model {
		r.otherModel = name
	}
	r.dir, r.recording, r.rules, r.unlock = p.dir, p.recording, p.saved.Rules, unlock
	r.tools = restoredTools(p.saved.Tools, r.tools, v1.CodeToolMissing, "resume the run with the tool")
	if r.staged, err = readStaged(filepath.Join(p.dir, contextDir)); err != nil {
		return nil, err
	}
	if err := r.openPrompts(); err != nil {
		return nil, err
	}
	if r.log, err = trajectory.Continue(p.dir); err != nil {
		_ = r.prompts.Close() // nothing was written
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "resume run", Err: err}
	}
	r.budget.begun = time.Now().Add(-p.worked)
	for _, s := range p.spent {
		r.budget.credit(s.Model, s.Depth, s.Usage)
	}
	r.begin(ctx, func(ctx context.Context) (*Result, error) { return r.resumeWork(ctx, p) })
	return r, nil
}

// resumeWork does the work of a resumed run or a fork: it restores the state of the root node and continues its loop.
func (r *Run) resumeWork(ctx context.Context, p *runRecord) (*Result, error) {
	n := r.rootNode()
	if !r.engine.o.NoCoverage {
		r.coverage = newCoverage(r.staged, maxCoverFiles, maxCoverBytes)
		defer r.coverage.close()
	}
	if r.q.Samples > 1 {
		r.emitResumed(n, p, v1.Resumed{How: HowRebuilt})
		r.dropWarm(ctx, p)
		return r.finish(ctx, n, r.rootWork(ctx, n, p))
	}
	if p.answer != nil {
		n.answer, n.turn = p.answer, p.lastTurn
		r.emitResumed(n, p, v1.Resumed{How: HowAttached, Turn: n.turn})
		r.closeOldSandbox(ctx, p)
		return r.finish(ctx, n, nil)
	}
	if p.lastTurn == 0 && p.sandbox.ID == "" {
		// The run had not started yet, or it was answered by a plain call.
		r.emitResumed(n, p, v1.Resumed{How: HowRebuilt})
		return r.finish(ctx, n, n.work(ctx))
	}
	defer n.close()
	err := n.restoreState(ctx, p)
	if err == nil {
		err = n.loop(ctx)
	}
	return r.finish(ctx, n, err)
}

// closeOldSandbox ends the sandbox that a dead program left, if it still runs. The run does not need it any more.
func (r *Run) closeOldSandbox(ctx context.Context, p *runRecord) {
	if p.sandbox.ID == "" {
		return
	}
	if m, err := r.engine.o.Sandboxes.Attach(ctx, p.sandbox.ID); err == nil {
		_ = m.Close() // the sandbox may have ended meanwhile
	}
}

// restoreState restores the sandbox and the conversation of the root node. It runs the cells again whose effects are
// not in the sandbox.
func (n *node) restoreState(ctx context.Context, p *runRecord) error {
	n.ctx = ctx
	how, from, err := n.recoverSandbox(ctx, p)
	if err != nil {
		return err
	}
	whole := len(p.turns)
	n.run.emitResumed(n, p, v1.Resumed{How: how, Turn: whole, Rerun: whole - from})
	if how != HowRebuilt {
		n.notes = p.contexts.Contexts
	}
	if err := n.startConversation(); err != nil {
		return err
	}
	n.replayedTo = whole
	for i, t := range p.turns {
		n.mu.Lock()
		n.turn, n.childPrompts = i+1, nil
		n.mu.Unlock()
		if s, ok := p.summary[n.turn]; ok && len(n.messages) > 2+2*keepTurns {
			n.shorten(s)
		}
		if i >= from {
			n.recordedCells = p.cells[n.turn]
			if _, err := n.runActions(ctx, &llm.Reply{Text: t.Reply, Finish: t.Finish}); err != nil {
				return err
			}
			if n.accepted() != nil {
				return nil
			}
		} else {
			n.skipTurn(&t)
		}
		n.addMessage(llm.Assistant, or(t.Reply, "(empty)"))
		if t.Observation != "" {
			n.run.coverage.record(t.Observation, readByModel)
			n.addMessage(llm.User, t.Observation)
		}
	}
	return nil
}

// recoverSandbox attaches, restores or makes the sandbox. It returns the number of turns whose effects are in it.
func (n *node) recoverSandbox(ctx context.Context, p *runRecord) (how string, turns int, err error) {
	boxes := n.run.engine.o.Sandboxes
	adopt := func(m Sandbox) bool {
		n.sandbox, n.contextPath = m, p.sandbox.Inside
		m.OnHostCall(n.serve(ctx))
		// Check that the bridge answers. If it does not, the sandbox cannot be used.
		err := n.runInternal(ctx, "__import__('recluse_rlm').after()")
		if err == nil && n.run.changedTools(p) != nil {
			err = n.reinstallTools(ctx)
		}
		if err != nil {
			_ = m.Close()
			n.sandbox = nil
			return false
		}
		return true
	}
	if p.sandbox.ID != "" {
		m, err := boxes.Attach(ctx, p.sandbox.ID)
		if err == nil && !p.unfinished && adopt(m) {
			n.snapshot = p.snapshot
			return HowAttached, len(p.turns), nil
		}
		if err == nil && p.unfinished {
			_ = m.Close() // code was interrupted in it, and its state is unknown
		}
	}
	if ctx.Err() != nil {
		return "", 0, context.Cause(ctx)
	}
	if p.snapshot != "" && p.snapshotTurn <= len(p.turns) {
		if m, err := boxes.Restore(ctx, p.snapshot); err == nil && adopt(m) {
			n.snapshot = p.snapshot
			n.run.emit(n, 0, v1.KindSandbox, v1.SandboxReady{ID: m.ID(), Inside: n.contextPath})
			return HowRestored, p.snapshotTurn, nil
		}
	}
	return HowRebuilt, 0, n.open(ctx)
}

// emitResumed emits the event that the run is resumed, with the limits, model and tools that have changed.
func (r *Run) emitResumed(n *node, p *runRecord, e v1.Resumed) {
	e.Limits, e.Tools = r.limits, r.changedTools(p)
	if r.q.Model != p.saved.Model {
		e.Model = r.q.Model
	}
	r.emit(n, e.Turn, v1.KindResumed, e)
}

// changedTools returns the tools of the resumed run if they differ from the stored ones; else nil.
func (r *Run) changedTools(p *runRecord) []ToolNote {
	if tools := bridgeTools(r.tools); !reflect.DeepEqual(tools, p.saved.Tools) {
		return tools
	}
	return nil
}

// reinstallTools installs the tools of the run in a sandbox that has other tools. It keeps the Python variable answer.
func (n *node) reinstallTools(ctx context.Context) error {
	code, err := n.installCode()
	if err != nil {
		return err
	}
	return n.runInternal(ctx, "__kept = dict(__import__('recluse_rlm').answer)\n"+code+
		"\ndict.update(__import__('recluse_rlm').answer, __kept)\ndel __kept")
}

// Fork starts a new run that shares its first turns, up to and including turn at, with a stored run. From there it
// continues with models.
func (e *Engine) Fork(ctx context.Context, id string, at int, o ContinueOptions) (*Run, error) {
	p, err := e.readRun(id, at, false)
	if err != nil {
		return nil, err
	}
	if p.saved.Samples > 1 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "fork run",
			Message: "a run with samples cannot be forked, because its candidates have turns of their own",
			Remedy:  "start a new run",
		}
	}
	p.saved.Labels, p.startEvent.Labels = labelsOfCopy(p.saved.Labels), labelsOfCopy(p.startEvent.Labels)
	if at < 0 || at > len(p.turns) {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "fork run",
			Message: fmt.Sprintf("invalid turn %d: the run has %d complete turns", at, len(p.turns)),
		}
	}
	p.startEvent.Model = p.model
	if o.Model != "" {
		m, err := chooseModel(e.o.Models, 0, o.Model)
		if err != nil {
			return nil, err
		}
		p.saved.Model, p.startEvent.Model = o.Model, m.Info().Name
	}
	fork := newRunID()
	dir := filepath.Join(e.dir, fork)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "fork run", Err: err}
	}
	// Lock before the directory is complete, because other programs can find it from then on.
	unlock, err := lockRun(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	fail := func(err error) (*Run, error) {
		err = errors.Join(err, os.RemoveAll(dir))
		unlock()
		return nil, err
	}
	if err := copyRun(p, dir, fork, at); err != nil {
		return fail(&v1.Error{Code: v1.CodeInternal, Op: "fork run", Err: err})
	}
	f, err := e.readRun(fork, -1, false)
	if err != nil {
		return fail(err)
	}
	r, err := e.continueRun(ctx, f, o, unlock)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// LabelAsked is a label with which older servers marked runs that they resume. Copies of a run must not have it.
const LabelAsked = labelPrefix + "asked"

// labelsOfCopy returns the labels for a fork or replay of a run with the given labels.
func labelsOfCopy(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, LabelAsked)
	return labels
}

// copyRun fills the directory of a fork with the context and with the events of the shared turns.
func copyRun(p *runRecord, dir, id string, at int) error {
	from, err := filepath.EvalSymlinks(filepath.Join(p.dir, contextDir))
	if err != nil {
		return err
	}
	if err := linkTree(from, filepath.Join(dir, contextDir)); err != nil {
		return err
	}
	data, err := json.MarshalIndent(p.saved, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, runFile), data, 0o600); err != nil {
		return err
	}
	var out bytes.Buffer
	var seq int64
	var prompts []string
	for e, err := range trajectory.Read(p.dir) {
		if err != nil {
			return err
		}
		// At turn 0, only the events before the first turn or the plain call are shared.
		if at == 0 && (e.Kind == v1.KindTurnStarted || e.Kind == v1.KindCallStarted) {
			break
		}
		switch e.Kind {
		case v1.KindRunStarted:
			p.startEvent.Forked, p.startEvent.Run = p.id, id
			if e.Data, err = json.Marshal(p.startEvent); err != nil {
				return err
			}
		case v1.KindSandbox, v1.KindSnapshot, v1.KindRunEnded, v1.KindResumed:
			continue // the sandbox and the snapshots belong to the original run
		case v1.KindAnswer:
			if e.Node == "0" {
				continue // the answer of the original run
			}
		default: // copied unchanged
		}
		seq++
		e.Seq = seq
		if id, err := promptOf(&e); err != nil {
			return err
		} else if id != "" {
			prompts = append(prompts, id)
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		out.Write(append(line, '\n'))
		if e.Node == "0" && e.Kind == v1.KindTurnEnded && e.Turn == at {
			break
		}
	}
	if err := trajectory.CopyPrompts(p.dir, dir, prompts); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, trajectory.FileName), out.Bytes(), 0o600)
}

// Replay runs a stored run again, with real sandboxes and the recorded replies. It calls no model, and no model needs
// to be configured. The replay is a new run. Its events are the same except for times and IDs.
func (e *Engine) Replay(ctx context.Context, id string) (*Run, error) {
	p, err := e.readRun(id, -1, true)
	if err != nil {
		return nil, err
	}
	q := Question{
		Query:   p.saved.Query,
		Schema:  p.saved.Schema,
		Model:   p.saved.Model,
		Labels:  labelsOfCopy(p.saved.Labels),
		History: p.saved.History,
		Limits:  p.saved.Limits,
		Samples: p.saved.Samples,
	}
	r, err := e.prepare(q, newRunID())
	if err != nil {
		return nil, err
	}
	p.recording.emitAgain = true
	r.recording, r.rules = p.recording, p.saved.Rules
	r.models = func(depth int, name string) (llm.Model, error) { return absentModel{or(name, p.models[depth])}, nil }
	r.model = absentModel{p.startEvent.Model}
	if p.ended != nil {
		r.otherModel = p.ended.Model
	}
	if p.saved.Tools != nil {
		r.tools = restoredTools(p.saved.Tools, nil, v1.CodeNotRecorded, "") // not the tools of the engine
	}
	r.dir = filepath.Join(e.dir, r.id)
	fail := func(err error) (*Run, error) {
		return nil, errors.Join(&v1.Error{Code: v1.CodeInternal, Op: "replay run", Err: err}, os.RemoveAll(r.dir))
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return fail(err)
	}
	from, err := filepath.EvalSymlinks(filepath.Join(p.dir, contextDir))
	if err != nil {
		return fail(err)
	}
	if err := linkTree(from, filepath.Join(r.dir, contextDir)); err != nil {
		return fail(err)
	}
	if r.staged, err = readStaged(filepath.Join(r.dir, contextDir)); err != nil {
		return fail(err)
	}
	if err := r.writeFile(); err != nil {
		return fail(err)
	}
	if r.unlock, err = lockRun(r.dir); err != nil {
		return fail(err)
	}
	if err := r.openPrompts(); err != nil {
		r.unlock()
		return fail(err)
	}
	if r.log, err = trajectory.Create(r.dir); err != nil {
		_ = r.prompts.Close() // nothing was written
		r.unlock()
		return fail(err)
	}
	r.begin(ctx, r.runNew)
	return r, nil
}

// absentModel stands for a recorded model in a replay. Its Complete always returns an error.
type absentModel struct{ name string }

func (p absentModel) Info() llm.Info          { return llm.Info{Name: p.name, Window: 1 << 40, Local: true} }
func (p absentModel) Count(text string) int64 { return int64(len(text)+3) / 4 }

func (p absentModel) Complete(context.Context, llm.Request) (*llm.Reply, error) {
	return nil, &v1.Error{Code: v1.CodeNotRecorded, Op: "replay", Message: "a replay does not call models"}
}
