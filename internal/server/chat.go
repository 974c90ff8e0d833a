package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// chatLongText is the number of characters above which a text of a message becomes a context of the run. docs/RLM.md
// names it; change both.
const chatLongText = 8_000

// headerRun is the header with the id of the run that answered.
const headerRun = "Recluse-Run"

// chatRequest has the supported fields of OpenAI's request. Other fields are ignored.
type chatRequest struct {
	Model               string        `json:"model" doc:"name of the model"`
	Messages            []chatMessage `json:"messages" doc:"the conversation"`
	Stream              bool          `json:"stream,omitempty" doc:"send the answer in pieces, as events"`
	StreamOptions       streamOptions `json:"stream_options,omitzero" doc:"options of stream"`
	MaxTokens           int64         `json:"max_tokens,omitempty" doc:"maximum number of tokens in the answer"`
	MaxCompletionTokens int64         `json:"max_completion_tokens,omitempty" doc:"same as max_tokens"`
	Temperature         *float64      `json:"temperature,omitempty" doc:"sampling temperature"`
	Stop                chatStop      `json:"stop,omitempty" doc:"texts that end the answer"`
	ResponseFormat      *chatFormat   `json:"response_format,omitempty" doc:"format of the answer"`
	Tools               []any         `json:"tools,omitempty" doc:"not supported: a request with tools is refused"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty" doc:"send the usage as the last piece"`
}

type chatMessage struct {
	Role    string   `json:"role" doc:"author: system, developer, user or assistant"`
	Content chatText `json:"content" doc:"text of the message"`
}

// chatFormat is the requested format of the answer.
type chatFormat struct {
	Type       string `json:"type" doc:"text, json_object or json_schema"`
	JSONSchema struct {
		Schema json.RawMessage `json:"schema" doc:"JSON Schema of the answer"`
	} `json:"json_schema,omitzero" doc:"schema, for type json_schema"`
}

// chatText holds the text of a message: one string, or one for each part.
type chatText []string

// JSONType implements schema.Typed. It returns the type string, because most clients send one string.
func (chatText) JSONType() reflect.Type { return reflect.TypeFor[string]() }

// UnmarshalJSON implements json.Unmarshaler. It rejects parts that are not text.
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
			return invalid("unsupported type %q of a message part: want text", p.Type)
		}
		*t = append(*t, p.Text)
	}
	return nil
}

// chatStop holds the texts that end the answer. In JSON it is one string or a list.
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

// chatReply is a complete answer, or, with Delta instead of Message, a piece of it.
type chatReply struct {
	ID      string       `json:"id" doc:"id of the answer"`
	Object  string       `json:"object" doc:"chat.completion, or chat.completion.chunk for a piece"`
	Created int64        `json:"created" doc:"time of the answer, in seconds since 1970"`
	Model   string       `json:"model" doc:"name of the model"`
	Choices []chatChoice `json:"choices" doc:"the answer; empty in the piece with the usage"`
	Usage   *chatUsage   `json:"usage,omitempty" doc:"tokens in the conversation and in the answer"`
}

type chatChoice struct {
	Index   int       `json:"index" doc:"always 0"`
	Message *chatSaid `json:"message,omitempty" doc:"the complete answer"`
	Delta   *chatSaid `json:"delta,omitempty" doc:"a piece of the answer"`
	Finish  *string   `json:"finish_reason" doc:"why the answer ended: stop, length or content_filter; null before the last piece"`
	Logs    *struct{} `json:"logprobs" doc:"always null"`
}

// chatSaid is the text of an answer. Its name is the name of the schema in the OpenAPI document.
type chatSaid struct {
	Role    string `json:"role,omitempty" doc:"always assistant"`
	Content string `json:"content" doc:"text of the answer"`
}

type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens" doc:"tokens in the conversation"`
	Completion int64 `json:"completion_tokens" doc:"tokens in the answer"`
	Total      int64 `json:"total_tokens" doc:"sum of both"`
	Estimated  bool  `json:"estimated,omitempty" doc:"some tokens are estimated, because the provider did not report them"`
}

// chatFailure is an error in OpenAI's format.
type chatFailure struct {
	Error chatError `json:"error" doc:"the error"`
}

type chatError struct {
	Message string  `json:"message" doc:"what happened"`
	Type    string  `json:"type" doc:"the code, as words"`
	Code    v1.Code `json:"code" doc:"stable code, for programs"`
	Param   *string `json:"param" doc:"always null"`
}

// chatDone is the data of the last event of a stream.
const chatDone = "[DONE]"

func usageOf(u llm.Usage) *chatUsage { return &chatUsage{u.Input, u.Output, u.Tokens(), u.Estimated} }

