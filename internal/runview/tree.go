package runview

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// maxChildren is how many children of one turn are listed; a run may have thousands.
const maxChildren = 4

// tree is what is known of a run from its events.
type tree struct {
	run, query, model string
	began             time.Time
	contexts          []v1.ContextNote
	bytes             int64
	usage             llm.Usage
	open              int // model calls under way
	nodes             map[string]*node
	note              string // the last thing of interest that is no turn
	answer            *v1.RunAnswer
	ended             *rlm.Result
	last              time.Time
	forModel          bool // a model reads it
}

// node is the run itself or one of its children.
type node struct {
	id, title string
	turns     []*turn
	plain     *call // asked directly, without turns
	done      bool
	reason    rlm.Reason
}

// turn is one step of a node.
type turn struct {
	n            int
	began, ended time.Time
	thinking     bool // the model is asked for it
	reply        int64
	cell         *cell
	cells        int
	asked, heard int // calls that code made
	cached       int
	failed       int
	tokens       int64
	tools        int // tool calls that code made
	children     []*node
}

type cell struct {
	lang, code string
	running    bool
	ok         bool
	ended      string
	err        string
	output     int64
	wall       time.Duration
}

type call struct {
	model string
	done  bool
}

func newTree() *tree { return &tree{nodes: map[string]*node{}} }

// take learns from one event. An event that cannot be read is of a newer program, and is passed over.
func (t *tree) take(e *v1.RunEvent) {
	t.last = e.Time
	if t.began.IsZero() {
		t.began = e.Time
	}
	n := t.node(e.Node)
	switch e.Kind {
	case v1.KindRunStarted:
		var d v1.RunStarted
		if e.Decode(&d) == nil {
			t.run, t.query, t.model = d.Run, d.Query, d.Model
		}
	case v1.KindContext:
		var d v1.ContextLoaded
		if e.Decode(&d) == nil && e.Depth == 0 {
			t.contexts, t.bytes = d.Contexts, d.Bytes
		}
	case v1.KindTurnStarted:
		n.turns = append(n.turns, &turn{n: e.Turn, began: e.Time})
	case v1.KindTurnEnded:
		if u := n.last(); u != nil {
			u.ended, u.thinking = e.Time, false
		}
	case v1.KindCellStarted, v1.KindCellEnded:
		n.takeCell(e)
	case v1.KindCallStarted, v1.KindCallEnded:
		t.takeCall(n, e)
	case v1.KindChildStarted:
		var d v1.ChildStarted
		if e.Decode(&d) == nil {
			c := t.node(d.Node)
			c.title = d.Preview
			if u := n.last(); u != nil {
				u.children = append(u.children, c)
			}
		}
	case v1.KindChildEnded:
		var d v1.ChildEnded
		if e.Decode(&d) == nil {
			c := t.node(d.Node)
			c.done, c.reason = true, d.Reason
		}
	case v1.KindTool:
		var d v1.ToolUsed
		if e.Decode(&d) == nil {
			t.note = toolUsed(d)
			if u := n.last(); u != nil {
				u.tools++
			}
		}
	case v1.KindGate:
		var d v1.Judged
		if e.Decode(&d) == nil {
			t.note = judged(d, t.forModel)
		}
	case v1.KindCompacted:
		t.note = "the conversation was shortened to a summary"
	case v1.KindSnapshot:
		t.note = "a snapshot was taken"
	case v1.KindResumed:
		var d v1.Resumed
		if e.Decode(&d) == nil {
			t.note = resumed(d)
			t.ended, t.open = nil, 0
			if u := n.last(); u != nil && u.ended.IsZero() { // it is done again
				n.turns = n.turns[:len(n.turns)-1]
			}
		}
	case v1.KindAnswer:
		var d v1.RunAnswer
		if e.Decode(&d) == nil && e.Depth == 0 {
			t.answer = &d
		}
	case v1.KindRunEnded:
		var d rlm.Result
		if e.Decode(&d) == nil {
			t.ended, t.usage = &d, d.Usage
		}
	case v1.KindSandbox: // not shown
	}
}

