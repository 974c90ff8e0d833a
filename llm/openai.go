package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"
)

// openAI implements dialect for the Chat Completions API of OpenAI and compatible servers. The servers support
// different parameters. A parameter that a server has refused for a model is not sent again.
type openAI struct {
	service  openai.ChatCompletionService
	official bool // the server is api.openai.com
	noStream bool

	mu     sync.Mutex
	quirks map[string]quirks // guarded by mu; by model
}

// quirks are the parameters that a server does not support for a model.
type quirks struct {
	noUsage   bool // stream_options
	noStop    bool // stop; the sink finds stop words in any case
	maxTokens bool // the limit is max_tokens, not max_completion_tokens
}

// noStopModels matches the models of OpenAI that do not support stop words.
var noStopModels = lazyregexp.New(`^(o\d|gpt-[5-9])`)

// maxStops is how many stop words OpenAI accepts.
const maxStops = 4

// newOpenAI returns the dialect. It uses the SDK's service because the SDK's client would read keys and addresses from
// the environment, and send them to servers that they are not for.
func newOpenAI(cfg Provider, client *http.Client) *openAI {
	opts := []option.RequestOption{
		option.WithHTTPClient(client),
		option.WithBaseURL(strings.TrimRight(cfg.BaseURL, "/") + "/"),
		option.WithMaxRetries(0),
		option.WithUnsafeAllowHTTP(),
	}
	if cfg.Key != "" {
		opts = append(opts, option.WithAPIKey(cfg.Key))
	}
	for k, v := range cfg.Headers {
		opts = append(opts, option.WithHeader(k, v))
	}
	return &openAI{
		service:  openai.NewChatCompletionService(opts...),
		official: strings.HasPrefix(cfg.BaseURL, "https://api.openai.com/"),
		noStream: cfg.NoStream,
		quirks:   map[string]quirks{},
	}
}

// startQuirks returns the quirks that are assumed before the first call. All servers except api.openai.com support
// max_tokens, the older name of the limit.
func (o *openAI) startQuirks(model string) quirks {
	return quirks{noStop: o.official && noStopModels().MatchString(model), maxTokens: !o.official}
}

// ask implements dialect.
func (o *openAI) ask(ctx context.Context, q question, out *sink, res *outcome) error {
	o.mu.Lock()
	quirk, known := o.quirks[q.model]
	o.mu.Unlock()
	if !known {
		quirk = o.startQuirks(q.model)
	}
	for {
		params, err := o.params(q, quirk)
		if err != nil {
			return err
		}
		if o.noStream {
			err = o.askWhole(ctx, params, out, res)
		} else {
			err = o.stream(ctx, params, out, res)
		}
		learned, ok := quirk.learn(err, params)
		if !ok {
			return err
		}
		quirk = learned
		o.mu.Lock()
		o.quirks[q.model] = quirk
		o.mu.Unlock()
	}
}

// learn adds the parameter that err refuses to the quirks. It returns false if err is not about a parameter that can be
// left out.
func (k quirks) learn(err error, sent openai.ChatCompletionNewParams) (quirks, bool) {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.code != v1.CodeModelRefused {
		return k, false
	}
	was := k
	switch text := f.message; {
	case strings.Contains(text, "stream_options") && !param.IsOmitted(sent.StreamOptions):
		k.noUsage = true
	case strings.Contains(text, "max_completion_tokens") && !k.maxTokens && sent.MaxCompletionTokens.Valid():
		k.maxTokens = true
	case strings.Contains(text, "max_tokens") && k.maxTokens && sent.MaxTokens.Valid():
		k.maxTokens = false
	case strings.Contains(text, "stop") && !k.noStop && len(sent.Stop.OfStringArray) > 0:
		k.noStop = true
	}
	return k, k != was
}

// params returns the parameters of a request, without those that the server does not support.
func (o *openAI) params(q question, quirk quirks) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{Model: q.model}
	for _, m := range q.req.Messages {
		switch m.Role {
		case System:
			p.Messages = append(p.Messages, openai.SystemMessage(m.Content))
		case Assistant:
			p.Messages = append(p.Messages, openai.AssistantMessage(m.Content))
		default:
			p.Messages = append(p.Messages, openai.UserMessage(m.Content))
		}
	}
	if n := q.req.MaxTokens; n > 0 {
		if quirk.maxTokens {
			p.MaxTokens = openai.Int(n)
		} else {
			p.MaxCompletionTokens = openai.Int(n)
		}
	}
	if q.req.Temperature != nil {
		p.Temperature = openai.Float(*q.req.Temperature)
	}
	if n := len(q.req.Stop); n > 0 && n <= maxStops && !quirk.noStop {
		p.Stop.OfStringArray = q.req.Stop
	}
	if !o.noStream && !quirk.noUsage {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	if len(q.req.Schema) > 0 {
		var schema map[string]any
		if err := json.Unmarshal(q.req.Schema, &schema); err != nil {
			return p, badSchema(err)
		}
		p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "reply", Schema: schema},
		}
	}
	return p, nil
}

