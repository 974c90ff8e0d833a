package server

import (
	"context"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// levelRequests is the log level of requests.
const levelRequests = slog.LevelInfo

// traces reads the traceparent header. Package sandbox forwards the trace to the guest.
var traces = propagation.TraceContext{}

func tracer(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		p = otel.GetTracerProvider()
	}
	return p.Tracer("github.com/recluse-dev/recluse/internal/server")
}

// startSpan starts the span of a request. Its parent is the caller's span, if the request has one.
func (s *Server) startSpan(c *call) trace.Span {
	ctx := c.r.Context()
	if len(c.r.Header["Traceparent"]) > 0 {
		ctx = traces.Extract(ctx, propagation.HeaderCarrier(c.r.Header))
	}
	ctx, span := s.tracer.Start(ctx, c.route.method+" "+c.route.path, trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("http.request.method", c.route.method),
			attribute.String("http.route", c.route.path),
			attribute.String("recluse.request", c.id),
		)
	}
	c.r = c.r.WithContext(ctx)
	return span
}

func endSpan(span trace.Span, c *call) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.Int("http.response.status_code", c.w.status),
		attribute.String("recluse.tenant", c.who.tenant),
	)
	if name := c.r.PathValue("session"); name != "" {
		span.SetAttributes(attribute.String("recluse.session", name))
	}
	if c.w.status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, string(c.w.problem.Code))
	}
}

// runSpan starts the span of a cell or command. The ctx that it returns carries the trace into the guest. The caller
// must call the returned function to end the span.
func (c *call) runSpan(ctx context.Context, kind, id string) (context.Context, func(*sandbox.Verdict, error)) {
	ctx, span := c.s.tracer.Start(ctx, kind)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("recluse.operation", id))
	}
	return ctx, func(v *sandbox.Verdict, err error) {
		defer span.End()
		if !span.IsRecording() {
			return
		}
		if v != nil {
			span.SetAttributes(
				attribute.String("recluse.ended", string(v.Ended)),
				attribute.Int("recluse.exit_code", v.ExitCode),
			)
		}
		if err != nil {
			span.SetStatus(codes.Error, string(v1.CodeOf(err)))
		}
	}
}
