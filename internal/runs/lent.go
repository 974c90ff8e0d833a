package runs

import (
	"context"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
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
	return k.begin(ctx, tenant, func(ctx context.Context) (*rlm.Run, error) { return e.Start(ctx, q) }, nil)
}
