package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// The caller's trace, and the beginning of each header that continues it.
const (
	callersSpan  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	callersTrace = "00-0af7651916cd43dd8448eb211c80319c-"
)

// traceBench returns a server that records its spans, with a model whose runs answer with the trace that their code
// sees.
func traceBench(t *testing.T) (*servertest.Bench, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	set, err := llm.Open(llm.Config{Default: "scripted/root"})
	if err != nil {
		t.Fatal(err)
	}
	set.Add(llm.NewScripted("root", llm.Rule{Reply: "```repl\nimport os\nFINAL(os.environ.get('TRACEPARENT', 'none'))\n```"}))
	var k *servertest.Bench
	keeper := runs.New(runs.Options{
		Models: set, DataDir: t.TempDir(), Limits: rlm.DefaultLimits(), Backend: func(context.Context) (sandbox.Backend, error) { return k.Backend, nil },
	})
	k = servertest.New(t, server.Options{Tracer: provider, Runs: keeper})
	t.Cleanup(keeper.Close)
	return k, spans
}

// spanOf waits for the span of a name, and returns the traceparent header of its children.
func spanOf(t *testing.T, spans *tracetest.InMemoryExporter, name string) (written string) {
	t.Helper()
	testneed.Await(t, "a span "+name, func() bool {
		for _, s := range spans.GetSpans() {
			if s.Name == name {
				written = "00-" + s.SpanContext.TraceID().String() + "-" + s.SpanContext.SpanID().String() + "-01"
			}
		}
		return written != ""
	})
	return written
}

func TestTraceReachesTheCode(t *testing.T) {
	k, spans := traceBench(t)
	open(t, k, "default", "work")
	for _, x := range []struct{ name, path, body, span string }{
		{"cell", "/cells", `{"code":"import os; print(os.environ['TRACEPARENT'], end='')"}`, "cell"},
		{"command", "/commands", `{"shell":"printf %s \"$TRACEPARENT\""}`, "command"},
		{"command in the background", "/commands", `{"id":"behind","background":true,"shell":"printf %s \"$TRACEPARENT\""}`, "start command"},
	} {
		spans.Reset()
		a := ask(t, k, "", "POST", "/v1/sessions/work"+x.path, x.body, "traceparent", callersSpan)
		if a.status == http.StatusAccepted {
			a = ask(t, k, "", "GET", "/v1/sessions/work/operations/behind/verdict", "")
		}
		var v sandbox.Verdict
		a.decode(t, &v)
		if got, want := string(v.Stdout.Head), spanOf(t, spans, x.span); got != want || !strings.HasPrefix(got, callersTrace) {
			t.Errorf("the %s sees %q, and its span is %q", x.name, got, want)
		}
	}
	var v sandbox.Verdict
	ask(t, k, "", "POST", "/v1/sessions/work/cells", `{"code":"print(os.environ.get('TRACEPARENT'))"}`).decode(t, &v)
	if got := string(v.Stdout.Head); strings.HasPrefix(got, callersTrace) {
		t.Errorf("the next cell, of another trace, sees %q", got)
	}
}

func TestTraceReachesTheCodeOfARun(t *testing.T) {
	k, spans := traceBench(t)
	a := ask(t, k, "", "POST", "/v1/runs", `{"query":"Which trace?","contexts":[{"name":"notes","text":"`+strings.Repeat("nothing here ", 40_000)+`"}]}`, "traceparent", callersSpan)
	var i rlm.Info
	a.decode(t, &i)
	follow(t, k.Trusted, i.ID, 0)
	ended, err := k.Trusted.Run(t.Context(), i.ID)
	if err != nil || ended.Result == nil {
		t.Fatalf("%+v %v", ended, err)
	}
	if got, want := ended.Result.Answer, spanOf(t, spans, "run"); got != want || !strings.HasPrefix(got, callersTrace) {
		t.Errorf("the code sees %q, and the run's span is %q", got, want)
	}
}
