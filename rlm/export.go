package rlm

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// Export writes a stored run in the JSON Lines format of the official Python library, for the viewer of that library:
// one line of metadata, then one line for each turn. A child run is a call of the cell that started it, with a
// trajectory of its own. testdata/official.schema.json describes the lines. Secrets are redacted.
func (e *Engine) Export(id string, w io.Writer) error {
	p, err := e.readRun(id, -1, false)
	if err != nil {
		return err
	}
	prompts, err := e.Prompts(id)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	x := exporter{
		prompts: prompts,
		clean:   e.redactor.Text,
		limits:  p.saved.Limits,
		nodes:   map[string]*exportNode{},
		open:    map[string]exportCall{},
	}
	root := &exportNode{
		model:   p.startEvent.Model,
		started: p.started,
		prompt:  []llm.Message{{Role: llm.User, Content: x.clean(p.startEvent.Query)}},
		write:   func(i *exportIteration) error { return out.Encode(i) },
	}
	x.nodes["0"] = root
	head := exportHead{"metadata", stamp(p.started), x.metadata(root)}
	if err := out.Encode(head); err != nil {
		return fmt.Errorf("export run: %w", err)
	}
	for ev, err := range trajectory.Read(p.dir) {
		if err == nil {
			err = x.add(&ev)
		}
		if err != nil {
			return &v1.Error{Code: v1.CodeInternal, Op: "export run", Err: err}
		}
	}
	if err := root.flush(); err != nil {
		return fmt.Errorf("export run: %w", err)
	}
	return nil
}

func stamp(t time.Time) string { return t.Format(time.RFC3339Nano) }

// The parts of the official layout.
type (
	exportHead struct {
		Type string `json:"type"`
		Time string `json:"timestamp"`
		exportMetadata
	}
	exportMetadata struct {
		Model       string         `json:"root_model"`
		Depth       int            `json:"max_depth"`
		Turns       int            `json:"max_iterations"`
		Backend     string         `json:"backend"`
		BackendArgs map[string]any `json:"backend_kwargs"`
		Environment string         `json:"environment_type"`
		EnvArgs     map[string]any `json:"environment_kwargs"`
		Others      []string       `json:"other_backends"`
	}
	exportIteration struct {
		Type     string        `json:"type"`
		Number   int           `json:"iteration"`
		Time     string        `json:"timestamp"`
		Prompt   []llm.Message `json:"prompt"`
		Response string        `json:"response"`
		Blocks   []exportBlock `json:"code_blocks"`
		Answer   *string       `json:"final_answer"`
		Duration float64       `json:"iteration_time"`
	}
	exportBlock struct {
		Code   string       `json:"code"`
		Result exportResult `json:"result"`
	}
	exportResult struct {
		Stdout string            `json:"stdout"`
		Stderr string            `json:"stderr"`
		Locals map[string]string `json:"locals"`
		Time   float64           `json:"execution_time"`
		Calls  []exportCall      `json:"rlm_calls"`
		Answer *string           `json:"final_answer"`
	}
	exportCall struct {
		Model      string            `json:"root_model"`
		Prompt     string            `json:"prompt"`
		Response   string            `json:"response"`
		Usage      exportUsage       `json:"usage_summary"`
		Input      int64             `json:"prompt_tokens"`     // the viewer shows it
		Output     int64             `json:"completion_tokens"` // the viewer shows it
		Time       float64           `json:"execution_time"`
		Trajectory *exportTrajectory `json:"metadata,omitempty"` // of a child run
		Error      string            `json:"error,omitempty"`

		started time.Time
	}
	exportTrajectory struct {
		Run        exportMetadata     `json:"run_metadata"`
		Iterations []*exportIteration `json:"iterations"`
	}
	exportUsage struct {
		Models map[string]exportModel `json:"model_usage_summaries"`
		Cost   float64                `json:"total_cost,omitempty"`
	}
	exportModel struct {
		Calls  int64   `json:"total_calls"`
		Input  int64   `json:"total_input_tokens"`
		Output int64   `json:"total_output_tokens"`
		Cost   float64 `json:"total_cost,omitempty"`
	}
)

// exporter makes the official layout from the events of a run.
type exporter struct {
	prompts *v1.RunPrompts
	clean   func(string) string // removes secrets
	limits  v1.RunLimits
	nodes   map[string]*exportNode
	open    map[string]exportCall // calls and child runs that have not ended, by node and id
}

