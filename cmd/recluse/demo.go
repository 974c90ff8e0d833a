package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// demoTimeout is the time limit that is shown to bite.
const demoTimeout = time.Second

func (a *app) demoCommand() *cobra.Command {
	var f backendFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a sandbox is: its own kernel, state, files, a limit, a snapshot, forks",
		Long: `Show what a sandbox is, step by step and for real: code in a kernel of its own, state kept
between cells, files, a limit that bites, a snapshot and its return, two forks that go their own
ways. The exit status is 1 if a step did not do what it should.`,
		Example: "  recluse demo\n  recluse demo --json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), &f) },
	}
	f.register(cmd.Flags())
	return cmd
}

// demo is one showing.
type demo struct {
	a *app
	w *watch
	p paint
	b sandbox.Backend
	s *sandbox.Sandbox

	snap  *sandbox.Snapshot
	steps []step
}

// step is what is told of one step with --json.
type step struct {
	Title   string        `json:"title"`
	OK      bool          `json:"ok"`
	Skipped string        `json:"skipped,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Lines   []string      `json:"lines,omitempty"`
	Error   *failure      `json:"error,omitempty"`
}

func (a *app) demo(ctx context.Context, f *backendFlags) error {
	req, err := f.requirements(a)
	if err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	d := &demo{a: a, w: w, p: a.paint()}
	b, _, err := backend.Select(ctx, a.backends(ctx), req)
	if err != nil {
		return cause(ctx, err)
	}
	d.b = b
	start := time.Now()
	failed := d.show(ctx)
	if why := context.Cause(ctx); why != nil {
		return why
	}
	if a.json {
		if err := writeJSON(a.stdout, map[string]any{"backend": b.Name(), "ok": !failed, "took_ns": time.Since(start), "steps": d.steps}); err != nil {
			return err
		}
	} else {
		d.close(ctx, failed, time.Since(start))
	}
	if failed {
		return exit(1)
	}
	return nil
}

// show goes through the steps. One that fails does not keep later ones from being shown, but without a sandbox there are none.
func (d *demo) show(ctx context.Context) (failed bool) {
	d.print("\n%s  %sA machine of its own, on the %s backend%s\n", " ", d.p.bold, d.b.Name(), d.p.off)
	defer d.cleanUp(ctx)
	for _, s := range []struct {
		title string
		run   func(ctx context.Context, tell func(format string, args ...any)) error
	}{
		{"a sandbox, and the first line of Python in it", d.boot},
		{"a kernel of its own", d.kernel},
		{"state stays between cells, also after an exception", d.state},
		{"files go in and out", d.files},
		{"a limit that bites, and the session lives on", d.limit},
		{"a snapshot: memory, variables and files", d.snapshot},
		{"back to the snapshot", d.restore},
		{"two forks of the running session, each its own way", d.fork},
	} {
		if ctx.Err() != nil {
			return true
		}
		st := step{Title: s.title}
		start := time.Now()
		err := s.run(ctx, func(format string, args ...any) { st.Lines = append(st.Lines, fmt.Sprintf(format, args...)) })
		st.Took = time.Since(start)
		switch {
		case err == nil:
			st.OK = true
		case errors.Is(err, sandbox.ErrNotSupported):
			st.OK, st.Skipped = true, failureOf(err).Message
		default:
			f := failureOf(err)
			st.Error, failed = &f, true
		}
		d.steps = append(d.steps, st)
		d.tell(len(d.steps), st)
		if d.s == nil {
			return true
		}
	}
	return failed
}

func (d *demo) tell(n int, st step) {
	mark, note := d.p.mark(st.OK), short(st.Took)
	if st.Skipped != "" {
		mark, note = "-", "skipped: "+st.Skipped
	}
	d.print("\n%s %s%d. %s%s  %s%s%s\n", mark, d.p.bold, n, st.Title, d.p.off, d.p.dim, note, d.p.off)
	for _, l := range st.Lines {
		for line := range strings.SplitSeq(strings.TrimRight(l, "\n"), "\n") {
			d.print("     %s\n", line)
		}
	}
	if e := st.Error; e != nil {
		d.print("     %s\n", strings.Join(nonEmpty(e.Op, e.Message, e.Cause), ": "))
		if e.Remedy != "" {
			d.print("     remedy: %s\n", e.Remedy)
		}
	}
}

func (d *demo) print(format string, args ...any) {
	if !d.a.json {
		fmt.Fprintf(d.a.stdout, format, args...)
	}
}

// cell runs code that must succeed and gives its value, or what it printed.
func (d *demo) cell(ctx context.Context, s *sandbox.Sandbox, code string) (string, error) {
	v, err := s.Cell(ctx, sandbox.Cell{Code: code})
	if err != nil {
		return "", err
	}
	if !v.OK() {
		why := v.String()
		if v.Error != nil {
			why = v.Error.Name + ": " + v.Error.Value
		}
		return "", unexpected("%q ended with %s", code, why)
	}
	if v.Result != nil {
		return v.Result.Text(), nil
	}
	return strings.TrimSpace(v.Stdout.String()), nil
}

func unexpected(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInternal, Message: "not what was expected: " + fmt.Sprintf(format, args...)}
}

func (d *demo) boot(ctx context.Context, tell func(string, ...any)) error {
	start := time.Now()
	s, err := sandbox.Open(ctx, d.b, sandbox.Spec{})
	if err != nil {
		return err
	}
	d.s = s
	d.w.guard(s)
	made := time.Since(start)
	start = time.Now()
	got, err := d.cell(ctx, s, `f"hello from Python {__import__('platform').python_version()}"`)
	if err != nil {
		return err
	}
	tell("sandbox %s in %s, first cell in %s", s.ID(), short(made), short(time.Since(start)))
	tell(">>> %s", got)
	start = time.Now()
	if _, err := d.cell(ctx, s, "1+1"); err != nil {
		return err
	}
	tell("the next cell takes %s", short(time.Since(start)))
	return nil
}

func (d *demo) kernel(ctx context.Context, tell func(string, ...any)) error {
	inside, err := d.cell(ctx, d.s, "import platform; print(platform.release())")
	if err != nil {
		return err
	}
	tell("host:   Linux %s", hostKernel())
	tell("inside: Linux %s", inside)
	if d.b.Capabilities(ctx).Isolation < sandbox.IsolationKernel {
		return backend.NotSupported(d.b.Name(), "isolate", "")
	}
	v, err := d.s.Run(ctx, sandbox.Command{Shell: "id; echo $(ls /)"})
	if err != nil {
		return err
	}
	tell("$ id; echo $(ls /)\n%s", v.Stdout)
	if inside == hostKernel() {
		return unexpected("it is the host's kernel")
	}
	return nil
}

func (d *demo) state(ctx context.Context, tell func(string, ...any)) error {
	if _, err := d.cell(ctx, d.s, "x = 41\nwords = ['a', 'machine', 'of', 'its', 'own']"); err != nil {
		return err
	}
	v, err := d.s.Cell(ctx, sandbox.Cell{Code: "y = x + 1\n1/0"})
	if err != nil {
		return err
	}
	if v.Error == nil || v.Error.Name != "ZeroDivisionError" || !v.StateKept {
		return unexpected("an exception that was told as %s", v)
	}
	tell(">>> x = 41")
	tell(">>> y = x + 1; 1/0   # %s: %s", v.Error.Name, v.Error.Value)
	got, err := d.cell(ctx, d.s, "(y, ' '.join(words))")
	if err != nil {
		return err
	}
	tell(">>> (y, ' '.join(words))\n%s", got)
	return expect(got, "(42, 'a machine of its own')")
}

func expect(got, want string) error {
	if got != want {
		return unexpected("%q, and not %q", got, want)
	}
	return nil
}

func (d *demo) files(ctx context.Context, tell func(string, ...any)) error {
	g, err := d.s.Guest(ctx)
	if err != nil {
		return err
	}
	in, out := g.Home+"/numbers.csv", g.Home+"/sum.txt"
	if err := d.s.Files().WriteAll(ctx, in, []byte("3\n4\n5\n"), sandbox.WriteOptions{}); err != nil {
		return err
	}
	if _, err := d.cell(ctx, d.s, fmt.Sprintf("open(%q, 'w').write(str(sum(map(int, open(%q)))))", out, in)); err != nil {
		return err
	}
	got, err := d.s.Files().ReadAll(ctx, out)
	if err != nil {
		return err
	}
	tell("wrote %s, summed it up inside, read %s: %s", in, out, got)
	if _, err := os.Stat(out); err == nil && d.b.Capabilities(ctx).Isolation > sandbox.IsolationNone {
		return unexpected("%s is on the host", out)
	}
	return expect(string(got), "12")
}

func (d *demo) limit(ctx context.Context, tell func(string, ...any)) error {
	v, err := d.s.Run(ctx, sandbox.Command{Shell: "echo working; (setsid sleep 1000 &) ; sleep 1000", RunOptions: sandbox.RunOptions{Timeout: demoTimeout}})
	if err != nil {
		return err
	}
	if v.Ended != v1.EndedTimeout {
		return unexpected("a command without end gave %s", v)
	}
	tell("$ (setsid sleep 1000 &); sleep 1000\n%s; it had printed %q; everything it started has ended too", v, strings.TrimSpace(v.Stdout.String()))
	v, err = d.s.Cell(ctx, sandbox.Cell{Code: "while True: pass", RunOptions: sandbox.RunOptions{Timeout: demoTimeout / 2}})
	if err != nil {
		return err
	}
	if v.Ended != v1.EndedTimeout || !v.StateKept {
		return unexpected("a loop without end gave %s, state kept: %t", v, v.StateKept)
	}
	got, err := d.cell(ctx, d.s, "x")
	if err != nil {
		return err
	}
	tell(">>> while True: pass\n%s; x is still %s", v, got)
	return expect(got, "41")
}

func (d *demo) snapshot(ctx context.Context, tell func(string, ...any)) error {
	snap, err := d.s.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		return err
	}
	d.snap = snap
	tell("snapshot %s, %.1f MB, x is 41 in it", snap.ID, float64(snap.Size)/1e6)
	return nil
}

func (d *demo) restore(ctx context.Context, tell func(string, ...any)) error {
	if d.snap == nil {
		return backend.NotSupported(d.b.Name(), "restore", "")
	}
	if _, err := d.cell(ctx, d.s, "x = 'changed since'"); err != nil {
		return err
	}
	old, err := sandbox.Restore(ctx, d.b, d.snap, sandbox.RestoreOptions{})
	if err != nil {
		return err
	}
	d.w.guard(old)
	defer d.a.close(old)
	now, err := d.cell(ctx, d.s, "x")
	if err != nil {
		return err
	}
	then, err := d.cell(ctx, old, "x")
	if err != nil {
		return err
	}
	tell("x in the running session: %s; in the snapshot brought back to life: %s", now, then)
	return expect(then, "41")
}

func (d *demo) fork(ctx context.Context, tell func(string, ...any)) error {
	if _, err := d.cell(ctx, d.s, "import random; x = 100; path = []"); err != nil {
		return err
	}
	start := time.Now()
	forks, err := d.s.Fork(ctx, 2)
	for _, f := range forks {
		d.w.guard(f)
		defer d.a.close(f)
	}
	if err != nil {
		return err
	}
	tell("both alive after %s", short(time.Since(start)))
	var seen []string
	for i, f := range forks {
		way := []string{"left", "right"}[i]
		got, err := d.cell(ctx, f, fmt.Sprintf("x += %d; path.append(%q); (x, path, random.random())", i+1, way))
		if err != nil {
			return err
		}
		if !strings.HasPrefix(got, fmt.Sprintf("(%d, ['%s'], ", 101+i, way)) {
			return unexpected("fork %d has %s", i+1, got)
		}
		tell("fork %d: x, path, random.random() = %s", i+1, got)
		seen = append(seen, got[strings.LastIndex(got, " "):])
	}
	if seen[0] == seen[1] {
		return unexpected("both forks drew the same random number")
	}
	got, err := d.cell(ctx, d.s, "(x, path)")
	if err != nil {
		return err
	}
	tell("parent: x, path = %s", got)
	return expect(got, "(100, [])")
}

// cleanUp removes what the demo made.
func (d *demo) cleanUp(ctx context.Context) {
	if d.snap != nil {
		if err := d.b.DeleteSnapshot(context.WithoutCancel(ctx), d.snap.ID); err != nil {
			d.a.report(err)
		}
	}
	if d.s != nil {
		d.a.close(d.s)
	}
}

func (d *demo) close(ctx context.Context, failed bool, took time.Duration) {
	if failed {
		d.print("\n%s not everything worked; recluse doctor may know why\n", d.p.bad)
		return
	}
	left := "nothing of it is left"
	if list, err := d.b.List(ctx); err == nil && d.s != nil {
		for _, s := range list {
			if s.ID == d.s.ID() {
				left = "but sandbox " + s.ID + " is still there"
			}
		}
	}
	d.print("\n%s all of it in %s, and %s. Now try:\n\n", d.p.good, short(took), left)
	for _, l := range []string{"recluse exec --python 'sum(range(10))'", "recluse exec -- bash -c 'id; ls /'", "recluse shell", "recluse doctor"} {
		d.print("     %s\n", l)
	}
	d.print("\n")
}
