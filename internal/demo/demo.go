// Package demo has two demonstrations: of a sandbox, step by step, and of a run over a large text.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/doctor"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// timeout is the timeout of the step that shows an enforced limit.
const timeout = time.Second

// Options are the options of Run.
type Options struct {
	Backend sandbox.Backend
	// Out receives the text for people; it may be nil.
	Out io.Writer
	// Made is called with each new sandbox, so that the program can end it when it exits at once.
	Made func(*sandbox.Sandbox)
	// Failed is called with errors of the clean-up.
	Failed func(error)
}

// Result is the result of a demonstration.
type Result struct {
	Backend string        `json:"backend"`
	OK      bool          `json:"ok"`
	Took    time.Duration `json:"took_ns"`
	Steps   []Step        `json:"steps"`
}

// Step is the result of one step.
type Step struct {
	Title   string           `json:"title"`
	OK      bool             `json:"ok"`
	Skipped string           `json:"skipped,omitempty"` // why the backend cannot do the step
	Took    time.Duration    `json:"took_ns"`
	Lines   []string         `json:"lines,omitempty"`
	Error   *console.Failure `json:"error,omitempty"`
}

// Run runs all steps and removes everything that they made.
func Run(ctx context.Context, o Options) *Result {
	if o.Out == nil {
		o.Out = io.Discard
	}
	d := &demo{Options: o, p: console.NewPaint(o.Out)}
	start := time.Now()
	failed := d.show(ctx)
	took := time.Since(start)
	if ctx.Err() == nil {
		d.conclude(ctx, failed, took)
	}
	return &Result{Backend: o.Backend.Name(), OK: !failed, Took: took, Steps: d.steps}
}

// demo is one demonstration.
type demo struct {
	Options
	p     console.Paint
	s     *sandbox.Sandbox
	snap  *sandbox.Snapshot
	steps []Step
}

// show runs the steps. It continues after a failed step, unless there is no sandbox.
func (d *demo) show(ctx context.Context) (failed bool) {
	d.print("\n%s  %sA sandbox of the %s backend%s\n", " ", d.p.Bold, d.Backend.Name(), d.p.Off)
	defer d.cleanUp(ctx)
	for _, s := range []struct {
		title string
		run   func(context.Context, *attempt)
	}{
		{"start a sandbox and run Python in it", d.boot},
		{"the sandbox has its own kernel", d.kernel},
		{"variables stay between cells, also after an exception", d.state},
		{"copy files in and out", d.files},
		{"enforce a timeout; the sandbox continues", d.limit},
		{"take a snapshot: memory, variables and files", d.snapshot},
		{"restore the snapshot", d.restore},
		{"make two live copies that differ", d.fork},
	} {
		if ctx.Err() != nil {
			return true
		}
		t := attempt{step: Step{Title: s.title}}
		start := time.Now()
		s.run(ctx, &t)
		t.step.Took = time.Since(start)
		switch {
		case t.err == nil:
			t.step.OK = true
		case errors.Is(t.err, sandbox.ErrNotSupported):
			t.step.OK, t.step.Skipped = true, console.NewFailure(t.err).Message
		default:
			t.step.Error, failed = console.NewFailure(t.err), true
		}
		d.steps = append(d.steps, t.step)
		d.printStep(len(d.steps), t.step)
		if d.s == nil {
			return true
		}
	}
	return failed
}

func (d *demo) printStep(n int, st Step) {
	mark, note := d.p.Mark(st.OK), console.Short(st.Took)
	if st.Skipped != "" {
		mark, note = "-", "skipped: "+st.Skipped
	}
	d.print("\n%s %s%d. %s%s  %s%s%s\n", mark, d.p.Bold, n, st.Title, d.p.Off, d.p.Dim, note, d.p.Off)
	for _, l := range st.Lines {
		for line := range strings.SplitSeq(strings.TrimRight(l, "\n"), "\n") {
			d.print("     %s\n", line)
		}
	}
	if e := st.Error; e != nil {
		d.print("     %s\n", e)
		if e.Remedy != "" {
			d.print("     remedy: %s\n", e.Remedy)
		}
	}
}

func (d *demo) print(format string, args ...any) { fmt.Fprintf(d.Out, format, args...) }

// close ends a sandbox and reports an error to Failed.
func (d *demo) close(s *sandbox.Sandbox) {
	if err := s.Close(); err != nil {
		d.Failed(err)
	}
}

// attempt is a running step. After its first error its methods do nothing, so that a step need not check each call.
type attempt struct {
	step Step
	err  error
}

// must records the first error.
func (t *attempt) must(err error) {
	if t.err == nil {
		t.err = err
	}
}

