package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// watchEvery is how often a running cell's time is looked at.
const watchEvery = 50 * time.Millisecond

// do does one action and reports whether it went well. An error means that the machine or the run is over, not that code failed.
func (n *node) do(ctx context.Context, a action) (seen string, ok bool, err error) {
	o := n.run.engine.o
	switch a.kind {
	case actCell:
		end, err := n.runCell(ctx, a.text, false)
		if err != nil {
			return "", false, err
		}
		return observe(end, o.CellTimeout, o.OutputChars) + n.takeRefusal(), end.OK, nil
	case actCommand:
		end, err := n.runCommand(ctx, a.text)
		if err != nil {
			return "", false, err
		}
		return observe(end, o.CellTimeout, o.OutputChars), end.OK, nil
	case actQuery, actQueries:
		return n.directQueries(ctx, a)
	case actSnapshot:
		return n.remember(ctx, a.text)
	case actRollback:
		return n.rollback(ctx, a.text)
	}
	return "", false, fmt.Errorf("an action of kind %q", a.kind)
}

// takeRefusal tells why an answer of the cell was not taken.
func (n *node) takeRefusal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refusal == "" || n.handedIn != nil {
		return ""
	}
	why := n.refusal
	n.refusal = ""
	return "[your answer was not taken: " + why + "]\n"
}

// admit says whether a model's code may run: what has an end already may not. quiet means that it ran before, and nothing is told of it again.
func (n *node) admit(ctx context.Context, c v1.CellStarted, r gate.Request) (quiet bool, end *v1.CellEnded, err error) {
	if n.turn <= n.silentTo {
		return true, n.notRunThen(c), nil
	}
	n.run.emit(n, n.turn, v1.KindCellStarted, c)
	end, err = n.judge(ctx, r)
	return false, end, err
}

// runCell runs code and what must happen behind it. Nobody is told of our own, and nobody judges it.
func (n *node) runCell(ctx context.Context, code string, own bool) (*v1.CellEnded, error) {
	quiet := own
	if !own {
		var end *v1.CellEnded
		var err error
		if quiet, end, err = n.admit(ctx, v1.CellStarted{Lang: string(gate.Python), Code: code}, gate.Request{Language: gate.Python, Code: code}); end != nil || err != nil {
			return end, err
		}
	}
	n.mu.Lock()
	n.afterRun, n.ready, n.refusal = nil, nil, ""
	n.mu.Unlock()
	return n.execute(ctx, quiet,
		func(ctx context.Context) (*sandbox.Verdict, error) {
			return n.machine.Cell(ctx, sandbox.Cell{Code: code, RunOptions: n.runOptions()})
		},
		func(v *sandbox.Verdict, end *v1.CellEnded) error {
			end.StateKept = v.StateKept && !v.StateLostBefore
			return n.behind(ctx, end)
		})
}

// execute runs code that was admitted, and behind it, if it ran. Nothing is told of what is quiet.
func (n *node) execute(
	ctx context.Context, quiet bool, run func(context.Context) (*sandbox.Verdict, error), behind func(*sandbox.Verdict, *v1.CellEnded) error,
) (*v1.CellEnded, error) {
	tell := func(end *v1.CellEnded) {
		if !quiet {
			n.run.emit(n, n.turn, v1.KindCellEnded, end)
		}
	}
	runCtx, expired, stop := n.watch(ctx)
	if quiet {
		runCtx = gate.Bypass(runCtx) // it is our own, or has passed when it ran first
	}
	v, err := run(runCtx)
	stop()
	if end := refusedCode(err); end != nil {
		tell(end)
		return end, nil
	}
	if err != nil {
		return nil, n.lost(ctx, err)
	}
	n.run.cells.Add(1)
	end := n.describe(v, expired())
	if err := behind(v, end); err != nil {
		return nil, err
	}
	tell(end)
	if ctx.Err() != nil && n.taken() == nil {
		return nil, context.Cause(ctx)
	}
	return end, n.run.budget.useCPU(v.CPU)
}

