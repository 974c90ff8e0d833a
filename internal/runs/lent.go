package runs

import (
	"context"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// StartLent begins a run for a tenant with a model that whoever asks lends: all its calls go there. It goes on when ctx ends, and no other
// server goes on with it, since the model is not there.
func (k *Keeper) StartLent(ctx context.Context, tenant string, q rlm.Question, m llm.Model) (*rlm.Run, error) {
	b, err := k.o.Backend(ctx)
	if err != nil {
		return nil, err
	}
	// No cache: lent models may differ under the same name.
	e, err := k.engineOn(b, tenant, nil, rlm.Options{PlainBelow: k.o.PlainBelow, Models: func(int, string) (llm.Model, error) { return m, nil }})
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, Free: true, Limits: k.machine(nil)} // the lender of the model pays for it
	return k.begin(ctx, d, func(ctx context.Context, _ *float64) (*rlm.Run, error) { return e.Start(ctx, q) }, nil)
}
