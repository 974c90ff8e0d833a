package server

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// chatLongText is how many characters a text of a message has that is context. It is documented: change docs/RLM.md with it.
const chatLongText = 8_000

// headerRun names the run that has answered.
const headerRun = "Recluse-Run"

// chatRequest is what we heed of OpenAI's request. What else clients send is passed over.
type chatRequest struct {
	Model               string        `json:"model" doc:"name of the model"`
	Messages            []chatMessage `json:"messages" doc:"the conversation"`
	Stream              bool          `json:"stream,omitempty" doc:"send the answer as events, in pieces"`
	StreamOptions       streamOptions `json:"stream_options,omitzero" doc:"with stream"`
	MaxTokens           int64         `json:"max_tokens,omitempty" doc:"most tokens of the answer"`
	MaxCompletionTokens int64         `json:"max_completion_tokens,omitempty" doc:"most tokens of the answer"`
	Temperature         *float64      `json:"temperature,omitempty" doc:"sampling temperature"`
	Stop                chatStop      `json:"stop,omitempty" doc:"texts that end the answer"`
	ResponseFormat      *chatFormat   `json:"response_format,omitempty" doc:"format of the answer"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty" doc:"send the usage as the last piece"`
}

type chatMessage struct {
	Role    string   `json:"role" doc:"who says it: system, developer, user or assistant"`
	Content chatText `json:"content" doc:"what is said"`
}

// chatFormat asks for JSON.
type chatFormat struct {
	Type       string `json:"type" doc:"text, json_object or json_schema"`
	JSONSchema struct {
		Schema json.RawMessage `json:"schema" doc:"JSON Schema of the answer"`
	} `json:"json_schema,omitzero" doc:"with type json_schema"`
}

// chatText is the texts of a message: one, or several parts.
type chatText []string

// JSONType is that of one text, which is how most clients send it.
func (chatText) JSONType() reflect.Type { return reflect.TypeFor[string]() }

