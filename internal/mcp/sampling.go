package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

const (
	// DefaultSamplingCalls is the maximum number of calls of the client's own model in one connection. The client's
	// user pays for these calls.
	DefaultSamplingCalls = 50

	samplingConcurrency = 4
	samplingTokens      = 4096 // limit of a reply without max_tokens; the protocol requires a limit
	samplingWindow      = 128_000
)

// quotas counts the calls of clients' own models, by connection.
type quotas struct {
	mu sync.Mutex
	of map[*sdk.ServerSession]*quota // guarded by mu
}

type quota struct {
	free chan struct{} // has one element for each running call
	used int           // guarded by the quotas' mu
}

func (q *quotas) get(s *sdk.ServerSession) *quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	if k := q.of[s]; k != nil {
		return k
	}
	if q.of == nil {
		q.of = map[*sdk.ServerSession]*quota{}
	}
	k := &quota{free: make(chan struct{}, samplingConcurrency)}
	q.of[s] = k
	go func() {
		_ = s.Wait() // however it ended
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.of, s)
	}()
	return k
}

func (q *quotas) used(s *sdk.ServerSession) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if k := q.of[s]; k != nil {
		return k.used
	}
	return 0
}

// count counts one call. It returns an error if the limit is reached.
func (q *quotas) count(k *quota, limit int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if k.used >= limit {
		return &v1.Error{
			Code:    v1.CodeSampling,
			Op:      "ask the client's model",
			Message: fmt.Sprintf("limit of %d calls in this connection reached", k.used),
			Remedy:  "raise the limit with --sampling-calls, or configure a model for the server",
		}
	}
	k.used++
	return nil
}

// sampler is the client's own model, which needs no key.
type sampler struct {
	call    context.Context // the tool call; over HTTP, the client receives requests only on the stream of that call
	session *sdk.ServerSession
	quotas  *quotas
	limit   int
	hint    string // name of the requested model; the client may use another
}

var _ llm.Model = (*sampler)(nil)

// sampler returns the client's own model, or an error if the client does not offer it. The remedy lists the ways to get
// a model.
//
//nolint:staticcheck // sampling is deprecated; clients of older protocol versions still offer it
func (c *call) sampler(hint string) (llm.Model, error) {
	can := c.req.ClientCapabilities()
	limit := c.srv.opts.SamplingCalls
	if can == nil || can.Sampling == nil || c.req.ProtocolVersion() >= statelessVersion || limit < 0 {
		return nil, &v1.Error{
			Code:    v1.CodeModelMissing,
			Op:      "find a model",
			Message: "no model is configured, and the client does not offer its own",
			Remedy:  noModelRemedy,
		}
	}
	if limit == 0 {
		limit = DefaultSamplingCalls
	}
	return &sampler{call: c, session: c.req.Session, quotas: &c.srv.quota, limit: limit, hint: hint}, nil
}

const noModelRemedy = "configure a provider (a key for an OpenAI-compatible or Anthropic API, Ollama, " +
	"or an installed agent program), or connect with a client that offers sampling"

// Info implements llm.Model.
func (s *sampler) Info() llm.Info {
	return llm.Info{Name: "sampling/client", Window: samplingWindow, Output: samplingTokens}
}

// Count implements llm.Model.
func (s *sampler) Count(text string) int64 { return int64(len(text))/3 + 1 }

// Complete implements llm.Model. The usage is estimated, because clients do not report it.
//
//nolint:staticcheck // as above
func (s *sampler) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	q := s.quotas.get(s.session)
	select {
	case q.free <- struct{}{}:
		defer func() { <-q.free }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := s.quotas.count(q, s.limit); err != nil {
		return nil, err
	}
	p := &sdk.CreateMessageParams{MaxTokens: req.MaxTokens, StopSequences: req.Stop}
	if p.MaxTokens == 0 {
		p.MaxTokens = samplingTokens
	}
	if req.Temperature != nil {
		p.Temperature = *req.Temperature
	}
	if s.hint != "" {
		p.ModelPreferences = &sdk.ModelPreferences{Hints: []*sdk.ModelHint{{Name: s.hint}}}
	}
	u := llm.Usage{Calls: 1, Estimated: true, Unpriced: true}
	for _, m := range req.Messages {
		u.Input += s.Count(m.Content)
		if m.Role == llm.System {
			p.SystemPrompt += m.Content
			continue
		}
		p.Messages = append(
			p.Messages,
			&sdk.SamplingMessage{Role: sdk.Role(m.Role), Content: &sdk.TextContent{Text: m.Content}},
		)
	}
	began := time.Now()
	asking, stop := context.WithCancel(s.call)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	res, err := s.session.CreateMessage(asking, p)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if s.call.Err() != nil { // the client is gone, and so is its model
			return nil, s.call.Err()
		}
		return nil, &v1.Error{
			Code:    v1.CodeSampling,
			Op:      "ask the client's model",
			Message: "the client did not answer",
			Retry:   true,
			Err:     err,
		}
	}
	text, ok := res.Content.(*sdk.TextContent)
	if !ok {
		return nil, &v1.Error{
			Code:    v1.CodeSampling,
			Op:      "ask the client's model",
			Message: "the reply is not a text",
			Err:     errors.New("unexpected content"),
		}
	}
	u.Output = s.Count(text.Text) // all of it was generated, even if Delta cuts it
	r := &llm.Reply{
		Text:   text.Text,
		Model:  "sampling/" + res.Model,
		Finish: llm.FinishStop,
		Usage:  u,
		Wall:   time.Since(began),
	}
	if res.StopReason == "maxTokens" {
		r.Finish = llm.FinishLength
	}
	if delivered, whole := deliver(req.Delta, r.Text); !whole {
		r.Text, r.Finish = delivered, llm.FinishCut
	}
	return r, nil
}

// deliver sends a complete reply to delta line by line, so that delta can cut it as it would cut a streamed reply. It
// returns the delivered text, and whether that is the whole reply.
func deliver(delta func(string) bool, text string) (delivered string, whole bool) {
	if delta == nil {
		return text, true
	}
	n := 0
	for line := range strings.Lines(text) {
		n += len(line)
		if !delta(line) {
			return text[:n], n == len(text)
		}
	}
	return text, true
}
