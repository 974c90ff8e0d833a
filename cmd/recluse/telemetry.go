package main

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/config"
)

// flushWait is how long sending the last spans may take.
const flushWait = 3 * time.Second

// traces begins to send spans to the collector that the configuration or the environment variables of OpenTelemetry
// name, if any. The caller must call stop.
func traces(ctx context.Context, t config.Telemetry, version string) (stop func(), err error) {
	var opts []otlptracehttp.Option
	switch {
	case t.Traces != "":
		opts = append(opts, otlptracehttp.WithEndpointURL(t.Traces+"/v1/traces"))
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return func() {}, nil
	}
	fail := func(err error) error {
		return &v1.Error{
			Code:    config.CodeInvalid,
			Op:      "send traces",
			Message: "invalid address of the collector",
			Remedy:  "check telemetry.traces and the environment variables OTEL_*",
			Err:     err,
		}
	}
	exporter, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fail(err)
	}
	res, err := resource.New(ctx,
		resource.WithFromEnv(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("recluse"), semconv.ServiceVersion(version)),
	)
	if err != nil {
		return nil, fail(err)
	}
	p := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(res))
	otel.SetTracerProvider(p)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWait)
		defer cancel()
		_ = p.Shutdown(ctx) // an unreachable collector must not delay the exit
	}, nil
}
