package server

import (
	"context"
	"log/slog"
	"maps"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/recluse-dev/recluse/sandbox"
)

// levelRequests is the level of the line that each request writes.
const levelRequests = slog.LevelInfo

// traces reads and writes the traceparent header, which is also the name of the metadata that carries it into the guest.
var traces = propagation.TraceContext{}

func tracer(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		p = otel.GetTracerProvider()
	}
	return p.Tracer("github.com/recluse-dev/recluse/internal/server")
}

// startSpan begins the span of a request, below the caller's own if there is one.
func (s *Server) startSpan(c *call) trace.Span {
	ctx := traces.Extract(c.r.Context(), propagation.HeaderCarrier(c.r.Header))
	ctx, span := s.tracer.Start(ctx, c.route.method+" "+c.route.path, trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.request.method", c.route.method), attribute.String("http.route", c.route.path), attribute.String("recluse.request", c.id))
	}
	c.r = c.r.WithContext(ctx)
	return span
}

func endSpan(span trace.Span, c *call) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("http.response.status_code", c.w.status), attribute.String("recluse.tenant", c.who.tenant))
	if name := c.r.PathValue("session"); name != "" {
		span.SetAttributes(attribute.String("recluse.session", name))
	}
	if c.w.status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, string(c.w.problem.Code))
	}
}

// traceEnv are the variables by which programs are handed a trace, and the metadata they come from.
var traceEnv = map[string]string{"TRACEPARENT": "traceparent", "TRACESTATE": "tracestate"}

// carry puts the trace that metadata holds into a command's environment, so that what runs can go on with it. The caller's own stays.
func carry(env, metadata map[string]string) map[string]string {
	out := maps.Clone(env)
	for name, from := range traceEnv {
		if _, set := env[name]; set || metadata[from] == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = metadata[from]
	}
	return out
}

// runSpan is the span of a cell or command. The metadata it gives carries the trace into the guest.
func (c *call) runSpan(ctx context.Context, kind, id string, metadata map[string]string) (context.Context, map[string]string, func(*sandbox.Verdict, error)) {
	ctx, span := c.s.tracer.Start(ctx, kind)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("recluse.operation", id))
	}
	if span.SpanContext().IsValid() {
		carried := propagation.MapCarrier{}
		for k, v := range metadata {
			carried[k] = v
		}
		traces.Inject(ctx, carried)
		metadata = carried
	}
	return ctx, metadata, func(v *sandbox.Verdict, err error) {
		defer span.End()
		if !span.IsRecording() {
			return
		}
		if v != nil {
			span.SetAttributes(attribute.String("recluse.ended", string(v.Ended)), attribute.Int("recluse.exit_code", v.ExitCode))
		}
		if err != nil {
			span.SetStatus(codes.Error, string(sandbox.CodeOf(err)))
		}
	}
}