// want fails the step if ok is false.
func (t *attempt) want(ok bool, format string, args ...any) {
	if !ok {
		t.must(&v1.Error{Code: v1.CodeInternal, Message: "unexpected result: " + fmt.Sprintf(format, args...)})
	}
}

// print adds lines to the output of the step.
func (t *attempt) print(format string, args ...any) {
	if t.err == nil {
		t.step.Lines = append(t.step.Lines, fmt.Sprintf(format, args...))
	}
}

// verdict calls run and returns its verdict, which is never nil.
func (t *attempt) verdict(run func() (*sandbox.Verdict, error)) *sandbox.Verdict {
	if t.err == nil {
		v, err := run()
		if err == nil {
			return v
		}
		t.err = err
	}
	return &sandbox.Verdict{}
}

// cell runs code that must succeed, and returns its value or what it printed.
func (t *attempt) cell(ctx context.Context, s *sandbox.Sandbox, code string) string {
	v := t.verdict(func() (*sandbox.Verdict, error) { return s.Cell(ctx, sandbox.Cell{Code: code}) })
	if t.err != nil {
		return ""
	}
	why := v.String()
	if v.Error != nil {
		why = v.Error.Name + ": " + v.Error.Value
	}
	t.want(v.OK(), "%q ended with %s", code, why)
	if v.Result != nil {
		return v.Result.Text()
	}
	return strings.TrimSpace(v.Stdout.String())
}

func (t *attempt) expect(got, want string) { t.want(got == want, "got %q, want %q", got, want) }

func (d *demo) boot(ctx context.Context, t *attempt) {
	start := time.Now()
	s, err := sandbox.Open(ctx, d.Backend, sandbox.Spec{})
	if err != nil {
		t.must(err)
		return
	}
	d.s = s
	d.Made(s)
	made := time.Since(start)
	start = time.Now()
	got := t.cell(ctx, s, `f"hello from Python {__import__('platform').python_version()}"`)
	t.print("sandbox %s in %s, first cell in %s", s.ID(), console.Short(made), console.Short(time.Since(start)))
	t.print(">>> %s", got)
	start = time.Now()
	t.cell(ctx, s, "1+1")
	t.print("the next cell takes %s", console.Short(time.Since(start)))
}

func (d *demo) kernel(ctx context.Context, t *attempt) {
	inside := t.cell(ctx, d.s, "import platform; print(platform.release())")
	t.print("host:   Linux %s", doctor.HostKernel())
	t.print("inside: Linux %s", inside)
	if d.Backend.Capabilities(ctx).Isolation < sandbox.IsolationKernel {
		t.must(backend.NotSupported(d.Backend.Name(), "isolate", ""))
	}
	v := t.verdict(func() (*sandbox.Verdict, error) { return d.s.Run(ctx, sandbox.Command{Shell: "id; echo $(ls /)"}) })
	t.print("$ id; echo $(ls /)\n%s", v.Stdout)
	t.want(inside != doctor.HostKernel(), "the kernel is that of the host")
}

func (d *demo) state(ctx context.Context, t *attempt) {
	t.cell(ctx, d.s, "x = 41\nwords = ['a', 'machine', 'of', 'its', 'own']")
	v := t.verdict(func() (*sandbox.Verdict, error) { return d.s.Cell(ctx, sandbox.Cell{Code: "y = x + 1\n1/0"}) })
	if v.Error == nil || v.Error.Name != "ZeroDivisionError" || !v.StateKept {
		t.want(false, "the exception was reported as %s", v)
		return
	}
	t.print(">>> x = 41")
	t.print(">>> y = x + 1; 1/0   # %s: %s", v.Error.Name, v.Error.Value)
	got := t.cell(ctx, d.s, "(y, ' '.join(words))")
	t.print(">>> (y, ' '.join(words))\n%s", got)
	t.expect(got, "(42, 'a machine of its own')")
}

func (d *demo) files(ctx context.Context, t *attempt) {
	g, err := d.s.Guest(ctx)
	if err != nil {
		t.must(err)
		return
	}
	in, out := g.Home+"/numbers.csv", g.Home+"/sum.txt"
	t.must(d.s.Files().WriteAll(ctx, in, []byte("3\n4\n5\n"), sandbox.WriteOptions{}))
	t.cell(ctx, d.s, fmt.Sprintf("open(%q, 'w').write(str(sum(map(int, open(%q)))))", out, in))
	got, err := d.s.Files().ReadAll(ctx, out)
	t.must(err)
	t.print("wrote %s, added it up inside, read %s: %s", in, out, got)
	_, err = os.Stat(out)
	t.want(err != nil || d.Backend.Capabilities(ctx).Isolation == sandbox.IsolationNone, "%s is on the host", out)
	t.expect(string(got), "12")
}

