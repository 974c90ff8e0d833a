package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// cacheWriteSurcharge is what Anthropic charges for a token that it writes into its cache, as a fraction of the input
// price and in addition to it.
const cacheWriteSurcharge = 0.25

// anthropicAPI implements dialect for Anthropic's Messages API. It always streams, because the SDK refuses long replies
// otherwise.
type anthropicAPI struct {
	service anthropic.MessageService
}

// newAnthropic returns the dialect. It uses the SDK's service because the SDK's client would read keys and addresses
// from the environment.
func newAnthropic(cfg Provider, client *http.Client) *anthropicAPI {
	opts := []option.RequestOption{
		option.WithHTTPClient(client),
		option.WithBaseURL(strings.TrimRight(cfg.BaseURL, "/") + "/"),
		option.WithMaxRetries(0),
	}
	if cfg.Key != "" {
		opts = append(opts, option.WithAPIKey(cfg.Key))
	}
	for k, v := range cfg.Headers {
		opts = append(opts, option.WithHeader(k, v))
	}
	return &anthropicAPI{service: anthropic.NewMessageService(opts...)}
}

// params returns the parameters of a request. Anthropic's API has a separate field for system texts, and refuses empty
// messages.
func (a *anthropicAPI) params(q question) (anthropic.MessageNewParams, error) {
	p := anthropic.MessageNewParams{Model: q.model, MaxTokens: q.req.MaxTokens}
	if p.MaxTokens <= 0 {
		p.MaxTokens = q.info.Output
	}
	for i, m := range q.req.Messages {
		text := m.Content
		if m.Role == Assistant && i == len(q.req.Messages)-1 {
			text = strings.TrimRight(text, " \t\r\n") // a prefilled reply must not end in white space
		}
		if strings.TrimSpace(text) == "" {
			continue
		}
		switch m.Role {
		case System:
			p.System = append(p.System, anthropic.TextBlockParam{Text: text})
		case Assistant:
			p.Messages = append(p.Messages, anthropic.NewAssistantMessage(anthropic.NewTextBlock(text)))
			// A conversation with replies continues, and its next request begins with the same messages. Anthropic
			// caches them.
			p.CacheControl = anthropic.NewCacheControlEphemeralParam()
		default:
			p.Messages = append(p.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock(text)))
		}
	}
	if len(p.Messages) == 0 {
		for _, s := range p.System {
			p.Messages = append(p.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock(s.Text)))
		}
		p.System = nil
	}
	if q.req.Temperature != nil {
		p.Temperature = anthropic.Float(*q.req.Temperature)
	}
	for _, s := range q.req.Stop {
		if strings.TrimSpace(s) != "" { // Anthropic refuses stop words of white space; the sink finds them
			p.StopSequences = append(p.StopSequences, s)
		}
	}
	if len(q.req.Schema) > 0 {
		if err := json.Unmarshal(q.req.Schema, &p.OutputConfig.Format.Schema); err != nil {
			return p, badSchema(err)
		}
	}
	return p, nil
}

// ask implements dialect.
func (a *anthropicAPI) ask(ctx context.Context, q question, out *sink, res *outcome) error {
	params, err := a.params(q)
	if err != nil {
		return err
	}
	var resp *http.Response
	s := a.service.NewStreaming(ctx, params, option.WithResponseInto(&resp))
	defer s.Close()
	begun, ended := false, false
	var calls toolCalls
	for s.Next() {
		event := s.Current()
		switch event.Type {
		case "message_start":
			begun = true
			u := event.Message.Usage
			anthropicInput(res, u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens)
			res.output = u.OutputTokens
		case "content_block_start":
			if event.ContentBlock.Type == "tool_use" {
				calls.add(event.Index, event.ContentBlock.Name, "") // the arguments follow in pieces
			}
			if !out.write(event.ContentBlock.Text) {
				return nil
			}
		case "content_block_delta":
			res.thinking += Count(event.Delta.Thinking)
			if event.Delta.PartialJSON != "" {
				calls.add(event.Index, "", event.Delta.PartialJSON)
			}
			if !out.write(event.Delta.Text) {
				return nil
			}
		case "message_delta":
			if u := event.Usage; u.InputTokens > 0 {
				anthropicInput(res, u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens)
			}
			if event.Delta.StopReason != "" {
				res.output, res.outputKnown = event.Usage.OutputTokens, true
				res.finish = anthropicFinish(event.Delta.StopReason)
			}
		case "message_stop":
			ended = true
		}
	}
	if err := s.Err(); err != nil {
		return anthropicFailure(err)
	}
	if !begun {
		return emptyResponse(headerOf(resp))
	}
	if !ended && res.finish == "" {
		return truncatedReply()
	}
	calls.write(out)
	return nil
}

// anthropicInput stores the input tokens, which Anthropic reports as three separate numbers.
func anthropicInput(res *outcome, plain, read, written int64) {
	if min(plain, read, written) < 0 {
		plain, read, written = -1, 0, 0 // implausible, whatever the sum is
	}
	res.input, res.cached, res.extraInput = plain+read+written, read, cacheWriteSurcharge*float64(written)
}

func anthropicFinish(reason anthropic.StopReason) Finish {
	switch reason {
	case anthropic.StopReasonMaxTokens, "model_context_window_exceeded":
		return FinishLength
	case anthropic.StopReasonRefusal:
		return FinishFilter
	}
	return FinishStop
}

func anthropicFailure(err error) error {
	e, ok := errors.AsType[*anthropic.Error](err)
	if !ok {
		return err
	}
	status := e.StatusCode
	if status == http.StatusOK {
		status = 0 // an error within a stream
	}
	return errorResponse(status, headerOf(e.Response), e.RawJSON())
}
