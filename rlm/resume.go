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

// The ways in which an interrupted run gets its machine back.
const (
	HowAttached = "attached" // it still ran
	HowRestored = "restored" // from the last snapshot
	HowRebuilt  = "rebuilt"  // anew, by running all cells again
)

// Again is how a kept run goes on. What is not set is as it was.
type Again struct {
	Model  string       // asked for by name; turns and replies that are on record stay
	Limits v1.RunLimits // fields that are set replace the run's own
}

// Resume goes on with a run whose program has died, or which ended without an answer. Its machine is taken over if it still runs and no code was interrupted in it; else the last
// snapshot is restored, or a new machine is made, and the cells behind it are run again with the replies that models
// gave then. Only calls that were under way are paid again.
func (e *Engine) Resume(ctx context.Context, id string, again Again) (*Run, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	// First of all: what a program that still works on it writes would be missed.
	unlock, err := lockRun(dir)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Run, error) {
		unlock()
		return nil, err
	}
	p, err := e.readPast(id, -1, false)
	if err != nil {
		return fail(err)
	}
	if p.ended != nil && p.ended.Reason == v1.ReasonAnswered {
		return fail(&v1.Error{Code: v1.CodeRunEnded, Op: "resume run", Message: "the run has its answer already", Remedy: "fork it to try again from one of its turns"})
	}
	r, err := e.continueRun(ctx, p, again, unlock)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// continueRun goes on in the directory of a past run, which the caller has locked. The run unlocks it at its end; if it does not begin, the caller does.
func (e *Engine) continueRun(ctx context.Context, p *past, again Again, unlock func()) (*Run, error) {
	q := Question{
		Query: p.saved.Query, Schema: p.saved.Schema, Model: or(again.Model, p.saved.Model), Labels: p.saved.Labels, History: p.saved.History,
		Limits: again.Limits.Over(p.saved.Limits),
	}
	r, err := e.prepare(q, p.id)
	if err != nil {
		return nil, err
	}
	if r.model, err = r.modelFor(0, q.Model); err != nil {
		return nil, err
	}
	if name := r.model.Info().Name; name != p.started.Model {
		r.otherModel = name
	}
	r.dir, r.tape, r.unlock = p.dir, p.tape, unlock
	r.tools = toolsOf(p.saved.Tools, r.tools, v1.CodeToolMissing, "give the run its tools again, and resume it")
	if r.staged, err = readStaged(filepath.Join(p.dir, contextDir)); err != nil {
		return nil, err
	}
	if r.log, err = trajectory.Continue(p.dir); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "resume run", Err: err}
	}
	r.budget.begun = time.Now().Add(-p.worked)
	for _, s := range p.spent {
		r.budget.credit(s.Model, s.Depth, s.Usage)
	}
	r.begin(ctx, func(ctx context.Context) (*Result, error) { return r.again(ctx, p) })
	return r, nil
}

// again brings the root node to where it was, and lets it go on.
func (r *Run) again(ctx context.Context, p *past) (*Result, error) {
	n := r.rootNode()
	if !r.engine.o.NoCoverage {
		r.coverage = newCoverage(r.staged, maxCoverFiles, maxCoverBytes)
		defer r.coverage.close()
	}
	if p.answer != nil {
		n.handedIn, n.turn = p.answer, p.lastTurn
		r.resumed(n, p, v1.Resumed{How: HowAttached, Turn: n.turn})
		r.dropMachine(ctx, p)
		return r.finish(ctx, n, nil)
	}
	if p.lastTurn == 0 && p.box.ID == "" {
		// Nothing had happened, or the model was asked directly.
		r.resumed(n, p, v1.Resumed{How: HowRebuilt})
		return r.finish(ctx, n, n.work(ctx))
	}
	defer n.close()
	err := n.returnTo(ctx, p)
	if err == nil {
		err = n.loop(ctx)
	}
	return r.finish(ctx, n, err)
}

// dropMachine ends what a dead program has left of a run that needs no machine any more.
func (r *Run) dropMachine(ctx context.Context, p *past) {
	if p.box.ID == "" {
		return
	}
	if m, err := r.engine.o.Sandboxes.Attach(ctx, p.box.ID); err == nil {
		_ = m.Close() // it may end meanwhile by itself
	}
}

