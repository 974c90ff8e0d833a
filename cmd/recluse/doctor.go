package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// tryTimeout bounds the sandbox that doctor makes to see that it works.
const tryTimeout = 20 * time.Second

// diagnosis is what doctor finds.
type diagnosis struct {
	System    string          `json:"system"`
	User      string          `json:"user"`
	Checks    []fact          `json:"checks"`
	Chosen    string          `json:"chosen,omitempty"`
	Backends  []backend.Tried `json:"backends"`
	Trial     *trial          `json:"trial,omitempty"`
	Sandboxes []sandbox.Info  `json:"sandboxes,omitempty"`
	Engine    *program        `json:"engine"`
	Guest     *program        `json:"guest"`
	Error     *failure        `json:"error,omitempty"` // why nothing would be chosen
}

// fact is one thing about this machine.
type fact struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// trial is a sandbox that was really made.
type trial struct {
	OK     bool          `json:"ok"`
	Kernel string        `json:"kernel,omitempty"`
	Python string        `json:"python,omitempty"`
	First  time.Duration `json:"first_cell_ns"` // from nothing to the first result
	Warm   time.Duration `json:"warm_cell_ns"`
	Error  *failure      `json:"error,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var f backendFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what works on this machine, what would be chosen, and why not the others",
		Long: `Say what works on this machine, what would be chosen, and why not the others.

The exit status is 0 when something that isolates works, else 1.`,
		Example: `  recluse doctor
  recluse doctor --json
  recluse doctor --backend local --allow-no-isolation`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), &f) },
	}
	f.register(cmd.Flags())
	return cmd
}

func (a *app) doctor(ctx context.Context, f *backendFlags) error {
	req, err := f.requirements(a)
	if err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	d := &diagnosis{
		System: systemName(), User: userName(), Checks: append(directories(), hostChecks(ctx)...),
		Engine: findProgram(ctx, bundle.Engine), Guest: findProgram(ctx, bundle.Guest),
	}
	backends := a.backends(ctx)
	req.All = true
	b, tried, err := backend.Select(ctx, backends, req)
	d.Backends = tried
	if err != nil {
		f := failureOf(cause(ctx, err))
		d.Error = &f
	}
	isolated := false
	if b != nil {
		d.Chosen = b.Name()
		d.Trial = a.try(ctx, w, b)
		for _, t := range tried {
			isolated = isolated || t.Chosen && t.Capabilities.Isolation > sandbox.IsolationNone && d.Trial.OK
		}
		if d.Sandboxes, err = b.List(ctx); err != nil {
			d.Checks = append(d.Checks, fact{Name: "sandboxes", Detail: err.Error()})
		}
	}
	if a.json {
		if err := writeJSON(a.stdout, d); err != nil {
			return err
		}
	} else {
		a.printDiagnosis(d)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !isolated {
		return exit(1)
	}
	return nil
}

// try makes a sandbox and runs something in it.
func (a *app) try(ctx context.Context, w *watch, b sandbox.Backend) *trial {
	t := &trial{}
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		start := time.Now()
		s, err := sandbox.Open(ctx, b, sandbox.Spec{})
		if err != nil {
			return err
		}
		w.guard(s)
		defer a.close(s)
		g, err := s.Guest(ctx)
		if err != nil {
			return err
		}
		t.Kernel = g.Kernel
		if g.Python == "" {
			t.First = time.Since(start)
			return nil
		}
		v, err := s.Cell(ctx, sandbox.Cell{Code: "import platform; platform.python_version()"})
		if err != nil {
			return err
		}
		t.First = time.Since(start)
		if !v.OK() {
			return &v1.Error{Code: v1.CodeInternal, Op: "try a cell", Message: v.String()}
		}
		t.Python = strings.Trim(v.Result.Text(), "'")
		start = time.Now()
		if v, err = s.Cell(ctx, sandbox.Cell{Code: "1+1"}); err != nil {
			return err
		}
		t.Warm = time.Since(start)
		if got := v.Result.Text(); got != "2" {
			return &v1.Error{Code: v1.CodeInternal, Op: "try a cell", Message: fmt.Sprintf("1+1 gave %q", got)}
		}
		return nil
	}()
	if err != nil {
		f := failureOf(err)
		t.Error = &f
	}
	t.OK = err == nil
	return t
}

func (a *app) printDiagnosis(d *diagnosis) {
	p := a.paint()
	fmt.Fprintf(a.stdout, "%s, %s\n\n", d.System, d.User)
	table := func(rows func(row func(mark, name, detail, remedy string))) {
		tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		rows(func(mark, name, detail, remedy string) {
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", mark, name, detail)
			if remedy != "" {
				fmt.Fprintf(tw, "  %s\t\tremedy: %s\n", p.none, remedy)
			}
		})
		_ = tw.Flush() // to our own output, where nothing can be told
	}
	table(func(row func(mark, name, detail, remedy string)) {
		for _, pr := range []struct {
			name string
			p    *program
		}{{"engine", d.Engine}, {"guest", d.Guest}} {
			if e := pr.p.Error; e != nil {
				row(p.bad, pr.name, e.Message, e.Remedy)
			} else {
				row(p.good, pr.name, pr.p.String(), "")
			}
		}
		for _, f := range d.Checks {
			row(p.mark(f.OK), f.Name, f.Detail, f.Remedy)
		}
	})
	fmt.Fprintln(a.stdout, "\nbackends, in order")
	table(func(row func(mark, name, detail, remedy string)) {
		for _, t := range d.Backends {
			mark := p.bad
			switch {
			case t.Chosen:
				mark = p.good
			case t.Health.OK:
				mark = p.none
			}
			reason := t.Reason
			if t.Chosen {
				reason = "would be chosen: " + reason
			}
			row(mark, t.Name, reason, t.Remedy)
			if t.Health.OK {
				row(p.none, "", "isolation by "+t.Capabilities.Isolation.String()+"; "+able(t.Capabilities), "")
				row(p.none, "", toExpect(t.Capabilities), "")
				for _, n := range t.Capabilities.Notes {
					row(p.none, "", n, "")
				}
			}
		}
	})
	fmt.Fprintln(a.stdout)
	switch t := d.Trial; {
	case t == nil:
		fmt.Fprintf(a.stdout, "%s nothing would be chosen\n", p.bad)
		if d.Error != nil && d.Error.Remedy != "" && d.Error.Code != v1.CodeNoBackend {
			fmt.Fprintf(a.stdout, "  %s; remedy: %s\n", d.Error.Message, d.Error.Remedy)
		}
	case !t.OK:
		fmt.Fprintf(a.stdout, "%s a sandbox was tried, and failed: %s\n", p.bad, strings.Join(nonEmpty(t.Error.Op, t.Error.Message, t.Error.Cause), ": "))
		if t.Error.Remedy != "" {
			fmt.Fprintf(a.stdout, "  remedy: %s\n", t.Error.Remedy)
		}
	case t.Python == "":
		fmt.Fprintf(a.stdout, "%s a sandbox was made in %s: kernel %s, no Python, so commands only\n", p.good, short(t.First), t.Kernel)
	default:
		fmt.Fprintf(a.stdout, "%s a sandbox was made and ran Python %s in %s, the next cell in %s: kernel %s\n", p.good, t.Python, short(t.First), short(t.Warm), t.Kernel)
	}
	if n := len(d.Sandboxes); n > 0 {
		fmt.Fprintf(a.stdout, "  %s of this user's:", plural(n, "sandbox exists", "sandboxes exist"))
		for _, s := range d.Sandboxes[:min(n, 10)] {
			fmt.Fprintf(a.stdout, " %s", s.ID)
		}
		fmt.Fprintln(a.stdout)
	}
}

func nonEmpty(parts ...string) []string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}

// toExpect says how long a sandbox takes to come, and may stay.
func toExpect(c sandbox.Capabilities) string {
	lives := "it lives as long as it is wanted"
	if c.MaxLifetime > 0 {
		lives = "it lives " + c.MaxLifetime.String() + " at most"
	}
	return "a first sandbox takes about " + c.ColdStart.String() + " to make; " + lives
}

// able lists what a backend can and cannot do.
func able(c sandbox.Capabilities) string {
	var can, cannot []string
	for _, x := range []struct {
		name string
		ok   bool
	}{
		{"snapshots of files", c.Snapshots == sandbox.SnapshotsFiles || c.Snapshots == sandbox.SnapshotsMemory},
		{"snapshots of memory", c.Snapshots == sandbox.SnapshotsMemory},
		{"network off", c.NetworkOff},
		{"network policy", c.NetworkPolicy},
		{"memory limit", c.MemoryLimit},
		{"cpu limit", c.CPULimit},
		{"process limit", c.ProcessLimit},
		{"disk limit", c.DiskLimit},
		{"images", c.Images},
		{"mounts", c.Mounts},
		{"python", c.Python},
		{"bash", c.Bash},
		{"terminal", c.PTY},
	} {
		if x.ok {
			can = append(can, x.name)
		} else {
			cannot = append(cannot, x.name)
		}
	}
	s := "can: " + strings.Join(can, ", ")
	if len(cannot) > 0 {
		s += "; cannot: " + strings.Join(cannot, ", ")
	}
	return s
}

// directories says where files are kept.
func directories() []fact {
	var out []fact
	for _, d := range []struct {
		name string
		find func() (string, error)
	}{{"data", xdg.Data}, {"cache", xdg.Cache}} {
		path, err := d.find()
		if err != nil {
			f := failureOf(err)
			out = append(out, fact{Name: d.name, Detail: strings.Join(nonEmpty(f.Message, f.Cause), ": "), Remedy: f.Remedy})
			continue
		}
		out = append(out, fact{Name: d.name, OK: true, Detail: path + freeSpace(path)})
	}
	return out
}

func userName() string {
	if runtime.GOOS == "windows" {
		return "user " + os.Getenv("USERNAME")
	}
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Sprintf("uid %d", uid)
	}
	return "root"
}
