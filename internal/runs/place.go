package runs

import (
	"cmp"
	"context"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// place is the place of a run among those that its quotas allow.
type place struct {
	k    *Keeper
	p    *session.RunPlace // nil: nothing bounds runs
	free bool              // the run costs the server nothing
}

// takePlace takes the place of a run, or refuses it.
func (k *Keeper) takePlace(ctx context.Context, d session.RunDemand) (*place, error) {
	out := &place{k: k, free: d.Free}
	if k.o.Admit == nil {
		return out, nil
	}
	d.Usual = cmp.Or(d.Usual, k.o.Limits.Cost)
	var err error
	out.p, err = k.o.Admit(ctx, d)
	return out, err
}

// Complete asks a model once for a tenant. It is no run, but its cost counts as that of one, under id.
func (k *Keeper) Complete(ctx context.Context, tenant, id string, m llm.Model, req llm.Request) (*llm.Reply, error) {
	p, err := k.takePlace(ctx, session.RunDemand{Tenant: tenant, Call: true, Usual: new(estimate(m.Info(), req))})
	if err != nil {
		return nil, err
	}
	cost := -1.0
	defer func() { p.end(cost) }()
	if err := p.begun(ctx, id); err != nil {
		return nil, err
	}
	reply, err := m.Complete(ctx, req)
	if cost = 0; reply != nil {
		cost = reply.Usage.Cost
	}
	return reply, err
}

// estimate returns what a call costs at most, in US dollars, as far as its price is known.
func estimate(m llm.Info, req llm.Request) float64 {
	if m.Price == nil || m.Local {
		return 0
	}
	u := llm.Usage{Output: cmp.Or(req.MaxTokens, m.Output)}
	for _, msg := range req.Messages {
		u.Input += llm.Count(msg.Content)
	}
	return m.Price.Cost(u)
}

// most returns what the run may cost, in US dollars; nil: its own limits alone decide.
func (p *place) most() *float64 {
	if p.p == nil {
		return nil
	}
	return p.p.MostUSD
}

// begun notes the run that has the place.
func (p *place) begun(ctx context.Context, id string) error {
	if p.p == nil {
		return nil
	}
	return p.p.Begin(context.WithoutCancel(ctx), id)
}

// over gives the place back. A run without a result did not begin, or counts for what it was allowed to cost. A free one leaves no entry.
func (p *place) over(res *rlm.Result) {
	cost := -1.0
	if res != nil && !p.free {
		cost = res.Usage.Cost
	}
	p.end(cost)
}

// end gives the place back. A negative cost leaves what is noted.
func (p *place) end(cost float64) {
	if p.p == nil {
		return
	}
	if err := p.p.End(context.Background(), cost); err != nil {
		p.k.o.Logger.Warn("what a run has cost is not noted", "error", err)
	}
}