// exportNode is the run or a child run.
type exportNode struct {
	model string
	depth int
	write func(*exportIteration) error
	turns int
	usage map[string]exportModel // with its children

	started time.Time        // the current turn, or the current call without a turn
	prompt  []llm.Message    // of the current turn
	done    *exportIteration // not written yet, because an answer may follow
	blocks  []exportBlock    // of the current turn
	calls   []exportCall     // that belong to no block yet
	running bool             // the last block has not ended
	answer  *string
}

func (x *exporter) metadata(n *exportNode) exportMetadata {
	return exportMetadata{
		Model:       n.model,
		Depth:       max(0, *x.limits.Depth-n.depth),
		Turns:       *x.limits.Turns,
		Backend:     "recluse",
		BackendArgs: map[string]any{"model_name": n.model},
		Environment: "sandbox",
		EnvArgs:     map[string]any{},
	}
}

// add processes an event.
func (x *exporter) add(e *v1.RunEvent) error {
	n := x.nodes[e.Node]
	if n == nil {
		return nil // a child whose start is not in the log
	}
	switch e.Kind {
	case v1.KindTurnStarted:
		n.started, n.blocks, n.calls, n.running = e.Time, nil, nil, false
		return n.flush()
	case v1.KindCallStarted:
		return x.callStarted(n, e)
	case v1.KindCallEnded:
		return x.callEnded(n, e)
	case v1.KindChildStarted:
		return x.childStarted(n, e)
	case v1.KindChildEnded:
		return x.childEnded(n, e)
	case v1.KindCellStarted:
		var c v1.CellStarted
		if err := e.Decode(&c); err != nil {
			return err
		}
		n.closeBlock()
		n.blocks, n.running = append(n.blocks, exportBlock{Code: x.clean(c.Code), Result: emptyResult()}), true
	case v1.KindCellEnded:
		return x.cellEnded(n, e)
	case v1.KindAnswer:
		var a v1.RunAnswer
		if err := e.Decode(&a); err != nil {
			return err
		}
		n.answer = new(x.clean(a.Content))
		if n.done != nil {
			n.done.Answer = n.answer
		} else if e.Turn == 0 { // the answer that was chosen of several candidates
			n.closeBlock()
			n.done = n.iteration(e.Time, "")
		}
	case v1.KindTurnEnded:
		var t v1.TurnEnded
		if err := e.Decode(&t); err != nil {
			return err
		}
		n.closeBlock()
		n.done = n.iteration(e.Time, x.clean(t.Reply))
	default: // the other events do not matter here
	}
	return nil
}

// callStarted records the prompt of a call.
func (x *exporter) callStarted(n *exportNode, e *v1.RunEvent) error {
	var c v1.CallStarted
	if err := e.Decode(&c); err != nil {
		return err
	}
	messages := x.messages(c.Prompt, c.Preview)
	x.open[c.ID] = exportCall{Prompt: textOf(messages)}
	switch c.Call {
	case v1.CallTurn:
		n.prompt = messages
	case v1.CallPlain, v1.CallLast:
		if err := n.flush(); err != nil {
			return err
		}
		n.prompt, n.started = messages, e.Time
	}
	return nil
}

// callEnded adds a sub-call to the cell that made it. The reply to a call without a turn is an iteration.
func (x *exporter) callEnded(n *exportNode, e *v1.RunEvent) error {
	var c v1.CallEnded
	if err := e.Decode(&c); err != nil {
		return err
	}
	call := x.open[c.ID]
	delete(x.open, c.ID)
	if c.Cached {
		call.Prompt = textOf(x.messages(c.Prompt, ""))
	}
	used := map[string]exportModel{}
	if !c.Cached {
		used[c.Model] = exportModel{c.Usage.Calls, c.Usage.Input, c.Usage.Output, c.Usage.Cost}
		n.addUsage(used)
	}
	switch c.Call {
	case v1.CallSub:
		call.Model, call.Response, call.Time = c.Model, x.clean(c.Text), c.Wall.Seconds()
		call.setUsage(used)
		call.setError(c.Error)
		n.calls = append(n.calls, call)
	case v1.CallPlain, v1.CallLast:
		if c.Error != nil {
			return nil
		}
		n.blocks, n.calls = nil, nil
		n.done = n.iteration(e.Time, x.clean(c.Text))
		if c.Call == v1.CallLast {
			n.done.Answer = &n.done.Response
		}
	}
	return nil
}

