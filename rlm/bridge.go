package rlm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

//go:embed bridge.py
var bridgeSource string

// installCell returns the code of a cell that installs the bridge in an interpreter, unless it is already installed.
func installCell(options any) (string, error) {
	source, err := json.Marshal(bridgeSource)
	if err != nil {
		return "", err
	}
	opts, err := json.Marshal(options)
	if err != nil {
		return "", err
	}
	quoted, err := json.Marshal(string(opts))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`def __install(source, options, main):
    import json, sys, types
    m = sys.modules.get("recluse_rlm")
    if m is None:
        m = types.ModuleType("recluse_rlm")
        exec(compile(source, "<recluse>", "exec"), m.__dict__)
        sys.modules["recluse_rlm"] = m
    m.install(main, json.loads(options))
__install(%s, %s, globals())
del __install`, source, quoted), nil
}

// queryRequest is the payload of llm_query, rlm_query and their batched forms.
type queryRequest struct {
	Prompts []json.RawMessage `json:"prompts"`
	Model   string            `json:"model"`
}

// query is one prompt of llm_query or rlm_query.
type query struct {
	messages []llm.Message
	context  json.RawMessage // of rlm_query; nil: the prompt is the context
	schema   answerSchema    // of rlm_query
}

type queryReply struct {
	Text    string          `json:"text"`
	Value   json.RawMessage `json:"value,omitempty"`   // the answer as JSON, if a schema was given
	Cut     bool            `json:"cut,omitempty"`     // the reply reached its maximum length
	Partial v1.RunReason    `json:"partial,omitempty"` // why there is no answer; Text is what there was, marked
	Error   *v1.EventError  `json:"error,omitempty"`
}

func failedQuery(err error) queryReply { return queryReply{Error: eventError(err)} }

// cellReport is what the bridge reports at the end of a cell.
type cellReport struct {
	Answer   *v1.RunAnswer `json:"answer"`
	Draft    *v1.RunAnswer `json:"draft"`
	Restored []string      `json:"restored"`
	Vars     [][3]any      `json:"vars"`
}

// loadReport is what the bridge reports after it has loaded the contexts.
type loadReport struct {
	Contexts []v1.ContextNote `json:"contexts"`
	Error    *v1.EventError   `json:"error"`
}

// serve returns the function that answers host calls of the code. A call is cancelled when its cell ends (the ctx of
// the call) or when the run ends (run).
func (n *node) serve(run context.Context) sandbox.HostFunc {
	return func(ctx context.Context, call sandbox.HostCall) ([]byte, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(run, func() { cancel(context.Cause(run)) })()
		n.mu.Lock()
		turn := n.turn
		n.mu.Unlock()
		switch call.Name {
		case "rlm.llm", "rlm.rlm":
			n.noteLook()
			n.inCalls.Add(1)
			defer n.inCalls.Add(-1)
			return n.queries(ctx, call.Name == "rlm.rlm", turn, call.Payload)
		case "rlm.tool":
			n.noteLook()
			n.inCalls.Add(1)
			defer n.inCalls.Add(-1)
			return n.useTool(ctx, turn, call.Payload)
		case "rlm.budget":
			return json.Marshal(n.remaining(turn))
		case "rlm.final", "rlm.ready":
			return n.handleAnswer(call.Name == "rlm.final", call.Payload)
		case "rlm.expression":
			n.mu.Lock()
			n.verdict = string(call.Payload) == "true"
			n.mu.Unlock()
			return nil, nil
		case "rlm.after":
			a := &cellReport{}
			if err := json.Unmarshal(call.Payload, a); err != nil {
				return nil, err
			}
			n.mu.Lock()
			n.report = a
			n.mu.Unlock()
			return nil, nil
		case "rlm.installed":
			n.mu.Lock()
			defer n.mu.Unlock()
			err := json.Unmarshal(call.Payload, &n.interpreter)
			// Code cannot see a network that the host provides over the guest's stream.
			if s, ok := n.sandbox.(interface{ Spec() sandbox.Spec }); ok && !s.Spec().Network.IsNone() {
				n.interpreter.Network = new(true)
			}
			return nil, err
		case "rlm.terms":
			return n.findTerms(call.Payload)
		case "rlm.loaded":
			l := &loadReport{}
			if err := json.Unmarshal(call.Payload, l); err != nil {
				return nil, err
			}
			n.mu.Lock()
			n.loaded = l
			n.mu.Unlock()
			return nil, nil
		}
		return nil, &v1.Error{
			Code:    v1.CodeHostCallUndefined,
			Message: fmt.Sprintf("unknown host function %q", call.Name),
		}
	}
}