// toolUsed describes a tool call in one line.
func toolUsed(d v1.ToolUsed) string {
	if d.Error != "" {
		return clip(oneLine(fmt.Sprintf("tool %s failed: %s", d.Name, d.Error)), lineWidth)
	}
	return clip(oneLine(fmt.Sprintf("tool %s: %s", d.Name, d.Value)), lineWidth)
}

// judged tells what the gate said: its first finding, for the first line says only whether the code was run.
func judged(d v1.Judged, forModel bool) string {
	if d.ApprovedBy != "" {
		return "the gate: " + oneLine(d.ApprovedBy) + " approved this code"
	}
	what := ""
	for line := range strings.Lines(d.Reason) {
		if found, ok := strings.CutPrefix(line, "- "); ok {
			what = ": " + clip(oneLine(found), lineWidth)
			break
		}
	}
	switch {
	case d.Approval == "":
	case forModel:
		what += " (approval " + d.Approval + ")"
	default:
		what += " (" + v1.GrantCommand + d.Approval + ")"
	}
	return "the gate: " + string(d.Action) + what
}

func resumed(d v1.Resumed) string {
	what := map[string]string{
		rlm.HowAttached: "its sandbox was still there", rlm.HowRestored: "its sandbox was restored from a snapshot", rlm.HowRebuilt: "its sandbox was made anew",
	}[d.How]
	s := fmt.Sprintf("resumed behind turn %d: %s", d.Turn, what)
	if d.Rerun > 0 {
		s += fmt.Sprintf(", and %s run again", count(int64(d.Rerun), "turn was", "turns were"))
	}
	if d.Model != "" {
		s += "; now with " + d.Model
	}
	return s
}

func (t *tree) node(id string) *node {
	n := t.nodes[id]
	if n == nil {
		n = &node{id: id}
		t.nodes[id] = n
	}
	return n
}

func (n *node) last() *turn {
	if len(n.turns) == 0 {
		return nil
	}
	return n.turns[len(n.turns)-1]
}

func (n *node) takeCell(e *v1.RunEvent) {
	u := n.last()
	if u == nil {
		return
	}
	if e.Kind == v1.KindCellStarted {
		var d v1.CellStarted
		if e.Decode(&d) == nil {
			u.cell, u.cells = &cell{lang: d.Lang, code: d.Code, running: true}, u.cells+1
		}
		return
	}
	var d v1.CellEnded
	if e.Decode(&d) == nil && u.cell != nil {
		u.cell.running, u.cell.ok, u.cell.ended, u.cell.err = false, d.OK, string(d.Ended), d.Error
		u.cell.output, u.cell.wall = d.Produced, d.Wall
	}
}

func (t *tree) takeCall(n *node, e *v1.RunEvent) {
	u := n.last()
	if e.Kind == v1.KindCallStarted {
		var d v1.CallStarted
		if e.Decode(&d) != nil {
			return
		}
		t.open++
		switch {
		case d.Call == v1.CallPlain:
			n.plain = &call{model: d.Model}
		case u == nil:
		case d.Call == v1.CallSub:
			u.asked++
		default:
			u.thinking = true
		}
		return
	}
	var d v1.CallEnded
	if e.Decode(&d) != nil {
		return
	}
	t.open = max(0, t.open-1)
	t.usage = t.usage.Add(d.Usage)
	switch {
	case d.Call == v1.CallPlain && n.plain != nil:
		n.plain.done = true
	case u == nil:
	case d.Call == v1.CallSub:
		u.heard++
		u.asked = max(u.asked, u.heard) // one from the cache never began
		u.tokens += d.Usage.Tokens()
		if d.Cached {
			u.cached++
		}
		if d.Error != nil {
			u.failed++
		}
	default:
		u.thinking, u.reply = false, d.Usage.Output
	}
}

// codeLine is the first line of code that does something, and how many more there are.
func codeLine(code string) (line string, more int) {
	for l := range strings.Lines(code) {
		l = strings.TrimSpace(l)
		switch {
		case l == "":
		case line == "" && !strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "import ") && !strings.HasPrefix(l, "from "):
			line = l
		default:
			more++
		}
	}
	if line == "" {
		line, more = strings.TrimSpace(code), 0
	}
	return line, more
}