// UnmarshalJSON implements json.Unmarshaler. Parts that are no text are refused.
func (t *chatText) UnmarshalJSON(b []byte) error {
	var one *string
	if json.Unmarshal(b, &one) == nil {
		if *t = nil; one != nil {
			*t = chatText{*one}
		}
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	*t = nil
	for _, p := range parts {
		if p.Type != "text" {
			return invalid("a part of type %q: only text can be read here", p.Type)
		}
		*t = append(*t, p.Text)
	}
	return nil
}

// chatStop is one word or several.
type chatStop []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *chatStop) UnmarshalJSON(b []byte) error {
	var one *string
	if json.Unmarshal(b, &one) == nil {
		if *s = nil; one != nil {
			*s = chatStop{*one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(s))
}

// chatReply is a whole answer, and with Delta instead of Message a piece of one.
type chatReply struct {
	ID      string       `json:"id" doc:"id of the answer"`
	Object  string       `json:"object" doc:"chat.completion, or chat.completion.chunk for a piece"`
	Created int64        `json:"created" doc:"when it was made, in seconds since 1970"`
	Model   string       `json:"model" doc:"name of the model"`
	Choices []chatChoice `json:"choices" doc:"the answer; empty in the piece with the usage"`
	Usage   *chatUsage   `json:"usage,omitempty" doc:"tokens of the conversation and the answer"`
}

type chatChoice struct {
	Index   int       `json:"index" doc:"always 0"`
	Message *chatSaid `json:"message,omitempty" doc:"the whole answer"`
	Delta   *chatSaid `json:"delta,omitempty" doc:"a piece of the answer"`
	Finish  *string   `json:"finish_reason" doc:"why it ended: stop or length; null before the last piece"`
	Logs    *struct{} `json:"logprobs" doc:"always null"`
}

type chatSaid struct {
	Role    string `json:"role,omitempty" doc:"always assistant"`
	Content string `json:"content" doc:"text of the answer"`
}

type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens" doc:"tokens of the conversation"`
	Completion int64 `json:"completion_tokens" doc:"tokens of the answer"`
	Total      int64 `json:"total_tokens" doc:"tokens of both"`
}

// chatFailure is an error as OpenAI writes it.
type chatFailure struct {
	Error chatError `json:"error" doc:"why there is no answer"`
}

type chatError struct {
	Message string  `json:"message" doc:"what happened"`
	Type    string  `json:"type" doc:"code in words"`
	Code    v1.Code `json:"code" doc:"stable code, for programs"`
	Param   *string `json:"param" doc:"always null"`
}

// chatDone is the data of the last event of a stream.
const chatDone = "[DONE]"

func usageOf(u llm.Usage) *chatUsage { return &chatUsage{u.Input, u.Output, u.Tokens()} }

// chat answers a conversation. Errors look as OpenAI's do, so that its clients understand them.
func chat(c *call) error {
	if err := c.chat(); err != nil {
		if c.w.status != 0 {
			return err
		}
		p := problem.Of(err)
		c.w.problem, c.status = p, p.Status
		c.closeAfter(p)
		text := p.Detail
		for _, more := range []string{p.Cause, p.Remedy} {
			if more != "" {
				text += ": " + more
			}
		}
		return c.reply(chatFailure{chatError{Message: text, Type: p.Title, Code: p.Code}})
	}
	return nil
}

func (c *call) chat() error {
	k, err := c.keeper()
	if err != nil {
		return err
	}
	raw, release, err := c.readLarge()
	defer release()
	if err != nil {
		return err
	}
	var in chatRequest
	if err := unmarshal(raw, &in); err != nil {
		return err
	}
	if len(in.Messages) == 0 {
		return invalid("there are no messages")
	}
	if in.Model == defaultModel || in.Model == "" {
		in.Model = ""
	} else if _, err := k.Models().Model(in.Model); err != nil {
		return err
	}
	if !c.who.host {
		if err := k.MayChoose(in.Model); err != nil {
			return err
		}
	}
	out := &chatOut{c: c, in: &in, id: "chatcmpl-" + c.id, model: in.Model}
	if out.model == "" {
		out.model = defaultModel
	}
	var tokens int64
	for _, m := range in.Messages {
		for _, t := range m.Content {
			tokens += llm.Count(t)
		}
	}
	if k.Small(tokens) {
		return c.chatPlain(k, &in, out)
	}
	return c.chatRun(k, &in, out, release)
}

// chatPlain hands the conversation to the model.
func (c *call) chatPlain(k *runs.Keeper, in *chatRequest, out *chatOut) error {
	name := in.Model
	if name == "" {
		names, err := k.Names(c.ctx())
		if err != nil {
			return err
		}
		name = names[0]
	}
	m, err := k.Models().Model(name)
	if err != nil {
		return err
	}
	req := llm.Request{MaxTokens: max(in.MaxTokens, in.MaxCompletionTokens), Temperature: in.Temperature, Stop: in.Stop, Schema: in.schema()}
	for _, msg := range in.Messages {
		req.Messages = append(req.Messages, llm.Message{Role: roleOf(msg.Role), Content: strings.Join(msg.Content, "\n")})
	}
	if in.Stream {
		out.start()
		defer out.st.close()
		req.Delta = func(text string) bool { return out.piece(text) == nil }
	}
	reply, err := k.Complete(c.ctx(), c.who.tenant, out.id, m, req)
	if err != nil {
		return out.fail(err)
	}
	finish := "stop"
	if reply.Finish == llm.FinishLength {
		finish = "length"
	}
	return out.end(reply.Text, finish, reply.Usage)
}

// chatRun answers by a run. It ends with the request; release gives back the place of what was sent.
func (c *call) chatRun(k *runs.Keeper, in *chatRequest, out *chatOut, release func()) error {
	r, kept, err := c.chatBegin(k, in)
	if err != nil {
		return err
	}
	in.Messages = nil // contexts are on disk now
	if kept < c.s.opts.Limits.Body {
		release()
	}
	defer context.AfterFunc(c.ctx(), r.Cancel)()
	c.w.Header().Set(headerRun, r.ID())
	if in.Stream {
		out.start()
		defer out.st.close()
		out.comment("run " + r.ID())
		for e, err := range r.Events(c.ctx(), 0) {
			if err != nil {
				break // Wait tells
			}
			if line := progressOf(&e); line != "" {
				out.comment(line)
			}
		}
	}
	res, err := r.Wait()
	if err != nil && (res == nil || res.Answer == "") {
		return out.fail(err)
	}
	finish := "stop"
	if res.Partial {
		finish = "length" // it is the best there was when something ran out
	}
	if in.Stream {
		if err := out.piece(res.Answer); err != nil {
			return nil // the caller has gone
		}
	}
	return out.end(res.Answer, finish, res.Usage)
}

// chatBegin begins the run, and tells how many bytes of the conversation it keeps in memory: what was said may be long as well.
func (c *call) chatBegin(k *runs.Keeper, in *chatRequest) (r *rlm.Run, kept int64, err error) {
	ask := runs.Ask{Away: !c.who.host, Waited: true, Question: rlm.Question{Model: in.Model, Schema: in.schema(), Labels: map[string]string{"door": "chat"}}}
	ask.Query, ask.Inputs, ask.History = in.split()
	kept = int64(len(ask.Query))
	for _, m := range ask.History {
		kept += int64(len(m.Content))
	}
	r, err = k.Start(c.ctx(), c.who.tenant, ask)
	return r, kept, err
}

// progressOf is a line about an event that is worth one.
func progressOf(e *v1.RunEvent) string {
	switch e.Kind {
	case v1.KindTurnStarted, v1.KindCellStarted, v1.KindCellEnded, v1.KindChildStarted, v1.KindChildEnded, v1.KindAnswer, v1.KindRunEnded:
		return fmt.Sprintf("%s node %s turn %d", e.Kind, e.Node, e.Turn)
	default: // the other events do not matter here
	}
	return ""
}

// schema is the one the answer must meet.
func (in *chatRequest) schema() json.RawMessage {
	if in.ResponseFormat == nil {
		return nil
	}
	switch in.ResponseFormat.Type {
	case "json_schema":
		return in.ResponseFormat.JSONSchema.Schema
	case "json_object":
		return json.RawMessage(`{"type":"object"}`)
	}
	return nil
}

// split makes a question of a conversation: long texts are the context, the last short text of the user's is the question, with what the system
// said before it; what else was said is the history.
func (in *chatRequest) split() (query string, inputs []rlm.Input, history []llm.Message) {
	var rules []string
	last := -1
	for _, m := range in.Messages {
		for _, t := range m.Content {
			role := roleOf(m.Role)
			switch {
			case utf8.RuneCountInString(t) > chatLongText:
				in := rlm.Text(t)
				in.Name = fmt.Sprintf("%s text %d", m.Role, len(inputs)+1)
				inputs = append(inputs, in)
			case role == llm.System:
				rules = append(rules, t)
			default:
				if role == llm.User {
					last = len(history)
				}
				history = append(history, llm.Message{Role: role, Content: t})
			}
		}
	}
	if len(inputs) == 0 { // many short messages: the conversation itself is what is long
		inputs = append(inputs, rlm.Messages(history))
	}
	if last >= 0 {
		query = history[last].Content
		history = append(history[:last:last], history[last+1:]...)
	}
	if len(rules) > 0 {
		query = strings.Join(append(rules, query), "\n\n")
	}
	return query, inputs, history
}

func roleOf(name string) llm.Role {
	switch name {
	case "system", "developer":
		return llm.System
	case "assistant":
		return llm.Assistant
	}
	return llm.User
}

// chatOut writes an answer, whole or in pieces.
type chatOut struct {
	c         *call
	in        *chatRequest
	id, model string
	st        *stream
	began     bool
}

func (o *chatOut) start() { o.st = startStream(o.c) }

func (o *chatOut) reply(object string, choices ...chatChoice) chatReply {
	if choices == nil {
		choices = []chatChoice{}
	}
	return chatReply{ID: o.id, Object: object, Created: time.Now().Unix(), Model: o.model, Choices: choices}
}

// data writes an event without a name, which is how OpenAI's look.
func (o *chatOut) data(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.st.write([]byte("data: " + string(b) + "\n\n"))
}

// comment tells of progress in a way that every client passes over.
func (o *chatOut) comment(text string) { _ = o.st.write([]byte(": " + text + "\n\n")) } // noted

// piece sends a piece of the answer.
func (o *chatOut) piece(text string) error {
	said := &chatSaid{Content: text}
	if !o.began {
		o.began, said.Role = true, "assistant"
	}
	return o.data(o.reply("chat.completion.chunk", chatChoice{Delta: said}))
}

// end sends the whole answer, or what belongs behind its pieces.
func (o *chatOut) end(text, finish string, u llm.Usage) error {
	if o.st == nil {
		r := o.reply("chat.completion", chatChoice{Message: &chatSaid{Role: "assistant", Content: text}, Finish: &finish})
		r.Usage = usageOf(u)
		return o.c.reply(r)
	}
	_ = o.data(o.reply("chat.completion.chunk", chatChoice{Delta: &chatSaid{}, Finish: &finish})) // a caller who has gone misses it
	if o.in.StreamOptions.IncludeUsage {
		r := o.reply("chat.completion.chunk")
		r.Usage = usageOf(u)
		_ = o.data(r) // likewise
	}
	_ = o.st.write([]byte("data: " + chatDone + "\n\n")) // likewise
	return nil
}

// fail tells an error; in a stream as its last event.
func (o *chatOut) fail(err error) error {
	if o.st == nil {
		return err
	}
	p := problem.Of(err)
	o.c.w.problem = p
	_ = o.data(chatFailure{chatError{Message: p.Detail, Type: p.Title, Code: p.Code}}) // a caller who has gone misses it
	return nil
}