// remaining returns the remaining budget as the code of this node sees it.
func (n *node) remaining(turn int) Remaining {
	l := n.budget.remaining()
	if limit := *n.run.limits.Depth; limit >= 0 {
		d := max(0, limit-n.depth)
		l.Depth = &d
	}
	if limit := *n.run.limits.Turns; limit >= 0 {
		t := max(0, limit-turn)
		l.Turns = &t
	}
	return l
}

// handleAnswer handles an answer that code submits. final is set for FINAL and similar functions. It is not set for
// answer["ready"], after which the cell continues and may still change the answer.
func (n *node) handleAnswer(final bool, payload []byte) ([]byte, error) {
	a := &v1.RunAnswer{}
	if err := json.Unmarshal(payload, a); err != nil {
		return nil, err
	}
	n.mu.Lock()
	a.How = v1.HowCode
	if n.textAnswer {
		a.How = v1.HowText
	}
	n.mu.Unlock()
	var why string
	if final {
		why = n.accept(a)
	} else {
		why = n.storePartial(a)
	}
	return json.Marshal(map[string]any{"ok": why == "", "error": why})
}

// queries handles a host call of llm_query, rlm_query or their batched forms.
func (n *node) queries(ctx context.Context, child bool, turn int, payload []byte) ([]byte, error) {
	var req queryRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "read call", Err: err}
	}
	return json.Marshal(map[string]any{"replies": n.resolveAll(ctx, child, turn, req.Prompts, req.Model)})
}

// resolveAll answers all prompts concurrently, within the limits of the run. The replies are in the order of the
// prompts.
func (n *node) resolveAll(
	ctx context.Context, child bool, turn int, prompts []json.RawMessage, model string,
) []queryReply {
	replies := make([]queryReply, len(prompts))
	var wg sync.WaitGroup
	var next atomic.Int64
	workers := *n.run.limits.Parallel
	if child {
		workers = *n.run.limits.Children
	}
	for range min(workers, len(prompts)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(prompts) {
					return
				}
				replies[i] = n.resolve(ctx, child, turn, prompts[i], model)
			}
		})
	}
	wg.Wait()
	return replies
}

// resolve answers one prompt with a plain call or a child run.
func (n *node) resolve(ctx context.Context, child bool, turn int, raw json.RawMessage, model string) queryReply {
	q, err := readPrompt(raw)
	if err != nil {
		return failedQuery(err)
	}
	if ctx.Err() != nil {
		return failedQuery(context.Cause(ctx))
	}
	depth, limit := n.depth+1, *n.run.limits.Depth
	if limit >= 0 && depth > limit {
		return failedQuery(&v1.Error{
			Code:    v1.CodeDepth,
			Op:      "ask a model",
			Message: fmt.Sprintf("the depth limit is %d, and this call would have depth %d", limit, depth),
			Remedy:  "solve it with code, without model calls",
		})
	}
	m, err := n.run.modelFor(depth, model)
	if err != nil {
		return failedQuery(err)
	}
	if child && (limit < 0 || depth < limit) {
		return n.spawn(ctx, turn, q, m, model)
	}
	return n.subCall(ctx, q, modelCall{kind: v1.CallSub, turn: turn, depth: depth, model: m, requested: model})
}