func (d *demo) limit(ctx context.Context, t *attempt) {
	v := t.verdict(func() (*sandbox.Verdict, error) {
		return d.s.Run(ctx, sandbox.Command{
			Shell:      "echo working; (setsid sleep 1000 &) ; sleep 1000",
			RunOptions: sandbox.RunOptions{Timeout: timeout},
		})
	})
	t.want(v.Ended == v1.EndedTimeout, "an endless command ended with %s", v)
	t.print(
		"$ (setsid sleep 1000 &); sleep 1000\n%s; it had printed %q; all its processes were killed",
		v,
		strings.TrimSpace(v.Stdout.String()),
	)
	v = t.verdict(func() (*sandbox.Verdict, error) {
		return d.s.Cell(ctx, sandbox.Cell{
			Code:       "while True: pass",
			RunOptions: sandbox.RunOptions{Timeout: timeout / 2},
		})
	})
	t.want(v.Ended == v1.EndedTimeout && v.StateKept, "an endless loop ended with %s, state kept: %t", v, v.StateKept)
	got := t.cell(ctx, d.s, "x")
	t.print(">>> while True: pass\n%s; x is still %s", v, got)
	t.expect(got, "41")
}

func (d *demo) snapshot(ctx context.Context, t *attempt) {
	snap, err := d.s.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		t.must(err)
		return
	}
	d.snap = snap
	t.print("snapshot %s, %.1f MB, with x = 41", snap.ID, float64(snap.Size)/1e6)
}

func (d *demo) restore(ctx context.Context, t *attempt) {
	if d.snap == nil {
		t.must(backend.NotSupported(d.Backend.Name(), "restore", ""))
		return
	}
	t.cell(ctx, d.s, "x = 'changed since'")
	old, err := sandbox.Restore(ctx, d.Backend, d.snap, sandbox.RestoreOptions{})
	if err != nil {
		t.must(err)
		return
	}
	d.Made(old)
	defer d.close(old)
	now, then := t.cell(ctx, d.s, "x"), t.cell(ctx, old, "x")
	t.print("x in the running sandbox: %s; in the restored one: %s", now, then)
	t.expect(then, "41")
}

func (d *demo) fork(ctx context.Context, t *attempt) {
	t.cell(ctx, d.s, "import random; x = 100; path = []")
	start := time.Now()
	forks, err := d.s.Fork(ctx, 2)
	for _, f := range forks {
		d.Made(f)
		defer d.close(f)
	}
	t.must(err)
	t.print("both copies run after %s", console.Short(time.Since(start)))
	seen := map[string]bool{}
	for i, f := range forks {
		way := []string{"left", "right"}[i]
		got := t.cell(ctx, f, fmt.Sprintf("x += %d; path.append(%q); (x, path, random.random())", i+1, way))
		t.want(strings.HasPrefix(got, fmt.Sprintf("(%d, ['%s'], ", 101+i, way)), "copy %d has %s", i+1, got)
		t.print("copy %d: x, path, random.random() = %s", i+1, got)
		number := got[strings.LastIndex(got, " ")+1:]
		t.want(!seen[number], "both copies have the same random number")
		seen[number] = true
	}
	got := t.cell(ctx, d.s, "(x, path)")
	t.print("original: x, path = %s", got)
	t.expect(got, "(100, [])")
}

// cleanUp removes the snapshot and the sandbox.
func (d *demo) cleanUp(ctx context.Context) {
	if d.snap != nil {
		if err := d.Backend.DeleteSnapshot(context.WithoutCancel(ctx), d.snap.ID); err != nil {
			d.Failed(err)
		}
	}
	if d.s != nil {
		d.close(d.s)
	}
}

func (d *demo) conclude(ctx context.Context, failed bool, took time.Duration) {
	if failed {
		d.print("\n%s some steps failed; recluse doctor may show why\n", d.p.Bad)
		return
	}
	left := "nothing is left"
	if list, err := d.Backend.List(ctx); err == nil && d.s != nil {
		for _, s := range list {
			if s.ID == d.s.ID() {
				left = "but sandbox " + s.ID + " still exists"
			}
		}
	}
	d.print("\n%s done in %s, %s. Now try:\n\n", d.p.Good, console.Short(took), left)
	next := []string{
		"recluse exec --python 'sum(range(10))'", "recluse exec -- bash -c 'id; ls /'", "recluse shell", "recluse doctor",
	}
	for _, l := range next {
		d.print("     %s\n", l)
	}
	d.print("\n")
}
