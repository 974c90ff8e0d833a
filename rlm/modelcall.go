package rlm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

const (
	// maxReplyBytes stops the generation of a model that ignores its token limit.
	maxReplyBytes = 4 << 20
	// drainBytes and drainTime bound what is still read after the first block of a reply. A provider reports the usage at
	// the end of a reply, so that a reply that is cut at once has none.
	drainBytes = 1024
	drainTime  = 2 * time.Second
)

// modelCall is one request to a model.
type modelCall struct {
	id        string // once it has started
	kind      string
	turn      int
	depth     int // depth of the model
	model     llm.Model
	messages  []llm.Message
	input     int64           // tokens; 0: not counted yet
	requested string          // name of the model, if code chose one
	oneBlock  bool            // stop the generation after the first block
	schema    json.RawMessage // for providers that can enforce it; may be nil
	received  int64           // tokens of the text that was received, also beyond a cut
}

// key identifies the request, whichever model answers it. For a sub-call it is a hash of the messages and of the name
// of the requested model. Other calls are identified by their kind and turn alone, because their conversation contains
// output that may differ in a replay.
func (c *modelCall) key() string {
	if c.kind != v1.CallSub {
		return c.kind
	}
	h := sha256.New()
	h.Write([]byte(c.requested))
	for _, m := range c.messages {
		fmt.Fprintf(h, "\x00%s\x00%d\x00", m.Role, len(m.Content))
		h.Write([]byte(m.Content))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// cacheKey returns the key of the reply in a cache. It contains the names of all fallback models: a reply of a fallback
// model must not be returned to a call that has no fallback.
func (c *modelCall) cacheKey(key string) string {
	return strings.Join(llm.Names(c.model), ",") + "\x00" + key
}

// callModel sends a request to a model, within the budget of the whole tree. All model calls of a run go through it.
func (n *node) callModel(ctx context.Context, c modelCall) (*llm.Reply, error) {
	key := c.key()
	r := n.run
	if c.kind != v1.CallSub || r.recording.strict() {
		// The recording also has the replies that came from a cache. A replay must not depend on a cache, because the
		// cache may have been shared with other runs.
		return n.callUncached(ctx, &c, key)
	}
	cacheKey := c.cacheKey(key)
	if rec := r.recording.takeCall(n.id, c.turn, c.kind, key); rec != nil {
		// The cell and this call ran before the run was resumed. Emit no events again.
		return n.replaySubCall(&c, rec, cacheKey)
	}
	hit, err := r.cache.get(ctx, cacheKey)
	if err != nil {
		return nil, err
	}
	if hit != nil {
		r.cacheHits.Add(1)
		r.emit(n, c.turn, v1.KindCallEnded, v1.CallEnded{
			ID:     n.callID(),
			Call:   c.kind,
			Key:    key,
			Model:  hit.Model,
			Text:   hit.Text,
			Finish: hit.Finish,
			Cached: true,
			Prompt: r.asked.Put(c.messages),
		})
		return hit, nil
	}
	reply, err := n.callUncached(ctx, &c, key)
	if err != nil {
		r.cache.put(cacheKey, nil)
		return nil, err
	}
	if reply.Finish == llm.FinishLength {
		// The reply may have been cut because concurrent calls had reserved the budget. A later call may get all of it.
		r.cache.put(cacheKey, nil)
		return reply, nil
	}
	r.cache.put(cacheKey, reply)
	return reply, nil
}

// replaySubCall returns the recorded reply to a sub-call of a resumed run, and adds it to the cache.
func (n *node) replaySubCall(c *modelCall, rec *recordedCall, cacheKey string) (*llm.Reply, error) {
	reply, err := n.replayCall(c, rec, 0)
	if err == nil && reply.Finish != llm.FinishLength {
		n.run.cache.add(cacheKey, reply)
	}
	return reply, err
}

func (n *node) callID() string { return "c" + strconv.FormatInt(n.run.calls.Add(1), 10) }

// callUncached sends a request to a model without the cache. A recorded reply is used instead, if there is one.
func (n *node) callUncached(ctx context.Context, c *modelCall, key string) (*llm.Reply, error) {
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
	if info.Window > 0 && c.input+minReply > info.Window {
		return nil, &v1.Error{
			Code: v1.CodeWindow,
			Op:   "ask " + info.Name,
			Message: fmt.Sprintf("the prompt has about %d tokens (%d bytes), and the model's window is %d tokens",
				c.input, chars, info.Window),
			Remedy: "cut the prompt into smaller pieces",
		}
	}
	if rec := r.recording.takeCall(n.id, c.turn, c.kind, key); rec != nil {
		return n.replayCall(c, rec, chars)
	}
	if r.recording.strict() {
		return nil, &v1.Error{
			Code:    v1.CodeNotRecorded,
			Op:      "replay",
			Message: fmt.Sprintf("the recorded run has no matching model call (%s in turn %d)", c.kind, c.turn),
		}
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
	var last *node
	if c.kind == v1.CallLast {
		last = n
	}
	res, err := n.budget.reserveFor(ctx, last, info, c.input)
	if err != nil {
		return nil, err
	}
	id := n.callID()
	r.emit(n, c.turn, v1.KindCallStarted, v1.CallStarted{
		ID:      id,
		Call:    c.kind,
		Model:   info.Name,
		Key:     key,
		Chars:   chars,
		Tokens:  c.input,
		Preview: r.preview(c.messages),
		Prompt:  r.asked.Put(c.messages),
	})
	c.id = id
	begun := time.Now()
	reply, over, err := n.complete(ctx, c, res)
	if c.kind != v1.CallSub {
		n.endProgress()
	}
	end := v1.CallEnded{ID: id, Call: c.kind, Key: key, Model: info.Name, Wall: time.Since(begun)}
	if reply != nil {
		n.setUsage(c, reply, res.reply)
		end.Text, end.Finish, end.Model = reply.Text, reply.Finish, or(reply.Model, info.Name)
		end.Usage, end.By = reply.Usage, reply.By
	}
	res.commitAll(end.UsageByModel(), c.depth)
	if err != nil {
		if err = callError(ctx, info.Name, err); over != nil {
			err = over
		}
		end.Error = eventError(err)
	}
	r.emit(n, c.turn, v1.KindCallEnded, end)
	if err != nil {
		return nil, err
	}
	n.recordRead(c)
	reply.Text = withoutReasoning(reply.Text)
	return reply, nil
}

// recordRead records the messages of a successful call as read. Messages of a conversation are sent in every turn, and
// recorded once.
func (n *node) recordRead(c *modelCall) {
	by := readByModel
	if c.kind == v1.CallSub || n.depth > 0 {
		by = readByCall
	}
	for _, m := range c.messages {
		if c.kind != v1.CallSub {
			h := maphash.String(readSeed, m.Content)
			if n.read[h] {
				continue
			}
			if n.read == nil {
				n.read = map[uint64]bool{}
			}
			n.read[h] = true
		}
		n.run.coverage.record(m.Content, by)
	}
	n.reportProgress(func(*progress) {})
}

var readSeed = maphash.MakeSeed()

// perMessage is the approximate number of tokens that a message takes besides its content.
const perMessage = 4

// complete requests a reply within a reservation. It stops the generation of a turn after the first block if c.oneBlock
// is set, and after maxReplyBytes. over is the limit that did not allow to send a failed request again; nil: none.
func (n *node) complete(ctx context.Context, c *modelCall, res *reservation) (reply *llm.Reply, over, err error) {
	var text strings.Builder
	fenceAt, end := -1, 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var drain *time.Timer
	req := llm.Request{
		Messages:  c.messages,
		MaxTokens: res.reply,
		Schema:    c.schema,
		Tags: map[string]string{
			"run":   n.run.id,
			"node":  n.id,
			"call":  c.kind,
			"depth": strconv.Itoa(c.depth),
			"turn":  strconv.Itoa(c.turn),
		},
	}
	if c.kind != v1.CallSub {
		req.Delta = func(s string) bool {
			from := max(0, text.Len()-2)
			text.WriteString(s)
			n.reportText(c.id, text.String())
			if text.Len() > maxReplyBytes {
				return false
			}
			if !c.oneBlock {
				return true
			}
			all := text.String()
			if end > 0 {
				if strings.Contains(s, ">") {
					end = firstBlockEnd(maskReasoning(all))
				}
				if end == 0 { // what looked like the reply was reasoning
					drain.Stop()
					drain = nil
				}
				return end == 0 || len(all)-end < drainBytes
			}
			if i := max(strings.LastIndex(all[from:], "```"), strings.LastIndex(all[from:], "~~~")); i >= 0 {
				fenceAt = from + i
			}
			if fenceAt >= 0 && strings.IndexByte(all[fenceAt:], '\n') >= 0 {
				fenceAt = -1
				if end = firstBlockEnd(maskReasoning(all)); end > 0 && drain == nil {
					drain = time.AfterFunc(drainTime, cancel)
				}
			}
			return true
		}
	}
	req.Repeat = func(paid llm.Usage) bool {
		if end > 0 {
			return false // the first block is complete, and the rest is not needed
		}
		n.learn(c, paid)
		if over = res.again(c.model.Info(), c.input, n.estimate(c, paid)); over != nil {
			return false
		}
		text.Reset()
		fenceAt = -1
		return true
	}
	reply, err = c.model.Complete(ctx, req)
	if reply != nil {
		c.received = c.model.Count(or(text.String(), reply.Text))
	}
	if drain != nil {
		drain.Stop()
	}
	if reply == nil && err == nil {
		return nil, nil, errors.New("the model returned neither a reply nor an error")
	}
	if end > 0 {
		if reply == nil {
			reply = &llm.Reply{Model: c.model.Info().Name}
		}
		reply.Text, reply.Finish = text.String()[:end], llm.FinishCut
		err = nil // the first block is complete, and the rest is not needed
	}
	return reply, over, err
}

// setUsage completes the usage of a reply to a request with a maximum length. It estimates what the provider did not
// report, from what the same model needed before: a provider may count more tokens in a prompt than we do, and models
// may also produce tokens that are not in the text, for reasoning.
func (n *node) setUsage(c *modelCall, reply *llm.Reply, maxTokens int64) {
	name := or(reply.Model, c.model.Info().Name)
	if len(reply.By) == 0 {
		reply.Usage = n.usage(c, reply, name, reply.Usage, maxTokens)
		return
	}
	by, sum := map[string]llm.Usage{}, llm.Usage{}
	for model, u := range reply.By {
		if model == name {
			by[model] = n.usage(c, reply, model, u, maxTokens)
		} else {
			n.learn(c, u)
			by[model] = n.estimate(c, u)
		}
		sum = sum.Add(by[model])
	}
	reply.By, reply.Usage = by, sum
}

// usage returns the usage u of the model that wrote a reply, completed by estimates.
func (n *node) usage(c *modelCall, reply *llm.Reply, model string, u llm.Usage, maxTokens int64) llm.Usage {
	u.Calls = max(u.Calls, 1)
	info, meter := c.model.Info(), n.budget.meter
	n.learn(c, u)
	if u.Tokens() > 0 && !u.Estimated {
		if u.Calls == 1 {
			meter.addHidden(model, u.Output-c.received)
		}
		return u
	}
	if u.Tokens() == 0 {
		u.Input, u.Output, u.Estimated = c.input, c.model.Count(reply.Text), true
		u.Cost = meter.costOf(info.Name, paidPrice(info), u)
		u.Unpriced = u.Unpriced || info.Price == nil && !info.Local
	}
	u = n.estimate(c, u)
	if reply.Finish == llm.FinishCut {
		// Less than the maximum length was received, and hidden tokens count for it.
		hidden := max(0, min(meter.hiddenTokens(model), u.Calls*maxTokens-u.Output))
		u.Output += hidden
		u.Cost += meter.costOf(info.Name, paidPrice(info), llm.Usage{Output: hidden})
	}
	return u
}

// inputEstimated reports whether the input in a usage of requests of a call is our estimate, not the count of the
// provider.
func (c *modelCall) inputEstimated(u llm.Usage) bool {
	const near = perMessage // package llm adds a few tokens for the conversation
	diff := u.Input - u.Calls*c.input
	return u.Estimated && diff >= 0 && diff <= u.Calls*near
}

// learn tells the meter what a provider reported of one request of a call.
func (n *node) learn(c *modelCall, u llm.Usage) {
	if info := c.model.Info(); u.Calls == 1 && u.Input > 0 && !c.inputEstimated(u) {
		n.budget.meter.learn(info.Name, paidPrice(info), c.input, u)
	}
}

// estimate corrects a usage whose input is our estimate.
func (n *node) estimate(c *modelCall, u llm.Usage) llm.Usage {
	if !c.inputEstimated(u) {
		return u
	}
	info, meter := c.model.Info(), n.budget.meter
	more := u.Calls*meter.inputFor(info.Name, c.input) - u.Input
	u.Input += more
	u.Cost += meter.costOf(info.Name, paidPrice(info), llm.Usage{Input: max(0, more)})
	return u
}

// replayCall returns a recorded reply. In a replay it also emits the events of the call and adds its usage.
func (n *node) replayCall(c *modelCall, rec *recordedCall, chars int64) (*llm.Reply, error) {
	r := n.run
	if r.recording.emitAgain && rec.Cached {
		end := *rec.CallEnded
		end.ID, end.Prompt = n.callID(), r.asked.Put(c.messages)
		r.cacheHits.Add(1)
		r.emit(n, c.turn, v1.KindCallEnded, end)
	} else if r.recording.emitAgain {
		id := n.callID()
		r.emit(n, c.turn, v1.KindCallStarted, v1.CallStarted{
			ID:      id,
			Call:    c.kind,
			Model:   or(rec.requested, c.model.Info().Name),
			Key:     rec.Key,
			Chars:   chars,
			Tokens:  c.input,
			Preview: r.preview(c.messages),
			Prompt:  r.asked.Put(c.messages),
		})
		end := *rec.CallEnded
		end.ID = id
		r.emit(n, c.turn, v1.KindCallEnded, end)
		for model, u := range rec.UsageByModel() {
			n.budget.credit(model, c.depth, u)
		}
	}
	if rec.Error != nil {
		return nil, &v1.Error{Code: rec.Error.Code, Op: "ask " + rec.Model, Message: rec.Error.Message}
	}
	if !rec.Cached {
		n.recordRead(c)
	}
	return &llm.Reply{
		Text:   withoutReasoning(rec.Text),
		Model:  rec.Model,
		Finish: rec.Finish,
		Usage:  rec.Usage,
		Wall:   rec.Wall,
	}, nil
}

// callError returns the error to report for a failed model call: the cancellation cause if ctx is done, else err with a
// code.
func callError(ctx context.Context, model string, err error) error {
	if ctx.Err() != nil {
		if c := context.Cause(ctx); c != nil {
			return c
		}
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err // package llm has set a precise code
	}
	return &v1.Error{Code: v1.CodeModelFailed, Op: "ask " + model, Err: err}
}

func eventError(err error) *v1.EventError {
	if err == nil {
		return nil
	}
	return &v1.EventError{Code: v1.CodeOf(err), Message: err.Error()}
}

// preview returns the beginning of the last message.
func (r *Run) preview(m []llm.Message) string {
	if len(m) == 0 {
		return ""
	}
	return r.beginning(m[len(m)-1].Content)
}
