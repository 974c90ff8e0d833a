package runs

import (
	"cmp"
	"context"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// place is the reservation of a run in the quotas of its tenant and key.
type place struct {
	k    *Keeper
	p    *session.RunPlace // nil: there are no quotas
	free bool              // the run costs the server nothing
}

// takePlace reserves a place for a run, or returns an error if a quota is exceeded.
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

// Complete makes one call of a model for a tenant. The call is not a run, but its cost counts for the quota like the
// cost of a run with this id.
func (k *Keeper) Complete(ctx context.Context, tenant, id string, m llm.Model, req llm.Request) (*llm.Reply, error) {
	p, err := k.takePlace(ctx, session.RunDemand{Tenant: tenant, Call: true, Usual: new(estimate(m.Info(), req))})
	if err != nil {
		return nil, err
	}
	cost := -1.0
	defer func() { p.end(cost) }()
	if err := p.begin(ctx, id); err != nil {
		return nil, err
	}
	reply, err := m.Complete(ctx, req)
	if cost = 0; reply != nil {
		cost = reply.Usage.Cost
	}
	return reply, err
}

// estimate returns the maximum cost of a call in US dollars, or 0 if its price is unknown.
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

// maxCost returns the maximum cost of the run in US dollars; nil: only the run's own limits apply.
func (p *place) maxCost() *float64 {
	if p.p == nil {
		return nil
	}
	return p.p.MostUSD
}

// begin records the id of the run that has the place.
func (p *place) begin(ctx context.Context, id string) error {
	if p.p == nil {
		return nil
	}
	return p.p.Begin(context.WithoutCancel(ctx), id)
}

// endRun releases the place. A run without a result did not start, or counts with its reserved cost. A free run leaves
// no entry.
func (p *place) endRun(res *rlm.Result) {
	cost := -1.0
	if res != nil && !p.free {
		cost = res.Usage.Cost
	}
	p.end(cost)
}

// end releases the place and records the cost. If cost is negative, the recorded cost stays.
func (p *place) end(cost float64) {
	if p.p == nil {
		return
	}
	if err := p.p.End(context.Background(), cost); err != nil {
		p.k.o.Logger.Warn("the cost of a run could not be recorded", "error", err)
	}
}