// chat answers a conversation. Errors have OpenAI's format, so that its clients understand them.
func chat(c *call) error {
	if err := c.chat(); err != nil {
		if c.w.status != 0 {
			return err
		}
		p := problem.Of(err)
		c.w.problem, c.status = p, p.Status
		c.closeAfter(p)
		if p.Status == http.StatusTooManyRequests {
			c.w.Header().Set("Retry-After", strconv.Itoa(chatRetryAfter(p.Code)))
		}
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

// chatRetryAfter returns the seconds after which a client should repeat a request that was refused with status 429. The
// official clients repeat it much sooner without this header.
func chatRetryAfter(code v1.Code) int {
	if code == v1.CodeQueueFull {
		return 5 // until one of the current requests or runs ends
	}
	return 60 // quotas and the limits of providers are mostly per minute or longer
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
		return invalid("missing messages")
	}
	if len(in.Tools) > 0 {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "read request",
			Message: "tools are not supported: the answer would never call them",
			Remedy:  "leave tools out; the code of a run can call tools of MCP servers that the operator configures",
		}
	}
	if in.Model == defaultModel || in.Model == "" {
		in.Model = ""
	} else if _, err := k.Models().Model(in.Model); err != nil {
		return err
	}
	if !c.who.host {
		if err := k.CheckRemoteModel(in.Model); err != nil {
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

// chatPlain answers by one call of the model.
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
	req := llm.Request{
		MaxTokens:   max(in.MaxTokens, in.MaxCompletionTokens),
		Temperature: in.Temperature,
		Stop:        in.Stop,
		Schema:      in.schema(),
	}
	for _, msg := range in.Messages {
		req.Messages = append(req.Messages, llm.Message{
			Role:    roleOf(msg.Role),
			Content: strings.Join(msg.Content, "\n"),
		})
	}
	var filter rlm.ReplyFilter
	if in.Stream {
		out.start()
		defer out.st.close()
		req.Delta = func(text string) bool {
			text = filter.Add(text)
			return text == "" || out.piece(text) == nil
		}
	}
	reply, err := k.Complete(c.ctx(), c.who.tenant, out.id, m, req)
	if err != nil {
		return out.fail(err)
	}
	finish := "stop"
	switch reply.Finish {
	case llm.FinishLength:
		finish = "length"
	case llm.FinishFilter:
		finish = "content_filter"
	}
	if in.Stream {
		if rest := filter.End(); rest != "" {
			_ = out.piece(rest) // the caller may have disconnected
		}
		return out.end("", finish, reply.Usage)
	}
	return out.end(filter.Add(reply.Text)+filter.End(), finish, reply.Usage)
}

// chatRun answers by a run. The run ends with the request. chatRun calls release as soon as the body of the request is
// no longer needed.
func (c *call) chatRun(k *runs.Keeper, in *chatRequest, out *chatOut, release func()) error {
	r, kept, err := c.chatBegin(k, in)
	if err != nil {
		return err
	}
	in.Messages = nil // the contexts are on disk now
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
				break // Wait returns the error
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
		finish = "length" // the best answer when a limit was reached
	}
	if in.Stream {
		if err := out.piece(res.Answer); err != nil {
			return nil // the caller has disconnected
		}
	}
	return out.end(res.Answer, finish, res.Usage)
}

// chatBegin starts the run. kept is the number of bytes of the conversation that the run keeps in memory, which may be
// many: only contexts are written to disk.
func (c *call) chatBegin(k *runs.Keeper, in *chatRequest) (r *rlm.Run, kept int64, err error) {
	ask := runs.Ask{
		Remote: !c.who.host,
		Waited: true,
		Question: rlm.Question{
			Model:  in.Model,
			Schema: in.schema(),
			Labels: map[string]string{"door": "chat"},
		},
	}
	ask.Query, ask.Inputs, ask.History = in.split()
	kept = int64(len(ask.Query))
	for _, m := range ask.History {
		kept += int64(len(m.Content))
	}
	r, err = k.Start(c.ctx(), c.who.tenant, ask)
	return r, kept, err
}

// progressOf returns a line that describes an event of a run, or "" for an event that is not progress.
func progressOf(e *v1.RunEvent) string {
	switch e.Kind {
	case v1.KindTurnStarted, v1.KindCellStarted, v1.KindCellEnded, v1.KindChildStarted, v1.KindChildEnded,
		v1.KindAnswer, v1.KindRunEnded:
		return fmt.Sprintf("%s node %s turn %d", e.Kind, e.Node, e.Turn)
	default:
	}
	return ""
}

// schema returns the JSON Schema of the answer; nil: the answer is text.
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

// split converts a conversation into a question. Long texts become contexts. The query is the last short text of the
// user, after all short texts of the system. The other texts are the history.
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
	if len(inputs) == 0 { // many short messages: the conversation itself is the context
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

// chatOut writes an answer, complete or in pieces.
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

// data writes an event without a type, as OpenAI does.
func (o *chatOut) data(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.st.write([]byte("data: " + string(b) + "\n\n"))
}

// comment sends progress as a comment, which clients ignore.
func (o *chatOut) comment(text string) { _ = o.st.write([]byte(": " + text + "\n\n")) } // write stores the error

// piece sends a piece of the answer.
func (o *chatOut) piece(text string) error {
	delta := &chatSaid{Content: text}
	if !o.began {
		o.began, delta.Role = true, "assistant"
	}
	return o.data(o.reply("chat.completion.chunk", chatChoice{Delta: delta}))
}

// end sends the complete answer, or the events after its last piece.
func (o *chatOut) end(text, finish string, u llm.Usage) error {
	if o.st == nil {
		r := o.reply("chat.completion", chatChoice{
			Message: &chatSaid{Role: "assistant", Content: text},
			Finish:  &finish,
		})
		r.Usage = usageOf(u)
		return o.c.reply(r)
	}
	// Errors of the writes are ignored: the caller may have disconnected.
	_ = o.data(o.reply("chat.completion.chunk", chatChoice{Delta: &chatSaid{}, Finish: &finish}))
	if o.in.StreamOptions.IncludeUsage {
		r := o.reply("chat.completion.chunk")
		r.Usage = usageOf(u)
		_ = o.data(r)
	}
	_ = o.st.write([]byte("data: " + chatDone + "\n\n"))
	return nil
}

// fail returns err, or sends it as the last event if the answer is a stream.
func (o *chatOut) fail(err error) error {
	if o.st == nil {
		return err
	}
	p := problem.Of(err)
	o.c.w.problem = p
	// The caller may have disconnected.
	_ = o.data(chatFailure{chatError{Message: p.Detail, Type: p.Title, Code: p.Code}})
	return nil
}