// behind puts the bridge's names back and learns what the cell has left. A lost interpreter gets bridge and context again.
func (n *node) behind(ctx context.Context, end *v1.CellEnded) error {
	if n.taken() != nil {
		return nil
	}
	if ctx.Err() != nil {
		n.takeReady()
		return nil
	}
	if !end.StateKept {
		n.takeReady()
		if n.taken() != nil {
			return nil
		}
		return n.install(ctx)
	}
	a, err := n.leftover(ctx)
	if a == nil || err != nil {
		return err
	}
	end.Restored = a.Restored
	end.Vars = map[string]string{}
	for _, v := range a.Vars {
		end.Vars[fmt.Sprint(v[0])] = fmt.Sprint(v[1])
	}
	if a.Answer != nil {
		n.accept(a.Answer)
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Draft != nil {
		n.draft = a.Draft
	}
	return nil
}

// leftover is what the cell has told at its end. One that could not tell is asked.
func (n *node) leftover(ctx context.Context) (*afterNote, error) {
	told := func() *afterNote {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.afterRun
	}
	if a := told(); a != nil {
		return a, nil
	}
	err := n.own(ctx, "__import__('recluse_rlm').tell()")
	if a := told(); err == nil && a != nil {
		return a, nil
	}
	if ctx.Err() != nil {
		n.takeReady()
		return nil, nil //nolint:nilerr // the run is over, and its caller says why
	}
	if err == nil || errors.Is(err, sandbox.ErrSandboxLost) {
		// Code has broken the bridge itself. A new one takes its place.
		if n.own(ctx, "__import__('sys').modules.pop('recluse_rlm', None)") == nil {
			return nil, n.install(ctx)
		}
	}
	return nil, err
}

// takeReady takes an answer that was declared ready by a cell that did not come to its end.
func (n *node) takeReady() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handedIn == nil && n.ready != nil {
		n.handedIn = n.ready
	}
}

// watch ends a cell that works too long. Time in which it waits for models is not its own.
func (n *node) watch(ctx context.Context) (cell context.Context, expired func() bool, stop func()) {
	cell, cancel := context.WithCancel(ctx)
	var over atomic.Bool
	done := make(chan struct{})
	var wg sync.WaitGroup
	limit := n.run.engine.o.CellTimeout
	wg.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		last, used := time.Now(), time.Duration(0)
		defer func() { n.cellTime += used + time.Since(last) }()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				if n.inCalls.Load() == 0 {
					used += now.Sub(last)
				}
				last = now
				if limit > 0 && used > limit {
					over.Store(true)
					cancel()
				}
			}
		}
	})
	return cell, over.Load, func() {
		close(done)
		wg.Wait()
		cancel()
	}
}

