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
	e, err := rlm.New(rlm.Options{
		PlainBelow: k.o.PlainBelow, // but no cache: lent models may differ under the same name
		Models:     func(int, string) (llm.Model, error) { return m, nil }, Sandboxes: rlm.FromBackend(b), Spec: k.o.Spec, Limits: k.o.Limits, Dir: k.dir(tenant),
		Gate: k.gate(), Tenant: tenant, Logger: k.o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return k.begin(ctx, tenant, func(ctx context.Context) (*rlm.Run, error) { return e.Start(ctx, q) }, nil)
}
