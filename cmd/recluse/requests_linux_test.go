package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/session"
)

// countRequests puts a proxy before the user's server, through which every later command goes, and returns what the proxy
// has seen since the last call.
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

func TestAWarmSessionTakesTwoRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_LIMITS_MEMORY=256m") // of a new session alone
	w.must("session", "open", "work", "--memory", "128m")
	env := w.env
	requests := w.countRequests()
	defer func() { w.env = env }()
	w.expect("42\n", "exec", "--session", "work", "--python", "40 + 2")
	w.expect("hi\n", "exec", "--session", "work", "--", "echo", "hi")
	want := []string{"PUT /v1/sessions/work", "GET /v1/sessions/work/stream"}
	if got := requests(); !slices.Equal(got, slices.Concat(want, want)) {
		t.Errorf("two commands made the requests %q", got)
	}
	w.must("exec", "--session", "other", "--json", "--python", "1")
	if got := requests(); len(got) != 2 {
		t.Errorf("a command in a new session made the requests %q", got)
	}
	var i session.Info
	decodeJSON(t, w.must("session", "show", "other", "--json"), &i)
	if i.Spec.Limits.Memory != 256<<20 {
		t.Errorf("a new session has %d bytes of memory", i.Spec.Limits.Memory)
	}
}
