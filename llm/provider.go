package llm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// dialect is the API of a provider. ask makes one attempt of one call. It writes the text into out as it arrives, and
// the usage and the reason of the end into o, also when it fails.
type dialect interface {
	ask(ctx context.Context, q question, out *sink, o *outcome) error
}

// question is the request of one attempt.
type question struct {
	info  Info
	model string // without the provider
	req   Request
}

// outcome is what a provider reports about a call besides its text.
type outcome struct {
	finish       Finish
	input        int64 // 0: not reported
	cached       int64
	output       int64
	outputKnown  bool    // the provider reported the final output
	thinking     int64   // estimated tokens of thinking, which is not part of the text
	extraInput   float64 // charge for cache writes, in input tokens
	providerCost float64 // US dollars; 0: not reported
}

// provider is a configured provider with its limits.
type provider struct {
	name    string
	cfg     Provider
	retry   Retry
	dialect dialect
	client  *http.Client

	slots    chan struct{}
	requests *rate.Limiter // nil: no limit
	tokens   *rate.Limiter // nil: no limit

	mu     sync.Mutex
	paused time.Time // guarded by mu; calls wait until then, as the provider requested with Retry-After
}

func newProvider(name string, cfg Provider, retry Retry, transport *http.Transport) *provider {
	p := &provider{name: name, cfg: cfg, retry: retry, slots: make(chan struct{}, cfg.Concurrency)}
	p.client = newClient(transport)
	if n := cfg.RequestsPerMinute; n > 0 {
		p.requests = rate.NewLimiter(rate.Limit(float64(n)/60), 1)
	}
	if n := cfg.TokensPerMinute; n > 0 {
		p.tokens = rate.NewLimiter(rate.Limit(float64(n)/60), int(n))
	}
	switch cfg.Type {
	case TypeOpenAI:
		p.dialect = newOpenAI(cfg, p.client)
	case TypeAnthropic:
		p.dialect = newAnthropic(cfg, p.client)
	case TypeOllama:
		p.dialect = &ollama{base: cfg.BaseURL, headers: cfg.Headers, client: p.client, stream: !cfg.NoStream}
	case TypeCLI:
		p.dialect = &commandLine{commands: cfg.Commands}
	}
	return p
}

// model returns a model of the provider.
func (p *provider) model(name string, over ModelConfig) (Model, error) {
	if err := p.checkKey(); err != nil {
		return nil, err
	}
	info := describe(p.name, name)
	switch p.cfg.Type {
	case TypeOllama:
		info.Window, info.Output = ollamaWindow, ollamaWindow/2
	case TypeCLI:
		if _, ok := p.cfg.Commands[name]; !ok {
			return nil, &v1.Error{
				Code:    v1.CodeModelUnknown,
				Op:      "find model",
				Message: fmt.Sprintf("no command is configured for %s/%s", p.name, name),
				Remedy:  fmt.Sprintf("add it to providers.%s.commands", p.name),
			}
		}
	}
	info.Local = p.cfg.Local && over.Price == nil
	if over.Window > 0 {
		info.Window = over.Window
		info.Output = min(info.Output, info.Window)
	}
	if over.Output > 0 {
		info.Output = over.Output
	}
	if over.Price != nil {
		info.Price = over.Price
	}
	return &providerModel{provider: p, info: info, name: name}, nil
}

// checkKey returns an error if the provider needs a key and has none. A built-in provider at another address may not
// need one.
func (p *provider) checkKey() error {
	if p.cfg.Key != "" || p.cfg.KeyEnv == "" {
		return nil
	}
	if p.cfg.BaseURL != builtin[p.name].BaseURL && builtin[p.name].KeyEnv == p.cfg.KeyEnv {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeModelKeyMissing,
		Op:      "find model",
		Message: "missing key for " + p.name,
		Remedy:  fmt.Sprintf("set %s, or providers.%s.key in the configuration", p.cfg.KeyEnv, p.name),
	}
}

// providerModel is a model of a provider.
type providerModel struct {
	provider *provider
	info     Info
	name     string
}

// Info implements Model.
func (m *providerModel) Info() Info { return m.info }

// Count implements Model.
func (m *providerModel) Count(text string) int64 { return Count(text) }

