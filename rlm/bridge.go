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

type queryReply struct {
	Text  string         `json:"text"`
	Cut   bool           `json:"cut,omitempty"` // the reply reached its maximum length
	Error *v1.EventError `json:"error,omitempty"`
}

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
			n.inCalls.Add(1)
			defer n.inCalls.Add(-1)
			return n.queries(ctx, call.Name == "rlm.rlm", turn, call.Payload)
		case "rlm.tool":
			n.inCalls.Add(1)
			defer n.inCalls.Add(-1)
			return n.useTool(ctx, turn, call.Payload)
		case "rlm.budget":
			return json.Marshal(n.remaining(turn))
		case "rlm.final", "rlm.ready":
			return n.handleAnswer(call.Name == "rlm.final", call.Payload)
		case "rlm.expression":
			n.mu.Lock()
			n.expression = string(call.Payload) == "true"
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
				text, whole, err := n.resolve(ctx, child, turn, prompts[i], model)
				replies[i] = queryReply{Text: text, Cut: !whole, Error: eventError(err)}
			}
		})
	}
	wg.Wait()
	return replies
}

// resolve answers one prompt with a plain call or a child run. whole is false if the reply was cut at its maximum
// length.
func (n *node) resolve(
	ctx context.Context, child bool, turn int, raw json.RawMessage, model string,
) (text string, whole bool, err error) {
	messages, err := readPrompt(raw)
	if err != nil {
		return "", true, err
	}
	if ctx.Err() != nil {
		return "", true, context.Cause(ctx)
	}
	depth, limit := n.depth+1, *n.run.limits.Depth
	if limit >= 0 && depth > limit {
		return "", true, &v1.Error{
			Code:    v1.CodeDepth,
			Op:      "ask a model",
			Message: fmt.Sprintf("the depth limit is %d, and this call would have depth %d", limit, depth),
			Remedy:  "solve it with code, without model calls",
		}
	}
	m, err := n.run.modelFor(depth, model)
	if err != nil {
		return "", true, err
	}
	if child && (limit < 0 || depth < limit) {
		text, err := n.spawn(ctx, turn, messages, m, model)
		return text, true, err
	}
	reply, err := n.callModel(ctx, modelCall{
		kind:      v1.CallSub,
		turn:      turn,
		depth:     depth,
		model:     m,
		messages:  messages,
		requested: model,
	})
	if err != nil {
		return "", true, err
	}
	return reply.Text, reply.Finish != llm.FinishLength, nil
}

func readPrompt(raw json.RawMessage) ([]llm.Message, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []llm.Message{{Role: llm.User, Content: text}}, nil
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
	return messages, nil
}

// queryChars is the length up to which the prompt of a child is also its question. A longer prompt is only its context.
const queryChars = 2000

// spawn answers a prompt with a child run. The ID of the child follows from the prompt, so that a resumed run finds the
// recorded events of the child.
func (n *node) spawn(ctx context.Context, turn int, messages []llm.Message, m llm.Model, want string) (string, error) {
	r := n.run
	text := messages[0].Content
	if len(messages) > 1 {
		var b strings.Builder
		for _, msg := range messages {
			fmt.Fprintf(&b, "%s: %s\n", msg.Role, msg.Content)
		}
		text = b.String()
	}
	if text == "" {
		return "", &v1.Error{Code: v1.CodeInvalidRequest, Op: "start child run", Message: "the prompt is empty"}
	}
	sum := sha256.Sum256([]byte(want + "\x00" + text))
	key := hex.EncodeToString(sum[:6])
	n.mu.Lock()
	if n.childPrompts == nil {
		n.childPrompts = map[string]int{}
	}
	name := fmt.Sprintf("%d-%s", turn, key)
	n.childPrompts[name]++
	if c := n.childPrompts[name]; c > 1 {
		name = fmt.Sprintf("%s-%d", name, c)
	}
	n.mu.Unlock()
	c := &node{run: r, id: n.id + "/" + name, depth: n.depth + 1, model: m, deadline: n.deadline, budget: n.budget}
	if len(text) <= queryChars {
		c.query = text
	}
	if rec := r.recording.child(c.id); rec != nil && !r.recording.emitAgain {
		if rec.Error != nil {
			return "", &v1.Error{Code: rec.Error.Code, Op: "child run", Message: rec.Error.Message}
		}
		return rec.Answer, nil
	}
	slot := r.childSlots(c.depth)
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	r.children.Add(1)
	r.emit(n, turn, v1.KindChildStarted, v1.ChildStarted{
		Node:    c.id,
		Model:   m.Info().Name,
		Key:     key,
		Chars:   int64(len(text)),
		Preview: firstRunes(text, previewChars),
	})
	err := c.answerText(ctx, text)
	end := v1.ChildEnded{Node: c.id, Key: key, Reason: v1.ReasonAnswered}
	switch a := c.accepted(); {
	case a != nil:
		end.Answer, err = a.Content, nil
	default:
		err = cause(ctx, err)
		end.Reason = reasonOf(err)
		if b := c.bestPartial(); b != nil {
			end.Answer = b.Content
		}
		end.Error = eventError(err)
	}
	r.emit(n, turn, v1.KindChildEnded, end)
	return end.Answer, err
}

// answerText runs a child whose context is a text. The child gets a new sandbox. A fork of the parent's sandbox would
// contain memory that the child does not need, and takes about twice as long as a warm sandbox into which the same
// context is linked and loaded (BenchmarkChildMachine).
func (n *node) answerText(ctx context.Context, text string) error {
	sum := sha256.Sum256([]byte(n.id))
	dir := filepath.Join(n.run.dir, "children", hex.EncodeToString(sum[:8]))
	s, err := stage(ctx, dir, []Input{Text(text)})
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
