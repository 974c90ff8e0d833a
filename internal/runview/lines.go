package runview

import (
	"fmt"
	"io"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// lineWidth is the number of characters of a code line or an answer that a line shows.
const lineWidth = 100

// Lines prints a run as plain lines. Model calls from code have no lines of their own; the line of their cell has their
// number.
type Lines struct {
	w   io.Writer
	run *run
}

// NewLines returns Lines that print to w. Write errors are ignored: the run continues without a reader.
func NewLines(w io.Writer) *Lines { return &Lines{w: w, run: newRun()} }

// ForModel omits the command that grants refused code, because a model reads the lines. It returns l.
func (l *Lines) ForModel() *Lines {
	l.run.forModel = true
	return l
}

// Event prints the lines for an event, if there are any.
func (l *Lines) Event(e v1.RunEvent) {
	if e.Kind == v1.KindProgress {
		return
	}
	l.run.note = ""
	l.run.apply(&e)
	n := l.run.node(e.Node)
	switch e.Kind {
	case v1.KindRunStarted:
		l.print(&e, "run %s with %s: %s", l.run.id, l.run.model, clip(oneLine(l.run.query), lineWidth))
	case v1.KindContext:
		if e.Depth == 0 {
			for _, c := range l.run.contexts {
				l.print(&e, "%s", contextLine(c))
			}
		}
	case v1.KindCellStarted:
		if c := n.cell(); c != nil {
			line, more := codeLine(c.code)
			l.print(&e, "turn %d: %s: %s%s", n.last().n, c.lang, clip(oneLine(line), lineWidth), moreLines(more))
		}
	case v1.KindCellEnded:
		if c := n.cell(); c != nil {
			l.print(&e, "turn %d: %s", n.last().n, strings.Join(outcome(c), ", "))
		}
	case v1.KindChildStarted:
		var d v1.ChildStarted
		if e.Decode(&d) == nil {
			l.print(&e, "child run %s: %s characters: %s", d.Node, thousands(d.Chars), clip(oneLine(d.Preview), lineWidth))
		}
	case v1.KindChildEnded:
		var d v1.ChildEnded
		if e.Decode(&d) == nil {
			l.print(&e, "child run %s: %s", d.Node, childEnd(l.run.node(d.Node)))
		}
	case v1.KindCallEnded:
		var d v1.CallEnded
		if e.Decode(&d) == nil && d.Error != nil {
			l.print(&e, "a call of %s failed: %s", d.Model, clip(oneLine(d.Error.Message), lineWidth))
		}
	case v1.KindRunEnded:
		if r := l.run.ended; r != nil {
			l.print(&e, "ended: %s", r.Reason)
			for _, s := range Summary(r) {
				l.print(&e, "%s", s)
			}
		}
	default: // a note, or nothing
		if l.run.note != "" {
			l.print(&e, "%s", l.run.note)
		}
	}
}

// childEnd returns the answer of a child run, or why it has none.
func childEnd(n *node) string {
	if n.reason == v1.ReasonAnswered {
		return "answered: " + clip(oneLine(n.answer), lineWidth)
	}
	return clip(endText(n.reason, n.err), lineWidth)
}

// Close does nothing.
func (l *Lines) Close() {}

func (l *Lines) print(e *v1.RunEvent, format string, args ...any) {
	_, _ = fmt.Fprintf(l.w, "%7s  %s%s\n",
		elapsed(e.Time.Sub(l.run.started)), strings.Repeat("  ", e.Depth), fmt.Sprintf(format, args...))
}

func moreLines(n int) string {
	if n == 0 {
		return ""
	}
	return " (" + count(int64(n), "more line", "more lines") + ")"
}

// outcome returns how a cell ended, and the model and tool calls of its code.
func outcome(c *cell) []string {
	parts := []string{"ok in " + elapsed(c.wall)}
	if !c.ok {
		parts[0] = fmt.Sprintf("%s in %s", failureText(c), elapsed(c.wall))
	}
	if c.produced > 0 {
		parts = append(parts, thousands(c.produced)+" bytes printed")
	}
	if c.finished > 0 {
		parts = append(parts, count(int64(c.finished), "call", "calls"), count(c.tokens, "token", "tokens"))
	}
	if c.failed > 0 {
		parts = append(parts, thousands(int64(c.failed))+" of them failed")
	}
	if n := int64(len(c.tools)); n > 0 {
		parts = append(parts, count(n, "tool call", "tool calls"))
	}
	return parts
}

// failureText returns the last line of the error of a cell, or how the cell ended.
func failureText(c *cell) string {
	if c.err != "" {
		lines := strings.Split(strings.TrimSpace(c.err), "\n")
		return clip(oneLine(lines[len(lines)-1]), lineWidth)
	}
	return "ended by " + c.ended
}
