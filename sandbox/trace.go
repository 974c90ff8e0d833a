package sandbox

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The trace of whoever runs a cell or command goes along as metadata of the operation, under the names that it has as headers. From there the guest puts it
// into the environment of a cell while that runs; a command gets it with its own.
var traces = propagation.TraceContext{}

// traceEnv are the variables by which programs are handed a trace, and the metadata they come from.
var traceEnv = map[string]string{"TRACEPARENT": "traceparent", "TRACESTATE": "tracestate"}

// traced gives metadata with the trace of ctx, if there is one. A trace that the caller has put there stays.
func traced(ctx context.Context, metadata map[string]string) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() || metadata["traceparent"] != "" {
		return metadata
	}
	out := propagation.MapCarrier{}
	maps.Copy(out, metadata)
	traces.Inject(ctx, out)
	return out
}

// carried puts the trace that metadata holds into a command's environment. The caller's own stays.
func carried(env, metadata map[string]string) map[string]string {
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