// lost is the error of a machine that did not give a verdict.
func (n *node) lost(ctx context.Context, err error) error {
	n.takeReady()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// refusedCode is how code ended that was never run because of what it is. That is the model's to know, and no fault of the machine.
func refusedCode(err error) *v1.CellEnded {
	switch v1.CodeOf(err) {
	case v1.CodeTooLarge, v1.CodeInvalidRequest, v1.CodeNoShell, v1.CodeGateRefused:
		return notRun(v1.ForModel(err).Error())
	}
	return nil
}

// runOptions are those of a model's code: it is watched here, and its output is cut for the model.
func (n *node) runOptions() sandbox.RunOptions {
	inline := min(1<<20, max(64<<10, int64(n.run.engine.o.OutputChars)*4))
	return sandbox.RunOptions{Timeout: v1.NoLimit, InlineBytes: inline}
}

// describe is a verdict as the log and the model see it.
func (n *node) describe(v *sandbox.Verdict, expired bool) *v1.CellEnded {
	limit := n.run.engine.o.OutputChars
	end := &v1.CellEnded{
		Outcome: v1.Outcome(*v), OK: v.OK(), Stdout: stream(v.Stdout, limit), Stderr: stream(v.Stderr, limit/2), Produced: v.Stdout.Produced + v.Stderr.Produced,
	}
	end.Displays = nil   // pictures are not for a log
	end.StateKept = true // runCell says it for cells
	if expired && v.Ended == v1.EndedCancelled {
		end.Ended = v1.EndedTimeout
	}
	if v.Result != nil {
		end.Result = cut(v.Result.Text(), limit)
	}
	if v.Error != nil {
		end.Error = cut(v.Error.Traceback, limit/2)
	}
	return end
}

// runCommand runs a block of bash.
func (n *node) runCommand(ctx context.Context, script string) (*v1.CellEnded, error) {
	c := sandbox.Command{Shell: script, RunOptions: n.runOptions()}
	quiet, end, err := n.admit(ctx, v1.CellStarted{Lang: string(gate.Bash), Code: script}, gate.CommandRequest(c, n.run.engine.o.Spec))
	if end != nil || err != nil {
		return end, err
	}
	return n.execute(ctx, quiet,
		func(ctx context.Context) (*sandbox.Verdict, error) { return n.machine.Run(ctx, c) },
		func(*sandbox.Verdict, *v1.CellEnded) error { return nil })
}

// directQueries are model calls that the reply itself asks for, all at once.
func (n *node) directQueries(ctx context.Context, a action) (string, bool, error) {
	items := a.items
	if a.kind == actQuery {
		items = []string{a.text}
	}
	if len(items) == 0 {
		return "[there was no prompt to ask]\n", false, nil
	}
	prompts := make([]json.RawMessage, len(items))
	for i, p := range items {
		raw, err := json.Marshal(p)
		if err != nil {
			return "", false, err
		}
		prompts[i] = raw
	}
	replies := n.resolveAll(ctx, false, n.turn, prompts, "")
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	var seen strings.Builder
	ok := true
	for i, r := range replies {
		text := r.Text
		if r.Cut {
			text += " [cut: the reply was longer]"
		}
		if r.Error != nil {
			ok = false
			text = "[failed: " + r.Error.Message + "]"
		}
		if len(items) > 1 {
			fmt.Fprintf(&seen, "[%d] ", i)
		}
		seen.WriteString(cut(text, n.run.engine.o.OutputChars/len(items)) + "\n")
	}
	return seen.String(), ok, nil
}

// remember keeps the machine under a name.
func (n *node) remember(ctx context.Context, name string) (string, bool, error) {
	snap, err := n.machine.Snapshot(ctx, sandbox.SnapshotOptions{Labels: map[string]string{LabelRun: n.run.id, ourLabels + "name": name}})
	if err != nil {
		return n.refusedAction(ctx, "the snapshot could not be taken", err)
	}
	if n.named == nil {
		n.named = map[string]string{}
	}
	if old := n.named[name]; old != "" {
		_ = n.run.engine.o.Sandboxes.DeleteSnapshot(ctx, old) // it has been replaced; the sweep of old ones finds it
	}
	n.named[name] = snap.ID
	return fmt.Sprintf("[snapshot %q taken]\n", name), true, nil
}

// rollback goes on in a copy of the machine as it was.
func (n *node) rollback(ctx context.Context, name string) (string, bool, error) {
	id := n.named[name]
	if id == "" {
		return fmt.Sprintf("[there is no snapshot %q]\n", name), false, nil
	}
	if n.borrowed {
		return "[this machine belongs to a session, which alone can roll it back]\n", false, nil
	}
	m, err := n.run.engine.o.Sandboxes.Restore(ctx, id)
	if err != nil {
		return n.refusedAction(ctx, "the snapshot could not be restored", err)
	}
	old := n.machine
	n.machine = m
	m.OnHostCall(n.serve(n.ctx))
	n.run.emit(n, n.turn, v1.KindSandbox, v1.SandboxReady{ID: m.ID(), Inside: n.inside})
	if err := old.Close(); err != nil {
		n.run.engine.o.Logger.Warn("a sandbox of a run is left behind", "run", n.run.id, "sandbox", old.ID(), "error", err)
	}
	return fmt.Sprintf("[back at snapshot %q]\n", name), true, nil
}

func (n *node) refusedAction(ctx context.Context, what string, err error) (string, bool, error) {
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	if errors.Is(err, sandbox.ErrSandboxLost) || errors.Is(err, sandbox.ErrGuestLost) {
		return "", false, err
	}
	return fmt.Sprintf("[%s: %v]\n", what, err), false, nil
}

// putOff bounds how much longer than usual a snapshot waits for a slower model.
const putOff = 4

// snapshotDue says that cells have worked long enough since the last snapshot, which took some time. Nothing runs in a machine while it is written, so
// a reply that comes before has to wait: a snapshot that takes longer than the model is put off, but not for ever.
func snapshotDue(worked, every, took, model time.Duration) bool {
	if every < 0 || worked < every {
		return false
	}
	return took <= model || worked/putOff >= every
}

// snapshotBeside takes a snapshot while the model is asked, when one is due. The returned function waits for it: what a cell does must not be in it by half.
func (n *node) snapshotBeside(ctx context.Context) func() {
	due := snapshotDue(n.cellTime, n.run.engine.o.SnapshotEvery, n.snapTook, n.modelTook)
	if !due || n.depth > 0 || n.borrowed || n.run.engine.o.Sandboxes.Capabilities(ctx).Snapshots != sandbox.SnapshotsMemory {
		return func() {}
	}
	n.cellTime = 0
	var wg sync.WaitGroup
	wg.Go(func() {
		begun := time.Now()
		defer func() { n.snapTook = time.Since(begun) }()
		snap, err := n.machine.Snapshot(ctx, sandbox.SnapshotOptions{Labels: map[string]string{LabelRun: n.run.id}})
		if err != nil {
			n.run.engine.o.Logger.Warn("a run goes on without a new snapshot", "run", n.run.id, "error", err)
			return
		}
		old := n.snapshot
		n.snapshot = snap.ID
		n.run.emit(n, n.turn-1, v1.KindSnapshot, v1.SnapshotTaken{ID: snap.ID})
		if old != "" {
			if err := n.run.engine.o.Sandboxes.DeleteSnapshot(ctx, old); err != nil {
				n.run.engine.o.Logger.Warn("a snapshot of a run is left behind", "run", n.run.id, "snapshot", old, "error", err)
			}
		}
	})
	return wg.Wait
}
