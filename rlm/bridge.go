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

// installCell puts the bridge into an interpreter that has none.
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

// queryRequest is a call of llm_query, rlm_query and their batches.
type queryRequest struct {
	Prompts []json.RawMessage `json:"prompts"`
	Model   string            `json:"model"`
}

type queryReply struct {
	Text  string         `json:"text"`
	Cut   bool           `json:"cut,omitempty"` // it goes on, but was too long
	Error *v1.EventError `json:"error,omitempty"`
}

// afterNote is what a cell has left behind.
type afterNote struct {
	Answer   *v1.RunAnswer `json:"answer"`
	Draft    *v1.RunAnswer `json:"draft"`
	Restored []string      `json:"restored"`
	Vars     [][3]any      `json:"vars"`
}

// loadedNote is what became of the contexts.
type loadedNote struct {
	Contexts []v1.ContextNote `json:"contexts"`
	Error    *v1.EventError   `json:"error"`
}

// serve answers the code's calls to the host. ctx ends with the cell, n's own with the run; whichever comes first ends the call.
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
			return json.Marshal(n.left(turn))
		case "rlm.final", "rlm.ready":
			return n.offered(call.Name == "rlm.final", call.Payload)
		case "rlm.after":
			a := &afterNote{}
			if err := json.Unmarshal(call.Payload, a); err != nil {
				return nil, err
			}
			n.mu.Lock()
			n.afterRun = a
			n.mu.Unlock()
			return nil, nil
		case "rlm.loaded":
			l := &loadedNote{}
			if err := json.Unmarshal(call.Payload, l); err != nil {
				return nil, err
			}
			n.mu.Lock()
			n.loaded = l
			n.mu.Unlock()
			return nil, nil
		}
		return nil, &v1.Error{Code: v1.CodeHostCallUndefined, Message: "there is no function " + call.Name}
	}
}

// left is the budget as the code at this node sees it.
func (n *node) left(turn int) Left {
	l := n.run.budget.left()
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

// offered takes an answer that code hands in. With answer["ready"] the cell goes on, and may still change it.
func (n *node) offered(final bool, payload []byte) ([]byte, error) {
	a := &v1.RunAnswer{}
	if err := json.Unmarshal(payload, a); err != nil {
		return nil, err
	}
	var why string
	if final {
		why = n.accept(a)
	} else {
		why = n.offer(a)
	}
	return json.Marshal(map[string]any{"ok": why == "", "error": why})
}

// queries answers a call of the code's for models.
func (n *node) queries(ctx context.Context, child bool, turn int, payload []byte) ([]byte, error) {
	var req queryRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "read call", Err: err}
	}
	return json.Marshal(map[string]any{"replies": n.resolveAll(ctx, child, turn, req.Prompts, req.Model)})
}

// resolveAll answers each prompt, so many at once as the tree allows, and keeps the order.
func (n *node) resolveAll(ctx context.Context, child bool, turn int, prompts []json.RawMessage, model string) []queryReply {
	replies := make([]queryReply, len(prompts))
	var wg sync.WaitGroup
	var next atomic.Int64
	workers := n.run.engine.o.Parallel
	if child {
		workers = n.run.engine.o.Children
	}
	for range min(workers, len(prompts)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(prompts) {
					return
				}
				text, whole, err := n.resolve(ctx, child, turn, prompts[i], model)
				replies[i] = queryReply{Text: text, Cut: !whole, Error: note(err)}
			}
		})
	}
	wg.Wait()
	return replies
}

// resolve answers one prompt with a plain call or a child run, and tells whether the reply is whole.
func (n *node) resolve(ctx context.Context, child bool, turn int, raw json.RawMessage, model string) (text string, whole bool, err error) {
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
			Code: v1.CodeDepth, Op: "ask a model", Message: fmt.Sprintf("calls may be %d levels deep, and this would be level %d", limit, depth), Remedy: "work with code alone",
		}
	}
	m, err := n.run.modelFor(depth, model)
	if err != nil {
		return "", true, err
	}
	for _, msg := range messages {
		n.run.coverage.note(msg.Content, readByCall)
	}
	if child && (limit < 0 || depth < limit) {
		text, err := n.spawn(ctx, turn, messages, m, model)
		return text, true, err
	}
	reply, err := n.ask(ctx, modelCall{call: v1.CallSub, turn: turn, depth: depth, model: m, messages: messages, want: model})
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
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "read prompt", Message: "a prompt is a text or a list of messages", Err: err}
	}
	return messages, nil
}

// queryChars is the longest prompt of a child that is put as its question; a longer one is its context alone.
const queryChars = 2000

// spawn lets a child run answer. Its place in the tree follows from what it was asked, so that a resumed run finds what the child had done.
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
	if n.seen == nil {
		n.seen = map[string]int{}
	}
	place := fmt.Sprintf("%d-%s", turn, key)
	n.seen[place]++
	if c := n.seen[place]; c > 1 {
		place = fmt.Sprintf("%s-%d", place, c)
	}
	n.mu.Unlock()
	c := &node{run: r, id: n.id + "/" + place, depth: n.depth + 1, model: m}
	if len(text) <= queryChars {
		c.query = text
	}
	if rec := r.tape.child(c.id); rec != nil && !r.tape.fresh {
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
	r.kids.Add(1)
	r.emit(n, turn, v1.KindChildStarted, v1.ChildStarted{Node: c.id, Model: m.Info().Name, Key: key, Chars: int64(len(text)), Preview: firstRunes(text, previewChars)})
	err := c.answerText(ctx, text)
	end := v1.ChildEnded{Node: c.id, Key: key, Reason: v1.ReasonAnswered}
	switch a := c.taken(); {
	case a != nil:
		end.Answer, err = a.Content, nil
	default:
		err = cause(ctx, err)
		end.Reason = reasonOf(err)
		if b := c.best(); b != nil {
			end.Answer = b.Content
		}
		end.Error = note(err)
	}
	r.emit(n, turn, v1.KindChildEnded, end)
	return end.Answer, err
}

// answerText runs a child whose context is a text. Its machine is a fresh one: a copy of the parent's would bring along memory that the child has no
// use for, and takes about twice as long as a warm machine into which the same context is linked and loaded (BenchmarkChildMachine).
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

// childSlots bounds the child runs of one depth. Each depth has its own places: a parent that waits for its children holds none of theirs.
func (r *Run) childSlots(depth int) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children == nil {
		r.children = map[int]chan struct{}{}
	}
	if r.children[depth] == nil {
		r.children[depth] = make(chan struct{}, r.engine.o.Children)
	}
	return r.children[depth]
}