// Complete implements Model. It makes attempts until one succeeds, or fails with an error that a retry cannot help.
func (m *providerModel) Complete(ctx context.Context, req Request) (*Reply, error) {
	if err := check(m.info.Name, req); err != nil {
		return nil, err
	}
	start := time.Now()
	input := CountMessages(m, req.Messages)
	var spent Usage
	for n := 1; ; n++ {
		a := m.attempt(ctx, req, input)
		if a.reply != nil {
			spent = spent.Add(a.reply.Usage)
		}
		if a.err == nil || !retryable(a.err) || n >= m.provider.retry.Attempts ||
			(a.maxAttempts > 0 && n >= a.maxAttempts) || !mayRepeat(req, spent, a.delivered) {
			return m.finalReply(a, spent, start)
		}
		pause, ok := m.provider.backoff(n, a.retryAfter)
		if !ok {
			return m.finalReply(a, spent, start)
		}
		if !wait(ctx, pause) {
			a.err = cancelled(ctx, m.info.Name)
			return m.finalReply(a, spent, start)
		}
	}
}

// mayRepeat reports whether a request may be sent again. delivered means that Request.Delta has received a part of the
// reply.
func mayRepeat(req Request, paid Usage, delivered bool) bool {
	if req.Repeat == nil || !delivered && paid == (Usage{}) {
		return !delivered
	}
	return req.Repeat(paid)
}

// finalReply returns the reply and error of the last attempt, with the usage of all attempts.
func (m *providerModel) finalReply(a attempt, spent Usage, start time.Time) (*Reply, error) {
	if a.reply == nil && spent != (Usage{}) {
		a.reply = &Reply{Model: m.info.Name, Finish: FinishCut}
	}
	if a.reply != nil {
		a.reply.Usage, a.reply.Wall = spent, time.Since(start)
	}
	return a.reply, a.err
}

// attempt is the result of one attempt.
type attempt struct {
	reply       *Reply
	err         error
	delivered   bool          // Request.Delta has received a part of the reply
	retryAfter  time.Duration // the provider's Retry-After; 0: not sent
	maxAttempts int           // attempts after which a retry is useless; 0: Retry.Attempts
}

// attempt makes one attempt, within the limits of the provider.
func (m *providerModel) attempt(ctx context.Context, req Request, input int64) attempt {
	release, err := m.provider.acquire(ctx, input+expectedOutput(req, m.info))
	if err != nil {
		return attempt{err: cancelled(ctx, m.info.Name)}
	}
	defer release()
	limited, cancel := context.WithTimeoutCause(ctx, m.provider.cfg.Timeout.Std(), errAttemptTimeout)
	defer cancel()
	limited, idle := watchIdle(limited, m.provider.cfg.Idle.Std())
	defer idle.stop()

	out := newSink(req, replyBytes(req, m.info))
	var o outcome
	err = m.provider.dialect.ask(limited, question{info: m.info, model: m.name, req: req}, out, &o)
	if out.finish != "" {
		err = nil // the sink has ended the reply, and err is a consequence
	}
	out.end()
	a := attempt{delivered: out.delivered}
	if err != nil {
		a.explain(ctx, limited, m, err)
	}
	// A provider that has the request may have begun to answer it, and charges for that.
	if err == nil || out.text.Len() > 0 || o.input > 0 || idle.begun() {
		a.reply = m.reply(input, out, o, err != nil)
	}
	return a
}

// reply returns the reply of an attempt with its usage. What the provider did not report is estimated.
func (m *providerModel) reply(input int64, out *sink, o outcome, failed bool) *Reply {
	r := &Reply{Text: out.text.String(), Model: m.info.Name, Finish: o.finish}
	switch {
	case out.finish != "":
		r.Finish = out.finish
	case failed:
		r.Finish = FinishCut
	case r.Finish == "":
		r.Finish = FinishStop
	}
	if !plausible(o.input, input) {
		o.input, o.cached, o.extraInput = 0, 0, 0
	}
	if !plausible(o.output, Count(r.Text)+m.info.Output) {
		o.output, o.outputKnown = 0, false
	}
	u := Usage{Calls: 1, Input: o.input, CachedInput: min(max(0, o.cached), o.input), Output: o.output}
	if o.input <= 0 {
		u.Input, u.CachedInput, u.Estimated = input, 0, true
	}
	// A count that was reported before the reply was cut is lower than the final count.
	if !o.outputKnown {
		u.Output, u.Estimated = max(o.output, Count(r.Text)+o.thinking), true
	}
	u = withCost(u, m.info)
	if m.info.Price != nil && !m.info.Local {
		input, _, _ := m.info.Price.rates(u)
		u.Cost += max(0, o.extraInput) * input / 1e6
	}
	if o.providerCost > 0 && o.providerCost <= maxProviderCost+100*u.Cost {
		u.Cost, u.Unpriced = o.providerCost, false
	}
	r.Usage = u
	return r
}

