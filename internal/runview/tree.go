package runview

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// maxChildren is the number of child runs of one turn that are shown. A run may have thousands.
const maxChildren = 4

// tree is the state of a run, as its events describe it.
type tree struct {
	run, query, model string
	started           time.Time
	contexts          []v1.ContextNote
	bytes             int64
	usage             llm.Usage
	openCalls         int // model calls in progress
	nodes             map[string]*node
	note              string // the last event that is not part of a turn, in words
	answer            *v1.RunAnswer
	ended             *rlm.Result
	last              time.Time
	forModel          bool // see Lines.ForModel
}

// node is the run itself or one of its child runs.
type node struct {
	id, title string
	turns     []*turn
	plain     *call // a plain call, without turns; nil: none
	done      bool
	reason    rlm.Reason
}

// turn is one turn of a node.
type turn struct {
	n                        int
	started, ended           time.Time
	waiting                  bool // for the reply of the model
	reply                    int64
	cell                     *cell
	cells                    int
	callsStarted, callsEnded int // sub-calls
	cached                   int
	failed                   int
	tokens                   int64
	tools                    int // tool calls
	children                 []*node
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

// apply updates the tree with an event. It ignores events that it cannot decode, because a newer program wrote them.
func (t *tree) apply(e *v1.RunEvent) {
	t.last = e.Time
	if t.started.IsZero() {
		t.started = e.Time
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
		n.turns = append(n.turns, &turn{n: e.Turn, started: e.Time})
	case v1.KindTurnEnded:
		if u := n.last(); u != nil {
			u.ended, u.waiting = e.Time, false
		}
	case v1.KindCellStarted, v1.KindCellEnded:
		n.applyCell(e)
	case v1.KindCallStarted, v1.KindCallEnded:
		t.applyCall(n, e)
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
			t.note = toolNote(d)
			if u := n.last(); u != nil {
				u.tools++
			}
		}
	case v1.KindGate:
		var d v1.Judged
		if e.Decode(&d) == nil {
			t.note = gateNote(d, t.forModel)
		}
	case v1.KindCompacted:
		t.note = "old turns of the conversation were replaced by a summary"
	case v1.KindSnapshot:
		t.note = "a snapshot was taken"
	case v1.KindResumed:
		var d v1.Resumed
		if e.Decode(&d) == nil {
			t.note = resumedNote(d)
			t.ended, t.openCalls = nil, 0
			if u := n.last(); u != nil && u.ended.IsZero() { // the turn is repeated
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

// toolNote describes a tool call in one line.
func toolNote(d v1.ToolUsed) string {
	if d.Error != "" {
		return clip(oneLine(fmt.Sprintf("tool %s failed: %s", d.Name, d.Error)), lineWidth)
	}
	return clip(oneLine(fmt.Sprintf("tool %s: %s", d.Name, d.Value)), lineWidth)
}

// gateNote describes the decision of the gate in one line, with its first finding. The first line of the reason is left
// out, because it only says whether the code was run.
func gateNote(d v1.Judged, forModel bool) string {
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

// resumedNote describes in one line how a run was resumed.
func resumedNote(d v1.Resumed) string {
	what := map[string]string{
		rlm.HowAttached: "its sandbox still ran",
		rlm.HowRestored: "its sandbox was restored from a snapshot",
		rlm.HowRebuilt:  "it has a new sandbox",
	}[d.How]
	s := fmt.Sprintf("resumed after turn %d: %s", d.Turn, what)
	if d.Rerun > 0 {
		s += fmt.Sprintf(", and %s run again", count(int64(d.Rerun), "turn was", "turns were"))
	}
	if d.Model != "" {
		s += "; now with " + d.Model
	}
	return s
}

// node returns the node with the ID, and adds it if it is new.
func (t *tree) node(id string) *node {
	n := t.nodes[id]
	if n == nil {
		n = &node{id: id}
		t.nodes[id] = n
	}
	return n
}

// last returns the last turn of the node, or nil.
func (n *node) last() *turn {
	if len(n.turns) == 0 {
		return nil
	}
	return n.turns[len(n.turns)-1]
}

func (n *node) applyCell(e *v1.RunEvent) {
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

func (t *tree) applyCall(n *node, e *v1.RunEvent) {
	u := n.last()
	if e.Kind == v1.KindCallStarted {
		var d v1.CallStarted
		if e.Decode(&d) != nil {
			return
		}
		t.openCalls++
		switch {
		case d.Call == v1.CallPlain:
			n.plain = &call{model: d.Model}
		case u == nil:
		case d.Call == v1.CallSub:
			u.callsStarted++
		default:
			u.waiting = true
		}
		return
	}
	var d v1.CallEnded
	if e.Decode(&d) != nil {
		return
	}
	t.openCalls = max(0, t.openCalls-1)
	t.usage = t.usage.Add(d.Usage)
	switch {
	case d.Call == v1.CallPlain && n.plain != nil:
		n.plain.done = true
	case u == nil:
	case d.Call == v1.CallSub:
		u.callsEnded++
		u.callsStarted = max(u.callsStarted, u.callsEnded) // a call that the cache answered has no start event
		u.tokens += d.Usage.Tokens()
		if d.Cached {
			u.cached++
		}
		if d.Error != nil {
			u.failed++
		}
	default:
		u.waiting, u.reply = false, d.Usage.Output
	}
}

// codeLine returns the first line of code that is not a comment or an import, and the number of other lines that are
// not empty.
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
