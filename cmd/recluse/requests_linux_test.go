package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/session"
)

// countRequests puts a proxy before the user's server, through which every later command goes, and returns what the
// proxy has seen since the last call.
func (w *world) countRequests() (requests func() []string) {
	w.t.Helper()
	socket := w.server().Socket
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	proxy := httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "recluse"}) }}
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Method+" "+r.URL.Path)
		mu.Unlock()
		proxy.ServeHTTP(rw, r)
	}))
	w.t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	w.env = append(w.env, "RECLUSE_CLIENT_URL="+server.URL)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		all := seen
		seen = nil
		return all
	}
}

func TestAWarmSessionTakesOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_LIMITS_MEMORY=256m") // for new sessions only
	w.must("session", "open", "work", "--memory", "128m")
	script := filepath.Join(writeFiles(t, map[string]string{"s.py": "print(7)"}), "s.py")
	env := w.env
	requests := w.countRequests()
	defer func() { w.env = env }()
	const (
		open   = "PUT /v1/sessions/work"
		stream = "GET /v1/sessions/work/stream"
	)
	for _, tt := range []struct {
		name string
		out  string
		args []string
		want []string
	}{
		{"a cell", "42\n", []string{"--python", "40 + 2"}, []string{stream}},
		{"a command", "hi\n", []string{"--", "echo", "hi"}, []string{stream}},
		{"a script", "7\n", []string{"--python-file", script}, []string{stream}},
		{"its own settings", "hi\n", []string{"--memory", "128m", "--", "echo", "hi"}, []string{open, stream}},
		{"its own backend", "hi\n", []string{"--backend", "gvisor", "--", "echo", "hi"}, []string{open, stream}},
		{"settings of the command", "v\n", []string{"--env", "K=v", "--dir", "/tmp", "--", "printenv", "K"}, []string{stream}},
	} {
		w.expect(tt.out, append([]string{"exec", "--session", "work"}, tt.args...)...)
		if got := requests(); !slices.Equal(got, tt.want) {
			t.Errorf("%s made the requests %q", tt.name, got)
		}
	}
	// If the first request finds no session, the second creates it, and the third runs the command.
	if got := w.run("typed", "exec", "--session", "other", "--", "cat"); got.status != 0 || got.stdout != "typed" {
		t.Errorf("%+v", got)
	}
	if got := requests(); !slices.Equal(got, []string{"GET /v1/sessions/other/stream", "PUT /v1/sessions/other", "GET /v1/sessions/other/stream"}) {
		t.Errorf("a command in a new session made the requests %q", got)
	}
	w.must("exec", "--session", "third", "--memory", "128m", "--json", "--python", "1")
	if got := requests(); len(got) != 2 {
		t.Errorf("a command in a new session with settings made the requests %q", got)
	}
	var i session.Info
	decodeJSON(t, w.must("session", "show", "other", "--json"), &i)
	if i.Spec.Limits.Memory != 256<<20 {
		t.Errorf("a new session has %d bytes of memory", i.Spec.Limits.Memory)
	}
}

func TestAnExpiredSessionIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "brief", "--expires", "1s")
	w.await("its end", func() bool { return w.run("", "session", "show", "brief").status != 0 })
	if got := w.run("typed", "exec", "--session", "brief", "--", "cat"); got.status != 0 || got.stdout != "typed" {
		t.Errorf("%+v", got)
	}
}
