package runs

import (
	"context"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// StartLent starts a run for a tenant that uses the caller's model m for all its calls. The run continues when ctx
// ends. No other server resumes it, because other servers do not have the model.
func (k *Keeper) StartLent(ctx context.Context, tenant string, q rlm.Question, m llm.Model) (*rlm.Run, error) {
	b, err := k.o.Backend(ctx)
	if err != nil {
		return nil, err
	}
	e, err := k.newEngine(ctx, b, tenant, nil, rlm.Options{
		PlainBelow: k.o.PlainBelow,
		Models:     func(int, string) (llm.Model, error) { return m, nil },
		Cache:      nil, // models of different callers may have the same name
	})
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, Free: true, Limits: k.sandboxLimits(nil)} // the caller pays for the model
	start := func(ctx context.Context, _ *float64) (*rlm.Run, error) { return e.Start(ctx, q) }
	return k.beginVolatile(ctx, d, start, nil)
}