// subCall answers a prompt with a plain call. If the prompt has a schema, it asks again, up to schemaTries times in
// all, until the reply meets it.
func (n *node) subCall(ctx context.Context, q *query, c modelCall) queryReply {
	c.messages, c.schema = q.messages, q.schema.text
	if q.context != nil || q.schema.compiled != nil {
		prompt, err := n.prompt("plain", PromptData{
			Query:  q.text(),
			Text:   contextText(q.context),
			Schema: string(q.schema.text),
		})
		if err != nil {
			return failedQuery(err)
		}
		c.messages = []llm.Message{{Role: llm.User, Content: prompt}}
	}
	var why string
	for range schemaTries {
		reply, err := n.callModel(ctx, c)
		if err != nil {
			return failedQuery(err)
		}
		a := &v1.RunAnswer{Content: reply.Text}
		if why = q.schema.check(a); why == "" {
			return queryReply{Text: a.Content, Value: a.Value, Cut: reply.Finish == llm.FinishLength}
		}
		c.input = 0
		c.messages = append(c.messages[:len(c.messages):len(c.messages)],
			llm.Message{Role: llm.Assistant, Content: reply.Text},
			llm.Message{Role: llm.User, Content: why + "\nAnswer again."})
	}
	return failedQuery(&v1.Error{Code: v1.CodeAnswerRefused, Op: "ask a model", Message: why})
}

// readPrompt parses a prompt: a text, a list of messages, or an object with a question, a context and a schema.
func readPrompt(raw json.RawMessage) (*query, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return &query{messages: []llm.Message{{Role: llm.User, Content: text}}}, nil
	}
	var o struct {
		Question json.RawMessage `json:"question"`
		Context  json.RawMessage `json:"context"`
		Schema   json.RawMessage `json:"schema"`
	}
	if json.Unmarshal(raw, &o) == nil && len(o.Question) > 0 && o.Question[0] != '{' {
		q, err := readPrompt(o.Question)
		if err != nil {
			return nil, err
		}
		q.context = o.Context
		if len(o.Schema) > 0 {
			q.schema.text = o.Schema
			q.schema.compiled, err = compileSchema(o.Schema)
		}
		return q, err
	}
	var messages []llm.Message
	if err := json.Unmarshal(raw, &messages); err != nil || len(messages) == 0 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "read prompt",
			Message: "a prompt must be a text or a list of messages",
			Err:     err,
		}
	}
	return &query{messages: messages}, nil
}

// text returns the messages as one text.
func (q *query) text() string {
	if len(q.messages) == 1 {
		return q.messages[0].Content
	}
	var b strings.Builder
	for _, msg := range q.messages {
		fmt.Fprintf(&b, "%s: %s\n", msg.Role, msg.Content)
	}
	return b.String()
}

// contextText returns a context as text: a string as it is, and other values as JSON.
func contextText(context json.RawMessage) string {
	var text string
	if json.Unmarshal(context, &text) == nil {
		return text
	}
	return string(context)
}

// input returns the context of the child run.
func (q *query) input() Input {
	switch {
	case q.context == nil:
		return Text(q.text())
	case q.context[0] == '"':
		return Text(contextText(q.context))
	}
	return JSON(q.context)
}