// returnTo gets the machine back and the conversation with it.
func (n *node) returnTo(ctx context.Context, p *past) error {
	n.ctx = ctx
	how, from, err := n.machineOf(ctx, p)
	if err != nil {
		return err
	}
	whole := len(p.turns)
	n.run.resumed(n, p, v1.Resumed{How: how, Turn: whole, Rerun: whole - from})
	if how != HowRebuilt {
		n.notes = p.contexts.Contexts
	}
	if err := n.greet(); err != nil {
		return err
	}
	n.silentTo = whole
	for i, t := range p.turns {
		n.mu.Lock()
		n.turn, n.seen = i+1, nil
		n.mu.Unlock()
		if s, ok := p.summary[n.turn]; ok && len(n.messages) > 2+2*keepTurns {
			n.shorten(s)
		}
		if i >= from {
			n.pastCells = p.cells[n.turn]
			if _, err := n.act(ctx, &llm.Reply{Text: t.Reply, Finish: t.Finish}); err != nil {
				return err
			}
			if n.taken() != nil {
				return nil
			}
		}
		n.say(llm.Assistant, or(t.Reply, "(empty)"))
		if t.Observation != "" {
			n.run.coverage.note(t.Observation, readByModel)
			n.say(llm.User, t.Observation)
		}
	}
	return nil
}

// machineOf takes over, restores or makes the machine, and gives the number of turns whose effect is in it.
func (n *node) machineOf(ctx context.Context, p *past) (how string, turns int, err error) {
	boxes := n.run.engine.o.Sandboxes
	adopt := func(m Machine) bool {
		n.machine, n.inside = m, p.box.Inside
		m.OnHostCall(n.serve(ctx))
		// The bridge in it must answer; else it is not what it was.
		err := n.own(ctx, "__import__('recluse_rlm').after()")
		if err == nil && n.run.otherTools(p) != nil {
			err = n.retool(ctx)
		}
		if err != nil {
			_ = m.Close()
			n.machine = nil
			return false
		}
		return true
	}
	if p.box.ID != "" {
		m, err := boxes.Attach(ctx, p.box.ID)
		if err == nil && !p.dirty && adopt(m) {
			n.snapshot = p.snapshot
			return HowAttached, len(p.turns), nil
		}
		if err == nil && p.dirty {
			_ = m.Close() // code was interrupted in it: nobody knows what it has left
		}
	}
	if ctx.Err() != nil {
		return "", 0, context.Cause(ctx)
	}
	if p.snapshot != "" && p.snapTurn <= len(p.turns) {
		if m, err := boxes.Restore(ctx, p.snapshot); err == nil && adopt(m) {
			n.snapshot = p.snapshot
			n.run.emit(n, 0, v1.KindSandbox, v1.SandboxReady{ID: m.ID(), Inside: n.inside})
			return HowRestored, p.snapTurn, nil
		}
	}
	return HowRebuilt, 0, n.open(ctx)
}

// resumed notes that the run goes on, and what differs from before.
func (r *Run) resumed(n *node, p *past, e v1.Resumed) {
	e.Limits, e.Tools = r.limits, r.otherTools(p)
	if r.q.Model != p.saved.Model {
		e.Model = r.q.Model
	}
	r.emit(n, e.Turn, v1.KindResumed, e)
}

// otherTools are the tools of a run that goes on, if they are not those that it had; else nil.
func (r *Run) otherTools(p *past) []ToolNote {
	if tools := bridgeTools(r.tools); !reflect.DeepEqual(tools, p.saved.Tools) {
		return tools
	}
	return nil
}

// retool makes the tools functions in a machine that has others. What there is of an answer stays.
func (n *node) retool(ctx context.Context) error {
	code, err := n.installCode()
	if err != nil {
		return err
	}
	return n.own(ctx, "__kept = dict(__import__('recluse_rlm').answer)\n"+code+"\ndict.update(__import__('recluse_rlm').answer, __kept)\ndel __kept")
}