// badSchema returns the failure of a request whose schema is not a JSON object.
func badSchema(err error) *failure {
	return &failure{code: v1.CodeModelRefused, message: fmt.Sprintf("the schema is not a JSON object: %v", err)}
}

// stream requests a reply in pieces.
func (o *openAI) stream(ctx context.Context, params openai.ChatCompletionNewParams, out *sink, res *outcome) error {
	var resp *http.Response
	s := o.service.NewStreaming(ctx, params, option.WithResponseInto(&resp))
	defer s.Close()
	seen, counted, ended := false, false, false // a choice, a usage and the reason of the end have arrived
	var calls toolCalls
	for s.Next() {
		chunk := s.Current()
		seen = seen || len(chunk.Choices) > 0
		for _, c := range chunk.Choices {
			ended = ended || c.FinishReason != ""
		}
		if chunk.Usage.TotalTokens != 0 || chunk.Usage.PromptTokens != 0 {
			openAIUsage(chunk.Usage, res)
			counted = true
			// Some servers count in every chunk. A reply that is cut has more tokens than its last count.
			res.outputKnown = ended || len(chunk.Choices) == 0
		}
		if len(chunk.Choices) == 0 {
			continue
		}
		c := chunk.Choices[0]
		res.thinking += thinkingTokens(c.Delta.JSON.ExtraFields)
		for _, t := range c.Delta.ToolCalls {
			calls.add(t.Index, t.Function.Name, t.Function.Arguments)
		}
		if c.Delta.Refusal != "" {
			res.finish = FinishFilter
		}
		if !out.write(c.Delta.Content + c.Delta.Refusal) {
			return nil
		}
		if c.FinishReason != "" && res.finish != FinishFilter {
			res.finish = openAIFinish(c.FinishReason)
		}
	}
	if err := s.Err(); err != nil && !ended { // a reply that has ended is whole
		return openAIFailure(err)
	}
	if !seen {
		return emptyResponse(headerOf(resp))
	}
	if res.finish == "" && !counted {
		return truncatedReply()
	}
	res.outputKnown = res.outputKnown || counted && !ended
	calls.write(out)
	return nil
}

// askWhole requests a reply in one piece.
func (o *openAI) askWhole(ctx context.Context, params openai.ChatCompletionNewParams, out *sink, res *outcome) error {
	var resp *http.Response
	c, err := o.service.New(ctx, params, option.WithResponseInto(&resp))
	if err != nil {
		return openAIFailure(err)
	}
	if c == nil || len(c.Choices) == 0 {
		return emptyResponse(headerOf(resp))
	}
	if c.Usage.TotalTokens != 0 || c.Usage.PromptTokens != 0 {
		openAIUsage(c.Usage, res)
	}
	choice := c.Choices[0]
	res.thinking += thinkingTokens(choice.Message.JSON.ExtraFields)
	res.finish = openAIFinish(choice.FinishReason)
	if choice.Message.Refusal != "" {
		res.finish = FinishFilter
	}
	out.write(choice.Message.Content + choice.Message.Refusal)
	var calls toolCalls
	for i, t := range choice.Message.ToolCalls {
		calls.add(int64(i), t.Function.Name, t.Function.Arguments)
	}
	calls.write(out)
	return nil
}

func openAIUsage(u openai.CompletionUsage, res *outcome) {
	res.input, res.cached = u.PromptTokens, u.PromptTokensDetails.CachedTokens
	res.output, res.outputKnown = u.CompletionTokens, true
	// OpenRouter reports the cost of the call.
	if cost, err := strconv.ParseFloat(u.JSON.ExtraFields["cost"].Raw(), 64); err == nil {
		res.providerCost = cost
	}
}

func openAIFinish(reason string) Finish {
	switch reason {
	case "length":
		return FinishLength
	case "content_filter":
		return FinishFilter
	}
	return FinishStop
}

// thinkingTokens estimates the tokens of the thinking that some servers send in an extra field.
func thinkingTokens(fields map[string]respjson.Field) int64 {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		var text string
		if json.Unmarshal([]byte(fields[name].Raw()), &text) == nil && text != "" {
			return Count(text)
		}
	}
	return 0
}

func openAIFailure(err error) error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		body := e.RawJSON()
		return errorResponse(e.StatusCode, headerOf(e.Response), body)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return errorResponse(0, nil, string(e.Event.Data))
	}
	return err
}

func headerOf(resp *http.Response) http.Header {
	if resp == nil {
		return http.Header{}
	}
	return resp.Header
}