// key returns a hash of the prompt and of the name of the model that code chose.
func (q *query) key(model string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s", model, q.text())
	if q.context != nil || q.schema.text != nil {
		fmt.Fprintf(h, "\x00%d\x00%s\x00%s", len(q.context), q.context, q.schema.text)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// queryChars is the length up to which the prompt of a child is also its question. A longer prompt is only its context.
const queryChars = 2000

// spawn answers a prompt with a child run. The ID of the child follows from the prompt, so that a resumed run finds the
// recorded events of the child.
func (n *node) spawn(ctx context.Context, turn int, q *query, m llm.Model, want string) queryReply {
	r := n.run
	text := q.text()
	if text == "" {
		return failedQuery(&v1.Error{
			Code: v1.CodeInvalidRequest, Op: "start child run", Message: "the prompt is empty",
		})
	}
	key := q.key(want)
	c := &node{
		run:      r,
		id:       n.childID(turn, key),
		depth:    n.depth + 1,
		model:    m,
		deadline: n.deadline,
		budget:   n.budget,
		schema:   q.schema,
	}
	if q.context != nil {
		c.query = text
	} else if len(text) <= queryChars {
		c.query, c.shown = text, true
	}
	if rec := r.recording.child(c.id); rec != nil && !r.recording.emitAgain {
		return childReply(rec)
	}
	slot := r.childSlots(c.depth)
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return failedQuery(context.Cause(ctx))
	}
	r.children.Add(1)
	r.emit(n, turn, v1.KindChildStarted, v1.ChildStarted{
		Node:    c.id,
		Model:   m.Info().Name,
		Key:     key,
		Chars:   int64(len(text) + len(q.context)),
		Preview: r.beginning(text),
		Prompt:  r.putQuestion(text),
	})
	end := c.endOfChild(ctx, key, c.answerFrom(ctx, q.input()))
	r.emit(n, turn, v1.KindChildEnded, end)
	return childReply(end)
}

// childID returns the ID of a child run that starts in a turn. Equal prompts of a turn are numbered.
func (n *node) childID(turn int, key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.childPrompts == nil {
		n.childPrompts = map[string]int{}
	}
	name := fmt.Sprintf("%d-%s", turn, key)
	n.childPrompts[name]++
	if c := n.childPrompts[name]; c > 1 {
		name = fmt.Sprintf("%s-%d", name, c)
	}
	return n.id + "/" + name
}

// endOfChild returns how this child run ended, after its work returned err.
func (n *node) endOfChild(ctx context.Context, key string, err error) *v1.ChildEnded {
	end := &v1.ChildEnded{Node: n.id, Key: key, Reason: v1.ReasonAnswered}
	if a := n.accepted(); a != nil {
		end.Answer, end.How = a.Content, a.How
		if n.schema.compiled != nil {
			end.Value = a.Value
		}
		return end
	}
	err = cause(ctx, err)
	end.Reason, end.Error = reasonOf(err), eventError(err)
	if b := n.bestPartial(); b != nil {
		end.Answer = b.Content
	}
	// Code that wants a value of a schema cannot use a text, and code that was cancelled gets nothing.
	end.Partial = n.run.rules.Version > 0 && end.Answer != "" && n.schema.compiled == nil &&
		end.Reason != v1.ReasonCancelled
	return end
}

// childReply returns what code receives of a child run that has ended. The text of a child run without an answer begins
// with a mark.
func childReply(end *v1.ChildEnded) queryReply {
	switch {
	case end.Partial:
		mark := fmt.Sprintf("[no answer: the child run ended early (%s); what it had so far:]\n", end.Reason)
		return queryReply{Text: mark + end.Answer, Partial: end.Reason}
	case end.Error != nil:
		return queryReply{Text: end.Answer, Error: end.Error}
	}
	return queryReply{Text: end.Answer, Value: end.Value}
}

// answerFrom runs a child with a context. The child gets a new sandbox. A fork of the parent's sandbox would contain
// memory that the child does not need, and takes about twice as long as a warm sandbox into which the same context is
// linked and loaded (BenchmarkChildMachine).
func (n *node) answerFrom(ctx context.Context, in Input) error {
	sum := sha256.Sum256([]byte(n.id))
	dir := filepath.Join(n.run.dir, "children", hex.EncodeToString(sum[:8]))
	s, err := stage(ctx, dir, []Input{in})
	if err != nil {
		return err
	}
	n.staged = s
	return errors.Join(n.work(ctx), os.RemoveAll(dir))
}

// childSlots returns the semaphore that bounds the concurrent child runs of one depth. Each depth has its own, so that
// a parent that waits for its children does not hold a slot that they need.
func (r *Run) childSlots(depth int) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.childSlotsAt == nil {
		r.childSlotsAt = map[int]chan struct{}{}
	}
	if r.childSlotsAt[depth] == nil {
		r.childSlotsAt[depth] = make(chan struct{}, *r.limits.Children)
	}
	return r.childSlotsAt[depth]
}
