package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestHealth(t *testing.T) {
	ill := &v1.Error{Code: v1.CodeNoBackend, Message: "nothing runs here"}
	for _, c := range []struct {
		name   string
		opts   server.Options
		path   string
		status int
	}{
		{"alive", server.Options{}, "/healthz", 200},
		{"ready", server.Options{}, "/readyz", 200},
		{"alive though nothing can be made", server.Options{Health: func(context.Context) error { return ill }}, "/healthz", 200},
		{"not ready", server.Options{Health: func(context.Context) error { return ill }}, "/readyz", 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := servertest.New(t, c.opts)
			if a := ask(t, k, "", "GET", c.path, ""); a.status != c.status {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
}

func TestFiguresForPrometheus(t *testing.T) {
	k := servertest.NewWarm(t, server.Options{PublicMetrics: true})
	if a := ask(t, k, "", "PUT", "/v1/sessions/private-name", "{}"); a.status != http.StatusCreated {
		t.Fatal(a.body)
	}
	ask(t, k, "", "POST", "/v1/sessions/private-name/cells", `{"code":"1"}`)
	ask(t, k, "", "POST", "/v1/sessions/private-name/commands", `{"shell":"sleep 60","timeout":"50ms"}`)
	ask(t, k, "", "POST", "/v1/sessions/private-name/commands", `{"shell":"sleep 60","timeout":"50ms","background":true}`)
	const behind = `recluse_run_ends_total{ended="timeout",kind="background"} 1`
	testneed.Await(t, "the end in the background is counted", func() bool { return strings.Contains(ask(t, k, "", "GET", "/metrics", "").body, behind) })
	// no operation may run in the session: it would end twice
	if a := ask(t, k, "", "POST", "/v1/sessions/private-name/forks", `{"count":1}`); a.status != http.StatusCreated {
		t.Fatal(a.body)
	}
	ask(t, k, "", "POST", "/v1/sessions/private-name/hibernate", "")
	ask(t, k, "", "POST", "/v1/sessions/private-name/resume", "")
	a := ask(t, k, "", "GET", "/metrics", "")
	for _, want := range []string{
		`recluse_sessions{backend="gvisor",state="ready"} 2`,
		`recluse_session_changes_total{state="hibernated"} 1`,
		`recluse_session_create_seconds_count{backend="gvisor"} 2`,
		`recluse_pool_taken_total{backend="gvisor",how="hit"} 1`,
		`recluse_pool_taken_total{backend="gvisor",how="miss"} 0`,
		`recluse_pool_failed_total{backend="gvisor",how="died"} 0`,
		`recluse_pool_ready{backend="gvisor"} `,
		`recluse_pool_making{backend="gvisor"} `,
		`recluse_run_seconds_count{kind="cell"} 1`,
		`recluse_run_ends_total{ended="timeout",kind="command"} 1`,
		`recluse_http_requests_total{method="POST",route="/v1/sessions/{session}/cells",status="200"} 1`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(a.body, "private-name") {
		t.Error("the name of a session is a label")
	}
}

func TestTraceReachesTheGuest(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	defer provider.Shutdown(t.Context())
	k := servertest.New(t, server.Options{Tracer: provider})
	open(t, k, "default", "work")
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := ask(t, k, "", "POST", "/v1/sessions/work/cells", `{"code":"1","metadata":{"mine":"1"}}`, "traceparent", parent)
	var v sandbox.Verdict
	a.decode(t, &v)
	if got := v.Metadata["traceparent"]; !strings.HasPrefix(got, "00-0af7651916cd43dd8448eb211c80319c-") || got == parent || v.Metadata["mine"] != "1" {
		t.Errorf("the guest was told %v", v.Metadata)
	}
	a = ask(t, k, "", "POST", "/v1/sessions/work/commands", `{"shell":"echo $TRACEPARENT; echo $MINE","env":{"MINE":"1"}}`, "traceparent", parent)
	a.decode(t, &v)
	if got := string(v.Stdout.Head); !strings.HasPrefix(got, "00-0af7651916cd43dd8448eb211c80319c-") || strings.HasPrefix(got, parent) || !strings.HasSuffix(got, "\n1\n") {
		t.Errorf("the command was told %q", got)
	}
	names := map[string]bool{}
	for _, s := range spans.GetSpans() {
		names[s.Name] = s.SpanContext.TraceID().String() == "0af7651916cd43dd8448eb211c80319c"
	}
	if !names["cell"] || !names["POST /v1/sessions/{session}/cells"] {
		t.Errorf("spans: %v", names)
	}
}

func TestLogHasIdsAndNoSecrets(t *testing.T) {
	var buf syncBuffer
	k := servertest.New(t, server.Options{Logger: slog.New(slog.NewJSONHandler(&buf, nil))})
	key := k.Key("a", "execute")
	open(t, k, "a", "work")
	a := ask(t, k, key, "POST", "/v1/sessions/work/cells", `{"code":"password = 'hunter2'"}`)
	ask(t, k, key, "GET", "/v1/sessions/work/files?path=/tmp/hunter2", "")
	id := a.header.Get(v1.HeaderRequest)
	text := buf.String()
	if strings.Contains(text, "hunter2") || strings.Contains(text, key[20:]) {
		t.Errorf("a secret was logged: %s", text)
	}
	found := false
	for line := range strings.Lines(text) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if l["request"] == id {
			found = l["route"] == "/v1/sessions/{session}/cells" && l["session"] == "work" && l["tenant"] == "a" && l["actor"] == "a execute" && l["status"] == 200.0
		}
	}
	if !found {
		t.Errorf("no line for request %s in %s", id, text)
	}
}

func TestRequestsWithoutARouteAreNotedToo(t *testing.T) {
	var buf syncBuffer
	k := servertest.New(t, server.Options{Logger: slog.New(slog.NewJSONHandler(&buf, nil)), PublicMetrics: true})
	for path, c := range map[string]struct {
		status        int
		route, method string
	}{
		"/v1/nothing?with=more":   {http.StatusNotFound, "unknown", "GET"},
		"/v1/sessions/work/cells": {http.StatusMethodNotAllowed, "/v1/sessions/{session}/cells", "BREW"},
	} {
		a := ask(t, k, "", c.method, path, "")
		p := a.problem(t)
		if a.status != c.status || p.Instance == "" || p.Instance != a.header.Get(v1.HeaderRequest) {
			t.Errorf("%s: %d %+v", path, a.status, p)
		}
		if a.status == http.StatusMethodNotAllowed && a.header.Get("Allow") != "POST" {
			t.Errorf("allowed is %q", a.header.Get("Allow"))
		}
		testneed.Await(t, path+" is logged", func() bool {
			text := buf.String()
			return strings.Contains(text, `"request":"`+p.Instance+`"`) && strings.Contains(text, `"route":"`+c.route+`"`)
		})
		want := fmt.Sprintf(`recluse_http_requests_total{method="other",route=%q,status="%d"} 1`, c.route, c.status)
		testneed.Await(t, path+" is counted", func() bool { return strings.Contains(ask(t, k, "", "GET", "/metrics", "").body, want) })
	}
	if a := ask(t, k, "", "GET", "/metrics", ""); strings.Contains(a.body, "nothing") || strings.Contains(a.body, "BREW") {
		t.Error("what a caller made up is a label")
	}
}

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	k := servertest.New(t, server.Options{Version: "1.2.3"})
	var doc struct {
		OpenAPI    string
		Info       struct{ Version string }
		Paths      map[string]map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	a := ask(t, k, "", "GET", "/v1/openapi.json", "")
	a.decode(t, &doc)
	if doc.OpenAPI != "3.1.0" || doc.Info.Version != "1.2.3" {
		t.Errorf("%+v", doc.Info)
	}
	ids := map[any]bool{}
	for _, r := range k.Server.TestRoutes() {
		op := doc.Paths[r.Path][strings.ToLower(r.Method)]
		if op == nil || op["summary"] == "" || ids[op["operationId"]] {
			t.Errorf("%s %s: %v", r.Method, r.Path, op)
			continue
		}
		ids[op["operationId"]] = true
	}
	for _, name := range []string{"CellRequest", "CommandRequest", "Verdict", "Problem", "Session", "Spec"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("no schema %s", name)
		}
	}
	fields, _ := doc.Components.Schemas["Spec"]["properties"].(map[string]any)
	for _, name := range []string{"image", "shell", "user", "options", "volumes"} {
		if fields[name] == nil {
			t.Errorf("a spec has no %s", name)
		}
	}
	for _, ref := range strings.Split(a.body, `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(ref, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("a reference to %s leads nowhere", name)
		}
	}
	if y := ask(t, k, "", "GET", "/v1/openapi.yaml", ""); y.status != 200 || !strings.Contains(y.body, "openapi: 3.1.0") {
		t.Errorf("%d %.100s", y.status, y.body)
	}
}

func TestShutdownByRequest(t *testing.T) {
	asked := make(chan struct{})
	var once sync.Once
	k := servertest.New(t, server.Options{Shutdown: func() { once.Do(func() { close(asked) }) }})
	if a := ask(t, k, "", "POST", "/v1/server/shutdown", ""); a.status != http.StatusForbidden {
		t.Errorf("anybody may: %d", a.status)
	}
	if err := k.Trusted.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-asked
	if _, err := k.Trusted.GC(t.Context()); err != nil {
		t.Error(err)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
