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

// watchEvery is the interval at which the time of a running cell is checked.
const watchEvery = 50 * time.Millisecond

// runAction runs one action. It returns what the model sees of it, and whether it succeeded. An error means that the
// sandbox or the run has ended, not that code failed.
func (n *node) runAction(ctx context.Context, a action) (seen string, ok bool, err error) {
	l := n.run.limits
	switch a.kind {
	case actCell:
		end, err := n.runCell(ctx, a.text, false)
		if err != nil {
			return "", false, err
		}
		return observe(end, l.CellTime.Std(), *l.Output) + n.takeRefusal(), end.OK, nil
	case actCommand:
		end, err := n.runCommand(ctx, a.text)
		if err != nil {
			return "", false, err
		}
		return observe(end, l.CellTime.Std(), *l.Output), end.OK, nil
	case actQuery, actQueries:
		return n.directQueries(ctx, a)
	case actSnapshot:
		return n.snapshotAs(ctx, a.text)
	case actRollback:
		return n.rollback(ctx, a.text)
	}
	return "", false, fmt.Errorf("unknown action kind %q", a.kind)
}

// takeRefusal returns a note for the model that the cell's answer was refused, or "".
func (n *node) takeRefusal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refusal == "" || n.answer != nil {
		return ""
	}
	why := n.refusal
	n.refusal = ""
	return "[your answer was not accepted: " + why + "]\n"
}

// admit decides whether code of a model may run. If it may not, end is set. quiet means that the code ran before the
// run was resumed, and must not emit events again.
func (n *node) admit(ctx context.Context, c v1.CellStarted, r gate.Request) (quiet bool, end *v1.CellEnded, err error) {
	if n.turn <= n.replayedTo {
		return true, n.recordedRefusal(c), nil
	}
	n.run.emit(n, n.turn, v1.KindCellStarted, c)
	end, err = n.judge(ctx, r)
	return false, end, err
}

// runCell runs a cell, and processes its report in afterCell. Internal cells emit no events and bypass the gate.
func (n *node) runCell(ctx context.Context, code string, internal bool) (*v1.CellEnded, error) {
	quiet := internal
	if !internal {
		started := v1.CellStarted{Lang: string(gate.Python), Code: code}
		var end *v1.CellEnded
		var err error
		quiet, end, err = n.admit(ctx, started, gate.Request{Language: gate.Python, Code: code})
		if end != nil || err != nil {
			return end, err
		}
	}
	n.noteCode(code)
	n.mu.Lock()
	n.report, n.ready, n.refusal = nil, nil, ""
	n.mu.Unlock()
	return n.execute(ctx, quiet,
		func(ctx context.Context) (*sandbox.Verdict, error) {
			return n.sandbox.Cell(ctx, sandbox.Cell{Code: code, RunOptions: n.runOptions()})
		},
		func(v *sandbox.Verdict, end *v1.CellEnded) error {
			end.StateKept = v.StateKept && !v.StateLostBefore
			return n.afterCell(ctx, end)
		})
}

// execute runs admitted code, and then calls after if the code ran. If quiet is set, it emits no events.
func (n *node) execute(
	ctx context.Context,
	quiet bool,
	run func(context.Context) (*sandbox.Verdict, error),
	after func(*sandbox.Verdict, *v1.CellEnded) error,
) (*v1.CellEnded, error) {
	emitEnd := func(end *v1.CellEnded) {
		if !quiet {
			n.run.emit(n, n.turn, v1.KindCellEnded, end)
		}
	}
	runCtx, expired, stop := n.watch(ctx)
	if quiet {
		runCtx = gate.Bypass(runCtx) // an internal cell, or code that passed the gate when it first ran
	}
	v, err := run(runCtx)
	stop()
	n.endProgress()
	if end := refusedCode(err); end != nil {
		emitEnd(end)
		return end, nil
	}
	if err != nil {
		return nil, n.cellError(ctx, err)
	}
	n.run.cells.Add(1)
	end := n.describe(v, expired())
	if err := after(v, end); err != nil {
		return nil, err
	}
	emitEnd(end)
	if ctx.Err() != nil && n.accepted() == nil {
		return nil, context.Cause(ctx)
	}
	return end, n.budget.useCPU(v.CPU)
}