func (x *exporter) childStarted(n *exportNode, e *v1.RunEvent) error {
	var c v1.ChildStarted
	if err := e.Decode(&c); err != nil {
		return err
	}
	x.open[c.Node] = exportCall{Model: c.Model, Prompt: textOf(x.messages(c.Prompt, c.Preview)), started: e.Time}
	t := &exportTrajectory{Iterations: []*exportIteration{}}
	child := &exportNode{model: c.Model, depth: n.depth + 1, write: func(i *exportIteration) error {
		t.Iterations = append(t.Iterations, i)
		return nil
	}}
	if sampleOf(c.Node) == c.Node {
		child.depth = n.depth // a candidate answers the question of the run itself
	}
	t.Run = x.metadata(child)
	call := x.open[c.Node]
	call.Trajectory = t
	x.open[c.Node], x.nodes[c.Node] = call, child
	return nil
}

func (x *exporter) childEnded(n *exportNode, e *v1.RunEvent) error {
	var c v1.ChildEnded
	if err := e.Decode(&c); err != nil {
		return err
	}
	call, child := x.open[c.Node], x.nodes[c.Node]
	delete(x.open, c.Node)
	delete(x.nodes, c.Node)
	if child == nil {
		return nil
	}
	if err := child.flush(); err != nil {
		return err
	}
	call.Response, call.Time = x.clean(c.Answer), e.Time.Sub(call.started).Seconds()
	call.setUsage(child.usage)
	call.setError(c.Error)
	n.addUsage(child.usage)
	n.calls = append(n.calls, call)
	return nil
}

func (x *exporter) cellEnded(n *exportNode, e *v1.RunEvent) error {
	var c v1.CellEnded
	if err := e.Decode(&c); err != nil {
		return err
	}
	if !n.running {
		return nil
	}
	r := &n.blocks[len(n.blocks)-1].Result
	r.Stdout, r.Stderr, r.Time, r.Answer = x.clean(c.Stdout), x.clean(c.Stderr+c.Error), c.Wall.Seconds(), n.answer
	maps.Copy(r.Locals, c.Vars)
	n.closeBlock()
	return nil
}

// messages returns the messages of a stored prompt, or the beginning of the last one if the prompt was not stored.
func (x *exporter) messages(id, preview string) []llm.Message {
	out := []llm.Message{}
	for _, m := range x.prompts.Messages(id) {
		if m.LeftOut > 0 {
			m.Content = fmt.Sprintf("[%d bytes that are not stored]", m.LeftOut)
		}
		out = append(out, m.Message)
	}
	if len(out) == 0 && preview != "" {
		out = append(out, llm.Message{Role: llm.User, Content: preview})
	}
	return out
}

// textOf returns the content of the last message.
func textOf(m []llm.Message) string {
	if len(m) == 0 {
		return ""
	}
	return m[len(m)-1].Content
}

func emptyResult() exportResult {
	return exportResult{Locals: map[string]string{}, Calls: []exportCall{}}
}

// closeBlock adds the calls since the last block to the running block, or to a block without code if code made none of
// them: candidates, and calls of a reply that requests them directly.
func (n *exportNode) closeBlock() {
	if len(n.calls) > 0 && !n.running {
		n.blocks = append(n.blocks, exportBlock{Result: emptyResult()})
	}
	if len(n.calls) > 0 {
		r := &n.blocks[len(n.blocks)-1].Result
		r.Calls = append(r.Calls, n.calls...)
	}
	n.calls, n.running = nil, false
}

// iteration returns the iteration that ends now.
func (n *exportNode) iteration(end time.Time, response string) *exportIteration {
	n.turns++
	i := &exportIteration{
		Type:     "iteration",
		Number:   n.turns,
		Time:     stamp(end),
		Prompt:   append([]llm.Message{}, n.prompt...),
		Response: response,
		Blocks:   append([]exportBlock{}, n.blocks...),
		Answer:   n.answer,
	}
	if !n.started.IsZero() {
		i.Duration = end.Sub(n.started).Seconds()
	}
	return i
}

// flush writes the last iteration.
func (n *exportNode) flush() error {
	i := n.done
	if i == nil {
		return nil
	}
	n.done = nil
	return n.write(i)
}

func (n *exportNode) addUsage(used map[string]exportModel) {
	if n.usage == nil {
		n.usage = map[string]exportModel{}
	}
	for name, u := range used {
		have := n.usage[name]
		n.usage[name] = exportModel{have.Calls + u.Calls, have.Input + u.Input, have.Output + u.Output, have.Cost + u.Cost}
	}
}

func (c *exportCall) setUsage(used map[string]exportModel) {
	c.Usage.Models = map[string]exportModel{}
	for name, u := range used {
		c.Usage.Models[name] = u
		c.Usage.Cost += u.Cost
		c.Input += u.Input
		c.Output += u.Output
	}
}

func (c *exportCall) setError(e *v1.EventError) {
	if e != nil {
		c.Error = e.Message
	}
}
