package runs

import (
	"cmp"
	"context"

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
	if p.p == nil {
		return
	}
	cost := -1.0
	if res != nil && !p.free {
		cost = res.Usage.Cost
	}
	if err := p.p.End(context.Background(), cost); err != nil {
		p.k.o.Logger.Warn("what a run has cost is not noted", "error", err)
	}
}
