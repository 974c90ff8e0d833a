package doctor

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
)

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	p := console.NewPaint(w)
	fmt.Fprintf(w, "%s, %s\n\n", r.System, r.User)
	table := func(rows func(row func(mark, name, detail, remedy string))) {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		rows(func(mark, name, detail, remedy string) {
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", mark, name, detail)
			if remedy != "" {
				fmt.Fprintf(tw, "  %s\t\tremedy: %s\n", p.None, remedy)
			}
		})
		_ = tw.Flush() // an error of our own output cannot be reported
	}
	table(func(row func(mark, name, detail, remedy string)) {
		for _, pr := range []struct {
			name string
			p    *Program
		}{{"engine", r.Engine}, {"guest", r.Guest}} {
			if e := pr.p.Error; e != nil {
				row(p.Bad, pr.name, e.Message, e.Remedy)
			} else {
				row(p.Good, pr.name, pr.p.String(), "")
			}
		}
		for _, f := range r.Checks {
			row(p.Mark(f.OK), f.Name, f.Detail, f.Remedy)
		}
	})
	fmt.Fprintln(w, "\nbackends, in the order of preference")
	table(func(row func(mark, name, detail, remedy string)) {
		for _, t := range r.Backends {
			mark := p.Bad
			switch {
			case t.Chosen:
				mark = p.Good
			case t.Health.OK:
				mark = p.None
			}
			reason := t.Reason
			if t.Chosen {
				reason = "selected: " + reason
			}
			row(mark, t.Name, reason, t.Remedy)
			if t.Health.OK {
				if remark := t.Health.Reason; remark != "" && remark != t.Reason {
					row(p.None, "", remark, "")
				}
				row(p.None, "", features(t.Capabilities), "")
				row(p.None, "", startAndLifetime(t.Capabilities), "")
				for _, n := range t.Capabilities.Notes {
					row(p.None, "", n, "")
				}
			}
		}
	})
	fmt.Fprintln(w)
	switch t := r.Trial; {
	case t == nil:
		fmt.Fprintf(w, "%s no backend is selected\n", p.Bad)
		if r.Error != nil && r.Error.Remedy != "" && r.Error.Code != v1.CodeNoBackend {
			fmt.Fprintf(w, "  %s; remedy: %s\n", r.Error.Message, r.Error.Remedy)
		}
	case !t.OK:
		fmt.Fprintf(w, "%s trial sandbox failed: %s\n", p.Bad, t.Error)
		if t.Error.Remedy != "" {
			fmt.Fprintf(w, "  remedy: %s\n", t.Error.Remedy)
		}
	case t.Python == "":
		fmt.Fprintf(
			w,
			"%s trial sandbox started in %s: kernel %s, no Python, so only commands can run\n",
			p.Good,
			console.Short(t.First),
			t.Kernel,
		)
	default:
		fmt.Fprintf(w, "%s trial sandbox ran Python %s after %s, the next cell in %s: kernel %s\n",
			p.Good, t.Python, console.Short(t.First), console.Short(t.Warm), t.Kernel)
	}
	if n := len(r.Sandboxes); n > 0 {
		fmt.Fprintf(w, "  %s:", console.Plural(n, "sandbox of this user exists", "sandboxes of this user exist"))
		for _, s := range r.Sandboxes[:min(n, 10)] {
			fmt.Fprintf(w, " %s", s.ID)
		}
		fmt.Fprintln(w)
	}
}

// startAndLifetime returns a line about the start time and the maximum lifetime of a sandbox.
func startAndLifetime(c sandbox.Capabilities) string {
	lifetime := "no maximum lifetime"
	if c.MaxLifetime > 0 {
		lifetime = "maximum lifetime " + c.MaxLifetime.String()
	}
	return "the first sandbox starts in about " + c.ColdStart.String() + "; " + lifetime
}

// features returns a line about what a backend is, can and cannot do. Except for snapshots, the names are those in
// JSON.
func features(c sandbox.Capabilities) string {
	var can, cannot []string
	add := func(name string, ok bool) {
		if ok {
			can = append(can, name)
		} else {
			cannot = append(cannot, name)
		}
	}
	add("snapshots of files", c.Snapshots == sandbox.SnapshotsFiles || c.Snapshots == sandbox.SnapshotsMemory)
	add("snapshots of memory", c.Snapshots == sandbox.SnapshotsMemory)
	for field, value := range reflect.ValueOf(c).Fields() {
		// What is left out of JSON if it is false, such as emulated, is not an ability.
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		if value.Kind() == reflect.Bool && option == "" {
			add(strings.ReplaceAll(name, "_", " "), value.Bool())
		}
	}
	s := "isolation: " + c.Isolation.String()
	if c.Emulated {
		s += ", emulated"
	}
	s += "; egress: " + string(c.Egress) + "; can: " + strings.Join(can, ", ")
	if len(cannot) > 0 {
		s += "; cannot: " + strings.Join(cannot, ", ")
	}
	return s
}