// maxProviderCost bounds the cost that a provider reports for a call, in US dollars, besides a multiple of the cost by
// the price table.
const maxProviderCost = 100

// plausible reports whether a number of tokens that a provider reported can be right. A server that counts wrongly must
// not give a budget back, and one count must not make all others meaningless.
func plausible(reported, estimate int64) bool {
	return reported >= 0 && reported <= 1_000_000+100*estimate
}

// explain sets the error of an attempt from the error of the dialect, without the key.
func (a *attempt) explain(ctx, limited context.Context, m *providerModel, err error) {
	if ctx.Err() != nil {
		a.err = cancelled(ctx, m.info.Name)
		return
	}
	late := &v1.Error{Code: v1.CodeModelTimeout, Op: "ask " + m.info.Name, Retry: true}
	switch cause := context.Cause(limited); {
	case errors.Is(cause, errAttemptTimeout):
		late.Message = "no complete reply within " + m.provider.cfg.Timeout.String()
		late.Remedy = "raise the provider's timeout, or request a shorter reply"
		a.err, a.maxAttempts = late, 1
		return
	case errors.Is(cause, errIdle):
		late.Message = "the provider was silent for " + m.provider.cfg.Idle.String()
		late.Remedy = "raise the provider's idle_timeout if the model thinks that long"
		a.err, a.maxAttempts = late, 2
		return
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		a.err = e
		return
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = connectionFailure(err)
	}
	a.err, a.retryAfter, a.maxAttempts = f.toError("ask "+m.info.Name, m.provider, m.name), f.retryAfter, f.maxAttempts
}

// acquire waits until the limits of the provider allow a call. It returns the function that releases the call's slot.
func (p *provider) acquire(ctx context.Context, tokens int64) (func(), error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := func() { <-p.slots }
	p.mu.Lock()
	pause := time.Until(p.paused)
	p.mu.Unlock()
	if !wait(ctx, pause) {
		leave()
		return nil, ctx.Err()
	}
	for _, limit := range []struct {
		l *rate.Limiter
		n int
	}{{p.requests, 1}, {p.tokens, int(min(tokens, p.cfg.TokensPerMinute))}} {
		if limit.l == nil {
			continue
		}
		// WaitN fails at once if the deadline of ctx comes before the limiter allows the call. Waiting for the deadline
		// lets the caller see its own ctx end.
		if err := limit.l.WaitN(ctx, limit.n); err != nil {
			<-ctx.Done()
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// backoff returns how long to wait before the next attempt, and whether to make one. It pauses all calls of the
// provider for after, the provider's Retry-After, unless that is longer than Retry.Max.
func (p *provider) backoff(attempt int, after time.Duration) (time.Duration, bool) {
	most := p.retry.Max.Std()
	pause := p.retry.Backoff.Std() << min(attempt-1, 20)
	if pause <= 0 || pause > most {
		pause = most
	}
	// Half of the pause is random, so that calls that failed together do not retry together.
	pause = pause/2 + rand.N(pause/2+1) //nolint:gosec // a pause, not a secret
	if after <= 0 {
		return pause, true
	}
	if after > most {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(after); until.After(p.paused) {
		p.paused = until
	}
	return after, true
}

// expectedOutput returns the tokens that a reply may have, for the limit of tokens per minute.
func expectedOutput(req Request, info Info) int64 {
	if req.MaxTokens > 0 {
		return req.MaxTokens
	}
	return min(info.Output, 1024)
}

// replyBytes returns the maximum size of a reply in bytes, so that a provider that never stops cannot fill the memory.
// A token is rarely more than 8 bytes of text, but a run of spaces can be, so the limit is 32 bytes per token.
func replyBytes(req Request, info Info) int {
	tokens := info.Output
	if req.MaxTokens > 0 {
		tokens = req.MaxTokens
	}
	return int(max(tokens, 1024) * 32)
}

// redact removes keys and header values from a text of the provider or the network, and returns it as one line.
func (p *provider) redact(text string) string {
	for _, secret := range append([]string{p.cfg.Key}, headerSecrets(p.cfg.Headers)...) {
		if len(secret) >= 6 {
			text = strings.ReplaceAll(text, secret, "[key]")
		}
	}
	return oneLine(text, 500)
}

func headerSecrets(h map[string]string) []string {
	var all []string
	for _, v := range h {
		all = append(all, v, strings.TrimPrefix(v, "Bearer "))
	}
	return all
}
