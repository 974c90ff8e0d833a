package runview

import (
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

// run is a run as its events describe it. All views are made from it: the tree, the lines, the transcript and the page.
type run struct {
	id, query, model, forked string

	started, last time.Time
	paused        time.Duration // time in which no program worked on the run
	limits        v1.RunLimits
	contexts      []v1.ContextNote
	bytes, read   int64 // of the context, and of it what models have read so far
	usage         v1.Usage
	root          *node
	nodes         map[string]*node // by ID
	order         []*node          // in the order of their start
	open          map[string]*call // calls in progress, by ID
	note          string           // the last note
	ended         *rlm.Result
	forModel      bool // see Lines.ForModel
	texts         bool // keep the replies to sub-calls, of which there may be thousands
}

// node is the run itself or one of its child runs.
type node struct {
	id, title, model string
	prompt           string // id of the stored prompt: the question
	depth            int
	chars            int64 // of the question
	started, ended   time.Time
	turns            []*turn
	calls            []*call // without a turn: a plain call, and the last call after all turns
	samples          []*node // the candidates of a run with several
	notes            []string
	answer, err      string
	partial          bool
	done             bool
	reason           rlm.Reason
	usage            v1.Usage // without its children
	live             v1.Progress
}

// turn is one turn of a node.
type turn struct {
	n              int
	started, ended time.Time
	call           *call // of the model; nil: it has not started
	summary        *call // of the model, to compact the conversation before the turn; nil: none
	reply          string
	cells          []*cell
	observation    string
}

// cell is one block of a turn, with what its code called. A reply that requests calls without code has a cell without
// code.
type cell struct {
	lang, code       string
	started          time.Time
	running, ok      bool
	ended, err       string
	stdout, stderr   string
	result           string
	produced         int64
	wall             time.Duration
	calls            []*call
	tools            []*v1.ToolUsed
	children         []*node
	notes            []string
	finished, failed int   // of the calls
	tokens           int64 // of the calls
}

// call is a call of a model.
type call struct {
	id, kind, model string
	started         time.Time
	chars           int64  // of the prompt
	preview         string // beginning of the prompt
	prompt          string // id of the stored prompt
	done, cached    bool
	text, err       string
	finish          v1.Finish
	usage           v1.Usage
	wall            time.Duration
}

func newRun() *run {
	r := &run{nodes: map[string]*node{}, open: map[string]*call{}}
	r.root = r.node("0")
	return r
}

// node returns the node with the ID, and adds it if it is new.
func (r *run) node(id string) *node {
	n := r.nodes[id]
	if n == nil {
		n = &node{id: id}
		r.nodes[id] = n
		r.order = append(r.order, n)
	}
	return n
}

// worked returns how long programs have worked on the run.
func (r *run) worked(now time.Time) time.Duration {
	if r.ended != nil {
		return r.ended.Wall
	}
	return now.Sub(r.started) - r.paused
}

// last returns the last turn of the node, or nil.
func (n *node) last() *turn {
	if len(n.turns) == 0 {
		return nil
	}
	return n.turns[len(n.turns)-1]
}

// cell returns the last cell of the node, or nil.
func (n *node) cell() *cell {
	if u := n.last(); u != nil {
		return u.last()
	}
	return nil
}

// callsCell returns the cell to which calls from code belong, and adds one if the turn has none. It returns nil if the
// node has no turn.
func (n *node) callsCell() *cell {
	u := n.last()
	if u == nil {
		return nil
	}
	if len(u.cells) == 0 {
		u.cells = append(u.cells, &cell{ok: true})
	}
	return u.last()
}

// last returns the last cell of the turn, or nil.
func (u *turn) last() *cell {
	if len(u.cells) == 0 {
		return nil
	}
	return u.cells[len(u.cells)-1]
}

// waiting reports whether the turn waits for the reply of the model.
func (u *turn) waiting() bool { return u.call != nil && !u.call.done }

// ok reports whether no cell of the turn has failed.
func (u *turn) ok() bool {
	for _, c := range u.cells {
		if !c.ok && !c.running {
			return false
		}
	}
	return u.call == nil || u.call.err == ""
}

// apply updates the run with an event. It ignores events that it cannot decode, because a newer program wrote them.
func (r *run) apply(e *v1.RunEvent) {
	if e.Kind == v1.KindProgress {
		r.applyProgress(e)
		return
	}
	if r.started.IsZero() {
		r.started = e.Time
	}
	if e.Kind == v1.KindResumed && !r.last.IsZero() {
		r.paused += e.Time.Sub(r.last)
	}
	r.last = e.Time
	n := r.node(e.Node)
	n.depth = e.Depth
	if n.started.IsZero() {
		n.started = e.Time
	}
	switch e.Kind {
	case v1.KindRunStarted:
		var d v1.RunStarted
		if e.Decode(&d) == nil {
			r.id, r.query, r.model, r.limits, r.forked = d.Run, d.Query, d.Model, d.Limits, d.Forked
			n.title, n.model, n.chars = d.Query, d.Model, int64(len([]rune(d.Query)))
		}
	case v1.KindContext:
		var d v1.ContextLoaded
		if e.Decode(&d) == nil && e.Depth == 0 {
			r.contexts, r.bytes = d.Contexts, d.Bytes
		}
	case v1.KindTurnStarted:
		n.startTurn(e)
	case v1.KindTurnEnded:
		var d v1.TurnEnded
		if u := n.last(); u != nil {
			_ = e.Decode(&d) // without its data, the turn has ended all the same
			u.ended, u.reply, u.observation = e.Time, d.Reply, d.Observation
		}
	case v1.KindCellStarted, v1.KindCellEnded:
		n.applyCell(e)
	case v1.KindCallStarted:
		r.startCall(n, e)
	case v1.KindCallEnded:
		r.endCall(n, e)
	case v1.KindChildStarted, v1.KindChildEnded:
		r.applyChild(n, e)
	case v1.KindTool, v1.KindGate, v1.KindCompacted, v1.KindSnapshot:
		r.applyNote(n, e)
	case v1.KindResumed:
		r.applyResumed(n, e)
	case v1.KindAnswer:
		var d v1.RunAnswer
		if e.Decode(&d) == nil {
			n.answer = d.Content
		}
	case v1.KindRunEnded:
		var d rlm.Result
		if e.Decode(&d) == nil {
			r.ended, r.usage = &d, d.Usage
			n.done, n.ended, n.answer, n.reason, n.partial = true, e.Time, d.Answer, d.Reason, d.Partial
			if d.Reason != v1.ReasonAnswered {
				n.err = d.Message
			}
		}
	case v1.KindSandbox, v1.KindProgress: // not shown
	}
}

// startTurn adds a turn. A turn that starts again after the run was resumed replaces the interrupted one.
func (n *node) startTurn(e *v1.RunEvent) {
	for len(n.turns) > 0 && n.last().n >= e.Turn {
		n.turns = n.turns[:len(n.turns)-1]
	}
	n.turns = append(n.turns, &turn{n: e.Turn, started: e.Time})
}

func (r *run) applyProgress(e *v1.RunEvent) {
	var d v1.Progress
	if e.Decode(&d) != nil {
		return
	}
	if d.Bytes > 0 {
		r.bytes, r.read = d.Bytes, d.Read
	}
	r.node(e.Node).live = d
}

// replySoFar returns the end of the reply that the node waits for.
func (n *node) replySoFar() string {
	if u := n.last(); u != nil && u.waiting() && n.live.Call == u.call.id {
		return n.live.Text
	}
	return ""
}

func (n *node) applyCell(e *v1.RunEvent) {
	u := n.last()
	if u == nil {
		return
	}
	n.live.Output = ""
	if e.Kind == v1.KindCellStarted {
		var d v1.CellStarted
		if e.Decode(&d) == nil {
			u.cells = append(u.cells, &cell{lang: d.Lang, code: d.Code, started: e.Time, running: true})
		}
		return
	}
	var d v1.CellEnded
	if c := u.last(); e.Decode(&d) == nil && c != nil {
		c.running, c.ok, c.ended, c.err = false, d.OK, string(d.Ended), d.Error
		c.stdout, c.stderr, c.result, c.produced, c.wall = d.Stdout, d.Stderr, d.Result, d.Produced, d.Wall
	}
}

func (r *run) startCall(n *node, e *v1.RunEvent) {
	var d v1.CallStarted
	if e.Decode(&d) != nil {
		return
	}
	c := &call{
		id:      d.ID,
		kind:    d.Call,
		model:   d.Model,
		chars:   d.Chars,
		preview: d.Preview,
		prompt:  d.Prompt,
		started: e.Time,
	}
	r.open[d.ID] = c
	n.addCall(c)
}

// addCall adds a call to the node, its last turn or its last cell.
func (n *node) addCall(c *call) {
	u, cell := n.last(), n.callsCell
	switch {
	case c.kind == v1.CallSub && u != nil:
		x := cell()
		x.calls = append(x.calls, c)
	case c.kind == v1.CallTurn && u != nil:
		u.call = c
	case c.kind == v1.CallSummary && u != nil:
		u.summary = c
	default:
		n.calls = append(n.calls, c)
	}
}

func (r *run) endCall(n *node, e *v1.RunEvent) {
	var d v1.CallEnded
	if e.Decode(&d) != nil {
		return
	}
	c := r.open[d.ID]
	delete(r.open, d.ID)
	if c == nil { // a call that the cache answered has no start event
		c = &call{id: d.ID, kind: d.Call, prompt: d.Prompt, started: e.Time}
		n.addCall(c)
	}
	c.done, c.cached, c.model, c.finish, c.usage, c.wall = true, d.Cached, d.Model, d.Finish, d.Usage, d.Wall
	if d.Error != nil {
		c.err = d.Error.Message
	}
	if r.texts || d.Call != v1.CallSub {
		c.text = d.Text
	}
	r.usage, n.usage = r.usage.Add(d.Usage), n.usage.Add(d.Usage)
	if x := n.cell(); d.Call == v1.CallSub && x != nil {
		x.finished++
		x.tokens += d.Usage.Tokens()
		if c.err != "" {
			x.failed++
		}
		if !r.texts && c.err == "" {
			c.preview = ""
		}
	}
}

func (r *run) applyChild(n *node, e *v1.RunEvent) {
	if e.Kind == v1.KindChildStarted {
		var d v1.ChildStarted
		if e.Decode(&d) != nil {
			return
		}
		if old := r.nodes[d.Node]; old != nil { // it is repeated after the run was resumed; what it cost stays
			old.turns, old.calls, old.done = nil, nil, false
		}
		c := r.node(d.Node)
		c.title, c.prompt, c.model, c.chars = d.Preview, d.Prompt, d.Model, d.Chars
		c.depth, c.started = n.depth+1, e.Time
		switch x := n.callsCell(); {
		case x != nil:
			x.children = appendOnce(x.children, c)
		default:
			n.samples = appendOnce(n.samples, c)
		}
		return
	}
	var d v1.ChildEnded
	if e.Decode(&d) == nil {
		c := r.node(d.Node)
		c.done, c.ended, c.reason, c.answer, c.partial = true, e.Time, d.Reason, d.Answer, d.Partial
		if d.Error != nil {
			c.err = d.Error.Message
		}
	}
}

func appendOnce(list []*node, n *node) []*node {
	for _, x := range list {
		if x == n {
			return list
		}
	}
	return append(list, n)
}

// applyNote adds a note to the cell, turn or node that it is about.
func (r *run) applyNote(n *node, e *v1.RunEvent) {
	text := ""
	switch e.Kind { //nolint:exhaustive // the others are no notes
	case v1.KindTool:
		var d v1.ToolUsed
		if e.Decode(&d) != nil {
			return
		}
		r.note = toolNote(d)
		if x := n.callsCell(); x != nil {
			x.tools = append(x.tools, &d)
		}
		return
	case v1.KindGate:
		var d v1.Judged
		if e.Decode(&d) != nil {
			return
		}
		text = gateNote(d, r.forModel)
	case v1.KindCompacted:
		text = "old turns of the conversation were replaced by a summary"
	case v1.KindSnapshot:
		r.note = "a snapshot was taken"
		return
	}
	r.note = text
	if x := n.cell(); x != nil {
		x.notes = append(x.notes, text)
	} else {
		n.notes = append(n.notes, text)
	}
}

func (r *run) applyResumed(n *node, e *v1.RunEvent) {
	var d v1.Resumed
	if e.Decode(&d) != nil {
		return
	}
	r.note = resumedNote(d)
	n.notes = append(n.notes, r.note)
	r.ended = nil
	n.done = false
	clear(r.open)
	r.limits = d.Limits.Over(r.limits)
	if u := n.last(); u != nil && u.ended.IsZero() { // the turn is repeated
		n.turns = n.turns[:len(n.turns)-1]
	}
}
