package runs

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

// startSpan starts the span of a run. The returned ctx is derived from base; the parent of the span is the span of the
// request. Code of the run finds the trace in its environment. A run that another server resumes has no trace. The
// caller must call end when the run has ended.
func startSpan(base, request context.Context) (ctx context.Context, end func(r *rlm.Run, err error)) {
	parent := trace.SpanFromContext(request)
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
