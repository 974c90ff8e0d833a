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

// dialect speaks one provider's protocol: one attempt of one call. It writes the text into the sink as it comes, and what it learns
// about usage and the end into the outcome, also when it fails.
type dialect interface {
	ask(ctx context.Context, q question, out *sink, o *outcome) error
}

// question is one attempt.
type question struct {
	info  Info
	model string // without the provider
	req   Request
}

// outcome is what a provider told of a call besides its text.
type outcome struct {
	finish       Finish
	input        int64 // 0: not told
	cached       int64
	output       int64
	outputKnown  bool
	hidden       int64   // estimated tokens of thinking that is not part of the text
	extraInput   float64 // input tokens that are charged for but were not given
	providerCost float64 // what the provider says it costs; 0: not told
}

// provider is one place where models are asked, with its limits.
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
	paused time.Time // guarded by mu; the provider asked everybody to wait until then
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

// model gives one of the provider's models.
func (p *provider) model(name string, over ModelConfig) (Model, error) {
	if err := p.keyed(); err != nil {
		return nil, err
	}
	info := describe(p.name, name)
	switch p.cfg.Type {
	case TypeOllama:
		info.Window, info.Output = ollamaWindow, ollamaWindow/2
	case TypeCLI:
		if _, ok := p.cfg.Commands[name]; !ok {
			return nil, &v1.Error{
				Code: v1.CodeModelUnknown, Op: "find model", Message: fmt.Sprintf("no command line is configured as %s/%s", p.name, name),
				Remedy: fmt.Sprintf("add it to providers.%s.commands", p.name),
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
	return &asked{provider: p, info: info, name: name}, nil
}

// keyed refuses a provider that needs a key and has none. One that was moved to another address may need none.
func (p *provider) keyed() error {
	if p.cfg.Key != "" || p.cfg.KeyEnv == "" {
		return nil
	}
	if p.cfg.BaseURL != builtin[p.name].BaseURL && builtin[p.name].KeyEnv == p.cfg.KeyEnv {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeModelKeyMissing, Op: "find model", Message: "no key for " + p.name,
		Remedy: fmt.Sprintf("set %s, or providers.%s.key in the configuration", p.cfg.KeyEnv, p.name),
	}
}

// asked is a model of a provider.
type asked struct {
	provider *provider
	info     Info
	name     string
}

// Info implements Model.
func (m *asked) Info() Info { return m.info }

// Count implements Model.
func (m *asked) Count(text string) int64 { return Count(text) }

// Complete implements Model. Attempts follow one another until one succeeds, fails for good, or has passed text to the listener:
// what was heard cannot be taken back.
func (m *asked) Complete(ctx context.Context, req Request) (*Reply, error) {
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
			spent.Calls = 1
		}
		if a.err == nil || a.heard || !retryable(a.err) || n >= m.provider.retry.Attempts || (a.most > 0 && n >= a.most) {
			return m.settle(a, spent, start)
		}
		pause, ok := m.provider.backoff(n, a.after)
		if !ok {
			return m.settle(a, spent, start)
		}
		if !wait(ctx, pause) {
			a.err = cancelled(ctx, m.info.Name)
			return m.settle(a, spent, start)
		}
	}
}

// settle gives the last attempt's reply with what all attempts have spent.
func (m *asked) settle(a attempt, spent Usage, start time.Time) (*Reply, error) {
	if a.reply == nil && spent != (Usage{}) {
		a.reply = &Reply{Model: m.info.Name, Finish: FinishCut}
	}
	if a.reply != nil {
		a.reply.Usage, a.reply.Wall = spent, time.Since(start)
	}
	return a.reply, a.err
}

// attempt is how one attempt went.
type attempt struct {
	reply *Reply
	err   error
	heard bool          // the listener has heard something of it
	after time.Duration // how long the provider asks us to wait
	most  int           // attempts that make sense after this; 0: as many as configured
}

// attempt asks once, within the provider's limits.
func (m *asked) attempt(ctx context.Context, req Request, input int64) attempt {
	release, err := m.provider.enter(ctx, input+expected(req, m.info))
	if err != nil {
		return attempt{err: cancelled(ctx, m.info.Name)}
	}
	defer release()
	limited, cancel := context.WithTimeoutCause(ctx, m.provider.cfg.Timeout.Std(), errTotal)
	defer cancel()
	limited, idle := watchIdle(limited, m.provider.cfg.Idle.Std())
	defer idle.stop()

	out := newSink(req, replyBytes(req, m.info))
	var o outcome
	err = m.provider.dialect.ask(limited, question{info: m.info, model: m.name, req: req}, out, &o)
	if out.finish != "" {
		err = nil // we have ended it ourselves, and whatever that broke is of no interest
	}
	out.end()
	a := attempt{heard: out.passed}
	if err != nil {
		a.explain(ctx, limited, m, err)
	}
	if err == nil || out.text.Len() > 0 || o.input > 0 {
		a.reply = m.reply(input, out, o, err != nil)
	}
	return a
}

// reply settles what came.
func (m *asked) reply(input int64, out *sink, o outcome, failed bool) *Reply {
	r := &Reply{Text: out.text.String(), Model: m.info.Name, Finish: o.finish}
	switch {
	case out.finish != "":
		r.Finish = out.finish
	case failed:
		r.Finish = FinishCut
	case r.Finish == "":
		r.Finish = FinishStop
	}
	u := Usage{Calls: 1, Input: o.input, CachedInput: min(o.cached, o.input), Output: o.output}
	if o.input <= 0 {
		u.Input, u.CachedInput, u.Estimated = input, 0, true
	}
	// What a provider has counted up to where we cut it is less than what it made.
	if !o.outputKnown {
		u.Output, u.Estimated = max(o.output, Count(r.Text)+o.hidden), true
	}
	u = priced(u, m.info)
	if m.info.Price != nil && !m.info.Local {
		input, _, _ := m.info.Price.rates(u)
		u.Cost += o.extraInput * input / 1e6
	}
	if o.providerCost > 0 {
		u.Cost, u.Unpriced = o.providerCost, false
	}
	r.Usage = u
	return r
}

// explain turns what a dialect returned into an error of ours, without the key.
func (a *attempt) explain(ctx, limited context.Context, m *asked, err error) {
	if ctx.Err() != nil {
		a.err = cancelled(ctx, m.info.Name)
		return
	}
	late := &v1.Error{Code: v1.CodeModelTimeout, Op: "ask " + m.info.Name, Retry: true}
	switch cause := context.Cause(limited); {
	case errors.Is(cause, errTotal):
		late.Message, late.Remedy = "no whole reply within "+m.provider.cfg.Timeout.String(), "raise the provider's timeout, or ask for less"
		a.err, a.most = late, 1
		return
	case errors.Is(cause, errIdle):
		late.Message, late.Remedy = "the provider was silent for "+m.provider.cfg.Idle.String(), "raise the provider's idle_timeout if the model thinks that long"
		a.err, a.most = late, 2
		return
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		a.err = e
		return
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = broken(err)
	}
	a.err, a.after, a.most = f.typed("ask "+m.info.Name, m.provider, m.name), f.after, f.most
}

// enter waits for the provider's limits and gives the function that leaves.
func (p *provider) enter(ctx context.Context, tokens int64) (func(), error) {
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
		// WaitN fails at once where the context's deadline would come first; then we wait for that, so that the caller sees its own deadline.
		if err := limit.l.WaitN(ctx, limit.n); err != nil {
			<-ctx.Done()
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// backoff gives how long to wait before the next attempt, and whether to make one.
func (p *provider) backoff(attempt int, after time.Duration) (time.Duration, bool) {
	most := p.retry.Max.Std()
	pause := p.retry.Backoff.Std() << min(attempt-1, 20)
	if pause <= 0 || pause > most {
		pause = most
	}
	// Half of it is random, so that callers who failed together do not come back together.
	pause = pause/2 + rand.N(pause/2+1) //nolint:gosec // a time to wait, no secret
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

// expected is what a reply may take, for the rate of tokens.
func expected(req Request, info Info) int64 {
	if req.MaxTokens > 0 {
		return req.MaxTokens
	}
	return min(info.Output, 1024)
}

// replyBytes bounds a reply: a provider that never stops must not fill our memory. A token is rarely more than 8 bytes of text, but runs of
// spaces are, so the bound is wide.
func replyBytes(req Request, info Info) int {
	tokens := info.Output
	if req.MaxTokens > 0 {
		tokens = req.MaxTokens
	}
	return int(max(tokens, 1024) * 32)
}

// clean takes the key out of a text that the provider or the network wrote.
func (p *provider) clean(text string) string {
	for _, secret := range append([]string{p.cfg.Key}, headerSecrets(p.cfg.Headers)...) {
		if len(secret) >= 6 {
			text = strings.ReplaceAll(text, secret, "[key]")
		}
	}
	return brief(text, 500)
}

func headerSecrets(h map[string]string) []string {
	var all []string
	for _, v := range h {
		all = append(all, v, strings.TrimPrefix(v, "Bearer "))
	}
	return all
}
