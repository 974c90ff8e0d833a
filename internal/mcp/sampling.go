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
	// DefaultSamplingCalls is how often the client's own model may be asked in one connection: its user pays for it.
	DefaultSamplingCalls = 50

	samplingAtOnce = 4
	samplingTokens = 4096 // of a reply that nobody bounded; the protocol wants a figure
	samplingWindow = 128_000
)

// quotas counts the calls of clients' own models, by connection.
type quotas struct {
	mu sync.Mutex
	of map[*sdk.ServerSession]*quota // guarded by mu
}

type quota struct {
	free chan struct{} // one for each call at once
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
	k := &quota{free: make(chan struct{}, samplingAtOnce)}
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

// take counts one call, or says that there were enough.
func (q *quotas) take(k *quota, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if k.used >= most {
		return &v1.Error{
			Code: v1.CodeSampling, Op: "ask the client's model", Message: fmt.Sprintf("it was asked %d times in this connection, which is the limit", k.used),
			Remedy: "raise it with --sampling-calls, or configure a model of the server's own",
		}
	}
	k.used++
	return nil
}

// sampler is the client's own model, for those without a key.
type sampler struct {
	call    context.Context // of the tool for which it is asked: over HTTP, the client listens where it waits for that
	session *sdk.ServerSession
	quotas  *quotas
	most    int
	hint    string // name of the model that is wanted; the client may take another
}

var _ llm.Model = (*sampler)(nil)

// sampler gives the client's model, or the error that lists the ways to get one.
//
//nolint:staticcheck // sampling is deprecated; clients of the era of sessions still offer it
func (c *call) sampler(hint string) (llm.Model, error) {
	can := c.req.ClientCapabilities()
	most := c.f.opts.SamplingCalls
	if can == nil || can.Sampling == nil || c.req.ProtocolVersion() >= stateless || most < 0 {
		return nil, &v1.Error{
			Code: v1.CodeModelMissing, Op: "find a model", Message: "there is no model to ask: none is configured, and this client does not lend its own",
			Remedy: noModelRemedy,
		}
	}
	if most == 0 {
		most = DefaultSamplingCalls
	}
	return &sampler{call: c, session: c.req.Session, quotas: &c.f.quota, most: most, hint: hint}, nil
}

const noModelRemedy = "configure a provider (a key for an OpenAI-compatible or Anthropic API, Ollama, or an installed agent's command line), or connect with a client that offers sampling"

// Info implements llm.Model.
func (s *sampler) Info() llm.Info {
	return llm.Info{Name: "sampling/client", Window: samplingWindow, Output: samplingTokens}
}

// Count implements llm.Model.
func (s *sampler) Count(text string) int64 { return int64(len(text))/3 + 1 }

// Complete implements llm.Model. Clients do not tell what a call took: usage is estimated.
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
	if err := s.quotas.take(q, s.most); err != nil {
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
		p.Messages = append(p.Messages, &sdk.SamplingMessage{Role: sdk.Role(m.Role), Content: &sdk.TextContent{Text: m.Content}})
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
		if s.call.Err() != nil { // whoever asked has gone, and with them the model
			return nil, s.call.Err()
		}
		return nil, &v1.Error{Code: v1.CodeSampling, Op: "ask the client's model", Message: "the client did not answer", Retry: true, Err: err}
	}
	text, ok := res.Content.(*sdk.TextContent)
	if !ok {
		return nil, &v1.Error{Code: v1.CodeSampling, Op: "ask the client's model", Message: "it answered otherwise than by a text", Err: errors.New("unexpected content")}
	}
	u.Output = s.Count(text.Text) // all of it was generated, whatever is heard of it
	r := &llm.Reply{Text: text.Text, Model: "sampling/" + res.Model, Finish: llm.FinishStop, Usage: u, Wall: time.Since(began)}
	if res.StopReason == "maxTokens" {
		r.Finish = llm.FinishLength
	}
	if heard, whole := deliver(req.Delta, r.Text); !whole {
		r.Text, r.Finish = heard, llm.FinishCut
	}
	return r, nil
}

// deliver tells a reply that came at once line by line, so that it can be cut where a streamed one would have been.
func deliver(delta func(string) bool, text string) (heard string, whole bool) {
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