// Fork begins a new run that shares its first turns, up to and including at, with a kept one, and goes on with models from there.
func (e *Engine) Fork(ctx context.Context, id string, at int, again Again) (*Run, error) {
	p, err := e.readPast(id, at, false)
	if err != nil {
		return nil, err
	}
	p.saved.Labels, p.started.Labels = copied(p.saved.Labels), copied(p.started.Labels)
	if at < 0 || at > len(p.turns) {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "fork run", Message: fmt.Sprintf("the run has %d whole turns, and was to be forked behind turn %d", len(p.turns), at)}
	}
	p.started.Model = p.model
	if again.Model != "" {
		m, err := chooseModel(e.o.Models, 0, again.Model)
		if err != nil {
			return nil, err
		}
		p.saved.Model, p.started.Model = again.Model, m.Info().Name
	}
	fork := newRunID()
	dir := filepath.Join(e.dir, fork)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "fork run", Err: err}
	}
	// Before others can find it.
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
	f, err := e.readPast(fork, -1, false)
	if err != nil {
		return fail(err)
	}
	r, err := e.continueRun(ctx, f, again, unlock)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

// LabelAsked is what servers once noted of a run that they go on with. It is not true of a copy.
const LabelAsked = ourLabels + "asked"

// copied are the labels of a copy.
func copied(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, LabelAsked)
	return labels
}

// copyRun fills the directory of a fork, with the events of the shared turns.
func copyRun(p *past, dir, id string, at int) error {
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
	for e, err := range trajectory.Read(p.dir) {
		if err != nil {
			return err
		}
		// At turn 0 only what came before the first turn is shared, or before the model was asked directly.
		if at == 0 && (e.Kind == v1.KindTurnStarted || e.Kind == v1.KindCallStarted) {
			break
		}
		switch e.Kind {
		case v1.KindRunStarted:
			p.started.Forked, p.started.Run = p.id, id
			if e.Data, err = json.Marshal(p.started); err != nil {
				return err
			}
		case v1.KindSandbox, v1.KindSnapshot, v1.KindRunEnded, v1.KindResumed:
			continue // machine and snapshots belong to the other run
		case v1.KindAnswer:
			if e.Node == "0" {
				continue // it is the other run's
			}
		default: // the other events do not matter here
		}
		seq++
		e.Seq = seq
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		out.Write(append(line, '\n'))
		if e.Node == "0" && e.Kind == v1.KindTurnEnded && e.Turn == at {
			break
		}
	}
	return os.WriteFile(filepath.Join(dir, trajectory.FileName), out.Bytes(), 0o600)
}

// Replay runs a kept run again, with real sandboxes and the replies that models gave then. No model is asked, and none
// need be configured. It is a run of its own, and its events are the same but for times and names.
func (e *Engine) Replay(ctx context.Context, id string) (*Run, error) {
	p, err := e.readPast(id, -1, true)
	if err != nil {
		return nil, err
	}
	q := Question{Query: p.saved.Query, Schema: p.saved.Schema, Model: p.saved.Model, Labels: copied(p.saved.Labels), History: p.saved.History, Limits: p.saved.Limits}
	r, err := e.prepare(q, newRunID())
	if err != nil {
		return nil, err
	}
	p.tape.fresh = true
	r.tape = p.tape
	r.models = func(depth int, name string) (llm.Model, error) { return paper{or(name, p.models[depth])}, nil }
	r.model = paper{p.started.Model}
	if p.ended != nil {
		r.otherModel = p.ended.Model
	}
	if p.saved.Tools != nil {
		r.tools = toolsOf(p.saved.Tools, nil, v1.CodeNotRecorded, "") // as they were then
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
	if r.log, err = trajectory.Create(r.dir); err != nil {
		r.unlock()
		return fail(err)
	}
	r.begin(ctx, r.fresh)
	return r, nil
}

// paper is a model that nobody can ask.
type paper struct{ name string }

func (p paper) Info() llm.Info          { return llm.Info{Name: p.name, Window: 1 << 40, Local: true} }
func (p paper) Count(text string) int64 { return int64(len(text)+3) / 4 }

func (p paper) Complete(context.Context, llm.Request) (*llm.Reply, error) {
	return nil, &v1.Error{Code: v1.CodeNotRecorded, Op: "replay", Message: "a replay asks no model"}
}