// afterCell processes the report of a cell that has ended: restored names, Python variables, and an answer or draft. If
// the interpreter was lost, it installs the bridge and the context again.
func (n *node) afterCell(ctx context.Context, end *v1.CellEnded) error {
	if n.accepted() != nil {
		return nil
	}
	if ctx.Err() != nil {
		n.acceptReady()
		return nil
	}
	if !end.StateKept {
		n.acceptReady()
		if n.accepted() != nil {
			return nil
		}
		return n.install(ctx)
	}
	a, err := n.fetchReport(ctx)
	if a == nil || err != nil {
		return err
	}
	end.Restored = a.Restored
	end.Vars = map[string]string{}
	for _, v := range a.Vars {
		end.Vars[fmt.Sprint(v[0])] = fmt.Sprint(v[1])
	}
	if a.Answer != nil {
		a.Answer.How = v1.HowCode
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

// fetchReport returns the report that a cell sends at its end. If the cell could not send one, fetchReport requests it.
func (n *node) fetchReport(ctx context.Context) (*cellReport, error) {
	received := func() *cellReport {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.report
	}
	if a := received(); a != nil {
		return a, nil
	}
	err := n.runInternal(ctx, "__import__('recluse_rlm').tell()")
	if a := received(); err == nil && a != nil {
		return a, nil
	}
	if ctx.Err() != nil {
		n.acceptReady()
		return nil, nil //nolint:nilerr // the run has ended, and the caller returns its cause
	}
	if err == nil || errors.Is(err, sandbox.ErrSandboxLost) {
		// Code has broken the bridge. Install it again.
		if n.runInternal(ctx, "__import__('sys').modules.pop('recluse_rlm', None)") == nil {
			return nil, n.install(ctx)
		}
	}
	return nil, err
}

// acceptReady accepts the answer that a cell marked as ready, if the cell was interrupted afterwards.
func (n *node) acceptReady() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answer == nil && n.ready != nil {
		n.answer = n.ready
	}
}

// watch cancels a cell after the cell time of the limits. The time in which the cell waits for models does not count.
func (n *node) watch(ctx context.Context) (cell context.Context, expired func() bool, stop func()) {
	cell, cancel := context.WithCancel(ctx)
	var over atomic.Bool
	done := make(chan struct{})
	var wg sync.WaitGroup
	limit := n.run.limits.CellTime.Std()
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
				if limit >= 0 && used > limit {
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

// cellError returns the error to report when the sandbox returned err instead of a verdict.
func (n *node) cellError(ctx context.Context, err error) error {
	n.acceptReady()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// refusedCode returns the end of a cell for an error that means that the code itself was refused and did not run. The
// model sees it, because the sandbox is not at fault. For other errors it returns nil.
func refusedCode(err error) *v1.CellEnded {
	switch v1.CodeOf(err) {
	case v1.CodeTooLarge, v1.CodeInvalidRequest, v1.CodeNoShell, v1.CodeGateRefused:
		return notRun(v1.ForModel(err).Error())
	}
	return nil
}

// runOptions returns the options for a model's code. It has no timeout there, because watch enforces it, and its output
// is cut for the model.
func (n *node) runOptions() sandbox.RunOptions {
	inline := min(1<<20, max(64<<10, int64(*n.run.limits.Output)*4))
	o := sandbox.RunOptions{Timeout: v1.NoLimit, InlineBytes: inline}
	if n.run.log.Watched() {
		o.Stdout = &outputReporter{n: n}
	}
	return o
}

// describe converts a verdict to the form that the events and the model get.
func (n *node) describe(v *sandbox.Verdict, expired bool) *v1.CellEnded {
	limit := *n.run.limits.Output
	end := &v1.CellEnded{
		Outcome:  v1.Outcome(*v),
		OK:       v.OK(),
		Stdout:   streamText(v.Stdout, limit),
		Stderr:   streamText(v.Stderr, limit/2),
		Produced: v.Stdout.Produced + v.Stderr.Produced,
	}
	end.Displays = nil   // pictures are too large for the events
	end.StateKept = true // runCell sets it for cells
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
	started := v1.CellStarted{Lang: string(gate.Bash), Code: script}
	quiet, end, err := n.admit(ctx, started, gate.CommandRequest(c, n.run.engine.o.Spec))
	if end != nil || err != nil {
		return end, err
	}
	n.noteLook()
	return n.execute(ctx, quiet,
		func(ctx context.Context) (*sandbox.Verdict, error) { return n.sandbox.Run(ctx, c) },
		func(*sandbox.Verdict, *v1.CellEnded) error { return nil })
}

// directQueries makes the model calls that a reply requests without code, all at once.
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
		seen.WriteString(cut(text, *n.run.limits.Output/len(items)) + "\n")
	}
	return seen.String(), ok, nil
}

// snapshotAs takes a snapshot with a name, for rollback.
func (n *node) snapshotAs(ctx context.Context, name string) (string, bool, error) {
	labels := map[string]string{LabelRun: n.run.id, labelPrefix + "name": name}
	snap, err := n.sandbox.Snapshot(ctx, sandbox.SnapshotOptions{Labels: labels})
	if err != nil {
		return n.refusedAction(ctx, "the snapshot could not be taken", err)
	}
	if n.named == nil {
		n.named = map[string]string{}
	}
	if old := n.named[name]; old != "" {
		_ = n.run.engine.o.Sandboxes.DeleteSnapshot(ctx, old) // after an error, the backend's sweep removes it later
	}
	n.named[name] = snap.ID
	return fmt.Sprintf("[snapshot %q taken]\n", name), true, nil
}

// rollback replaces the sandbox by one restored from the named snapshot.
func (n *node) rollback(ctx context.Context, name string) (string, bool, error) {
	id := n.named[name]
	if id == "" {
		return fmt.Sprintf("[snapshot %q not found]\n", name), false, nil
	}
	if n.borrowed {
		return "[this sandbox belongs to a session, and only the session can roll it back]\n", false, nil
	}
	m, err := n.run.engine.o.Sandboxes.Restore(ctx, id)
	if err != nil {
		return n.refusedAction(ctx, "the snapshot could not be restored", err)
	}
	old := n.sandbox
	n.sandbox = m
	m.OnHostCall(n.serve(n.ctx))
	n.run.emit(n, n.turn, v1.KindSandbox, v1.SandboxReady{ID: m.ID(), Inside: n.contextPath})
	if err := old.Close(); err != nil {
		n.run.engine.o.Logger.Warn("could not close the sandbox of a run",
			"run", n.run.id, "sandbox", old.ID(), "error", err)
	}
	return fmt.Sprintf("[snapshot %q restored]\n", name), true, nil
}

// refusedAction returns an observation with the error of a snapshot or rollback. If the sandbox is lost or ctx is done,
// it returns an error instead.
func (n *node) refusedAction(ctx context.Context, what string, err error) (string, bool, error) {
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	if errors.Is(err, sandbox.ErrSandboxLost) || errors.Is(err, sandbox.ErrGuestLost) {
		return "", false, err
	}
	return fmt.Sprintf("[%s: %v]\n", what, err), false, nil
}

// maxPostponed bounds how long a slow snapshot is postponed: to this multiple of SnapshotEvery.
const maxPostponed = 4

// snapshotDue reports whether a snapshot is due: cells have worked for at least every since the last one. No code runs
// in a sandbox while its snapshot is written, so a reply that arrives earlier must wait. Therefore a snapshot that
// takes longer than the model's reply is postponed, but not for ever.
func snapshotDue(worked, every, took, model time.Duration) bool {
	if every < 0 || worked < every {
		return false
	}
	return took <= model || worked/maxPostponed >= every
}

// startSnapshot starts a snapshot if one is due, while the run waits for the model. The returned function waits until
// the snapshot is written. It must be called before the next cell, whose effects must not be half in the snapshot.
func (n *node) startSnapshot(ctx context.Context) func() {
	due := snapshotDue(n.cellTime, n.run.engine.o.SnapshotEvery, n.snapshotTime, n.modelTime)
	if !due || !n.resumable() || n.borrowed ||
		n.run.engine.o.Sandboxes.Capabilities(ctx).Snapshots != sandbox.SnapshotsMemory {
		return func() {}
	}
	n.cellTime = 0
	var wg sync.WaitGroup
	wg.Go(func() {
		begun := time.Now()
		defer func() { n.snapshotTime = time.Since(begun) }()
		snap, err := n.sandbox.Snapshot(ctx, sandbox.SnapshotOptions{Labels: map[string]string{LabelRun: n.run.id}})
		if err != nil {
			n.run.engine.o.Logger.Warn("could not take a snapshot of a run", "run", n.run.id, "error", err)
			return
		}
		old := n.snapshot
		n.snapshot = snap.ID
		n.run.emit(n, n.turn-1, v1.KindSnapshot, v1.SnapshotTaken{ID: snap.ID})
		if old != "" {
			if err := n.run.engine.o.Sandboxes.DeleteSnapshot(ctx, old); err != nil {
				n.run.engine.o.Logger.Warn("could not delete a snapshot of a run",
					"run", n.run.id, "snapshot", old, "error", err)
			}
		}
	})
	return wg.Wait
}
