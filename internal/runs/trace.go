package runs

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

// spanned gives a context below base for a run to work in, with a span of its own below that of whoever asks for it. The code of the run
// finds it in its environment. A run that another server goes on with has no trace any more.
func spanned(base, asks context.Context) (ctx context.Context, end func(r *rlm.Run, err error)) {
	parent := trace.SpanFromContext(asks)
	tracer := parent.TracerProvider().Tracer("github.com/recluse-dev/recluse/internal/runs")
	ctx, span := tracer.Start(trace.ContextWithSpan(base, parent), "run")
	return ctx, func(r *rlm.Run, err error) {
		defer span.End()
		if r != nil {
			span.SetAttributes(attribute.String("recluse.run", r.ID()))
		}
		if err != nil {
			span.SetStatus(codes.Error, string(v1.CodeOf(err)))
		}
	}
}
