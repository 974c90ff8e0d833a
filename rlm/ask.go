package rlm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

const (
	// maxReplyBytes ends the generation of a model that does not heed its token limit.
	maxReplyBytes = 4 << 20
	previewChars  = 200
)

// modelCall is one question to a model.
type modelCall struct {
	call     string
	turn     int
	depth    int // of the model
	model    llm.Model
	messages []llm.Message
	input    int64           // tokens; 0: not counted yet
	want     string          // the model that code asked for by name
	cut      bool            // stop behind the first block
	schema   json.RawMessage // to be met, where the provider can see to it
}

// key names what is asked, whichever model answers. Turns are named by their place: their conversation holds output that may differ
// in a replay.
func (c *modelCall) key() string {
	if c.call != v1.CallSub {
		return c.call
	}
	h := sha256.New()
	h.Write([]byte(c.want))
	for _, m := range c.messages {
		fmt.Fprintf(h, "\x00%s\x00%d\x00", m.Role, len(m.Content))
		h.Write([]byte(m.Content))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// place is where a cache keeps the reply. Who falls back may hear another model, which is no answer to those who ask the first alone.
func (c *modelCall) place(key string) string {
	return strings.Join(llm.Names(c.model), ",") + "\x00" + key
}

// ask asks a model within the budget of the whole tree. It is the only place that does.
func (n *node) ask(ctx context.Context, c modelCall) (*llm.Reply, error) {
	key := c.key()
	r := n.run
	if c.call != v1.CallSub || r.tape.strict() { // the tape also has what a cache answered, which may have been shared with others
		return n.pay(ctx, &c, key)
	}
	place := c.place(key)
	if rec := r.tape.take(n.id, c.turn, c.call, key); rec != nil {
		// The cell has run before, and so has this call: it is not told once more, whoever answered then.
		return n.heard(&c, rec, place)
	}
	kept, err := r.cache.get(ctx, place)
	if err != nil {
		return nil, err
	}
	if kept != nil {
		r.cached.Add(1)
		r.emit(n, c.turn, v1.KindCallEnded, v1.CallEnded{ID: n.callID(), Call: c.call, Key: key, Model: kept.Model, Text: kept.Text, Finish: kept.Finish, Cached: true})
		return kept, nil
	}
	reply, err := n.pay(ctx, &c, key)
	if err != nil {
		r.cache.put(place, nil)
		return nil, err
	}
	if reply.Finish == llm.FinishLength {
		// It may have been cut because others held the budget, and who asks later gets all of it.
		r.cache.put(place, nil)
		return reply, nil
	}
	r.cache.put(place, reply)
	return reply, nil
}

// heard gives what a sub-call was told before a run was resumed.
func (n *node) heard(c *modelCall, rec *heard, place string) (*llm.Reply, error) {
	reply, err := n.played(c, rec, 0)
	if err == nil && reply.Finish != llm.FinishLength {
		n.run.cache.learn(place, reply)
	}
	return reply, err
}

func (n *node) callID() string { return "c" + strconv.FormatInt(n.run.calls.Add(1), 10) }

// pay asks a model that must be paid, unless an earlier program has done it already.
func (n *node) pay(ctx context.Context, c *modelCall, key string) (*llm.Reply, error) {
	r := n.run
	info := c.model.Info()
	var chars int64
	counted := c.input > 0
	for _, m := range c.messages {
		chars += int64(len(m.Content))
		if !counted {
			c.input += c.model.Count(m.Content) + perMessage
		}
	}
	if info.Window > 0 && c.input+leastReply > info.Window {
		return nil, &v1.Error{
			Code: v1.CodeWindow, Op: "ask " + info.Name, Message: fmt.Sprintf("the prompt has about %d tokens (%d bytes), and the model's window is %d tokens", c.input, chars, info.Window),
			Remedy: "cut it into smaller pieces",
		}
	}
	if rec := r.tape.take(n.id, c.turn, c.call, key); rec != nil {
		return n.played(c, rec, chars)
	}
	if r.tape.strict() {
		return nil, &v1.Error{Code: v1.CodeNotRecorded, Op: "replay", Message: fmt.Sprintf("%s of turn %d asks what was not asked before", c.call, c.turn)}
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if info.Window > 0 {
		info.Output = min(or(info.Output, info.Window), info.Window-c.input)
	}
	res, err := r.budget.reserve(ctx, info, c.input, r.engine.o.ReplyTokens)
	if err != nil {
		return nil, err
	}
	id := n.callID()
	r.emit(n, c.turn, v1.KindCallStarted, v1.CallStarted{
		ID: id, Call: c.call, Model: info.Name, Key: key, Chars: chars, Tokens: c.input, Preview: preview(c.messages),
	})
	begun := time.Now()
	reply, err := n.complete(ctx, c, res.reply)
	end := v1.CallEnded{ID: id, Call: c.call, Key: key, Model: info.Name, Wall: time.Since(begun)}
	if reply != nil {
		reply.Usage = n.usage(c, reply)
		end.Text, end.Finish, end.Usage, end.Model = reply.Text, reply.Finish, reply.Usage, or(reply.Model, info.Name)
	}
	res.settle(end.Model, c.depth, end.Usage)
	if err != nil {
		err = modelError(ctx, info.Name, err)
		end.Error = note(err)
	}
	r.emit(n, c.turn, v1.KindCallEnded, end)
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// perMessage is what the frame around a message takes, about.
const perMessage = 4

// complete streams the reply and cuts it where it has said enough.
func (n *node) complete(ctx context.Context, c *modelCall, maxTokens int64) (*llm.Reply, error) {
	var text strings.Builder
	fenceAt, end := -1, 0
	req := llm.Request{
		Messages: c.messages, MaxTokens: maxTokens, Schema: c.schema,
		Tags: map[string]string{"run": n.run.id, "node": n.id, "call": c.call, "depth": strconv.Itoa(c.depth), "turn": strconv.Itoa(c.turn)},
	}
	if c.call != v1.CallSub {
		req.Delta = func(s string) bool {
			from := max(0, text.Len()-2)
			text.WriteString(s)
			if text.Len() > maxReplyBytes {
				return false
			}
			if !c.cut {
				return true
			}
			all := text.String()
			if i := max(strings.LastIndex(all[from:], "```"), strings.LastIndex(all[from:], "~~~")); i >= 0 {
				fenceAt = from + i
			}
			if fenceAt >= 0 && strings.IndexByte(all[fenceAt:], '\n') >= 0 {
				fenceAt = -1
				end = firstBlockEnd(all)
			}
			return end == 0
		}
	}
	reply, err := c.model.Complete(ctx, req)
	if reply == nil && err == nil {
		return nil, errors.New("the model gave neither a reply nor an error")
	}
	if reply != nil && end > 0 {
		reply.Text, reply.Finish = text.String()[:end], llm.FinishCut
		err = nil // what came is all that was wanted
	}
	return reply, err
}

// usage fills in what the provider did not tell.
func (n *node) usage(c *modelCall, reply *llm.Reply) llm.Usage {
	u := reply.Usage
	if u.Calls == 0 {
		u.Calls = 1
	}
	if u.Tokens() == 0 {
		u.Input, u.Output, u.Estimated = c.input, c.model.Count(reply.Text), true
		info := c.model.Info()
		switch {
		case info.Price != nil:
			u.Cost = (float64(u.Input)*info.Price.Input + float64(u.Output)*info.Price.Output) / 1e6
		case !info.Local:
			u.Unpriced = true
		}
	}
	return u
}

// played gives what an earlier program was told.
func (n *node) played(c *modelCall, rec *heard, chars int64) (*llm.Reply, error) {
	r := n.run
	if r.tape.fresh && rec.Cached {
		end := *rec.CallEnded
		end.ID = n.callID()
		r.cached.Add(1)
		r.emit(n, c.turn, v1.KindCallEnded, end)
	} else if r.tape.fresh {
		id := n.callID()
		r.emit(n, c.turn, v1.KindCallStarted, v1.CallStarted{ID: id, Call: c.call, Model: or(rec.asked, c.model.Info().Name), Key: rec.Key, Chars: chars, Tokens: c.input, Preview: preview(c.messages)})
		end := *rec.CallEnded
		end.ID = id
		r.emit(n, c.turn, v1.KindCallEnded, end)
		r.budget.credit(rec.Model, c.depth, rec.Usage)
	}
	if rec.Error != nil {
		return nil, &v1.Error{Code: rec.Error.Code, Op: "ask " + rec.Model, Message: rec.Error.Message}
	}
	return &llm.Reply{Text: rec.Text, Model: rec.Model, Finish: rec.Finish, Usage: rec.Usage, Wall: rec.Wall}, nil
}

// modelError tells whose fault it was.
func modelError(ctx context.Context, model string, err error) error {
	if ctx.Err() != nil {
		if c := context.Cause(ctx); c != nil {
			return c
		}
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err // package llm says best what it was
	}
	return &v1.Error{Code: v1.CodeModelFailed, Op: "ask " + model, Err: err}
}

func note(err error) *v1.EventError {
	if err == nil {
		return nil
	}
	return &v1.EventError{Code: v1.CodeOf(err), Message: err.Error()}
}

// preview is the beginning of what was asked last.
func preview(m []llm.Message) string {
	if len(m) == 0 {
		return ""
	}
	return firstRunes(strings.ToValidUTF8(m[len(m)-1].Content, "\uFFFD"), previewChars)
}
