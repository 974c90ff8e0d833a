package sandbox

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// traces writes the caller's trace into the metadata of an operation, under the names of the HTTP headers. The guest
// copies it from the metadata into the environment of a cell while the cell runs. A command gets it in its own
// environment.
var traces = propagation.TraceContext{}

// traceEnv maps the environment variables that hold a trace to the metadata they are copied from.
var traceEnv = map[string]string{"TRACEPARENT": "traceparent", "TRACESTATE": "tracestate"}

// withTrace returns metadata with the trace of ctx added, if ctx has one. A trace that the caller has set stays.
func withTrace(ctx context.Context, metadata map[string]string) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() || metadata["traceparent"] != "" {
		return metadata
	}
	out := propagation.MapCarrier{}
	maps.Copy(out, metadata)
	traces.Inject(ctx, out)
	return out
}

// withTraceEnv returns a command's environment with the trace of metadata added. Variables that the caller has set
// stay.
func withTraceEnv(env, metadata map[string]string) map[string]string {
	if _, set := env["TRACEPARENT"]; set || metadata["traceparent"] == "" {
		return env
	}
	out := maps.Clone(env)
	if out == nil {
		out = map[string]string{}
	}
	for name, from := range traceEnv {
		if metadata[from] != "" && v1.ValidVariable(name, metadata[from]) {
			out[name] = metadata[from]
		}
	}
	return out
}
