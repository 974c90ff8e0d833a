package server_test

import (
	"net/http"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheNetworkOfASession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	ses := open(t, k, "a", "work")
	key := k.Key("a", "execute")
	const path = "/v1/sessions/work/network"
	a := ask(t, k, key, "GET", path, "")
	if a.status != http.StatusOK || a.body != `{"preset":"none","generation":1}` {
		t.Errorf("the first policy: %d %s", a.status, a.body)
	}
	if a = ask(t, k, key, "PUT", path, a.body); a.status != http.StatusOK || a.body != `{"preset":"none","generation":2}` {
		t.Errorf("the first policy, put back: %d %s", a.status, a.body)
	}
	a = ask(t, k, key, "PUT", path, `{"rules":["allow a.test"],"generation":1}`)
	if a.status != http.StatusConflict || a.problem(t).Code != v1.CodeNetworkChanged {
		t.Errorf("a policy for an earlier generation: %d %s", a.status, a.body)
	}
	for body, code := range map[string]v1.Code{
		`{"rules":["allow http://a.test"]}`: v1.CodeInvalidSpec, `{"preset":"some"}`: v1.CodeInvalidSpec,
		`{"rules":["ask a.test"]}`: v1.CodeNotSupported, `{"rule":[]}`: v1.CodeUnknownField, ``: v1.CodeInvalidRequest,
	} {
		if a := ask(t, k, key, "PUT", path, body); a.problem(t).Code != code {
			t.Errorf("%s: %d %s, want %s", body, a.status, a.body, code)
		}
	}
	token := ask(t, k, key, "POST", "/v1/sessions/work/tokens", `{"scope":"execute","for":"1m"}`)
	var made v1.Token
	token.decode(t, &made)
	if a = ask(t, k, made.Token, "PUT", path, `{"preset":"public"}`); a.status != http.StatusForbidden {
		t.Errorf("a session token has set the policy: %d %s", a.status, a.body)
	}
	if a = ask(t, k, made.Token, "GET", path, ""); a.status != http.StatusOK {
		t.Errorf("a session token and the policy: %d %s", a.status, a.body)
	}

	c := k.Client(key).Session("work")
	n, err := c.SetNetwork(t.Context(), v1.SessionNetwork{Network: v1.Network{Rules: []v1.NetworkRule{"allow a.test"}}, Generation: 2})
	if err != nil || n.Generation != 3 {
		t.Fatalf("%+v, %v", n, err)
	}
	for destination, want := range map[string]v1.NetworkAction{
		"https://a.test/x": v1.NetworkAllow, "a.test:22": v1.NetworkDeny, "b.test": v1.NetworkDeny, "127.0.0.1": v1.NetworkDeny,
	} {
		if d, err := c.CheckNetwork(t.Context(), destination); err != nil || d.Action != want || d.Generation != 3 || d.Reason == "" {
			t.Errorf("%s: %+v, %v", destination, d, err)
		}
	}
	if _, err := c.CheckNetwork(t.Context(), "b.test:0"); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("a destination with port 0: %v", err)
	}

	lookUp := func(name string) {
		t.Helper()
		code := "import urllib.request\ntry: urllib.request.urlopen('http://" + name + "')\nexcept OSError: pass"
		if v, err := ses.Cell(t.Context(), sandbox.Cell{Code: code}); err != nil || !v.OK() {
			t.Fatal(v, err)
		}
	}
	lookUp("b.test")
	events, stop := listen(t.Context(), t, k, "GET", path+"/log", "", "Authorization", "Bearer "+key)
	defer stop()
	until := func(host string) (e v1.NetworkEvent) {
		t.Helper()
		for e.Kind != v1.NetworkEventDenied || e.Host != host {
			got := next(t, events)
			if err := got.Decode(&e); err != nil || got.Kind != v1.EventNetwork {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		return e
	}
	if e := until("b.test"); e.Port != 80 || e.Op == "" || e.Program != "python3" || !strings.Contains(e.Reason, "--allow b.test") {
		t.Errorf("the entry is %+v", e)
	}
	lookUp("c.test")
	last := until("c.test")
	var page v1.NetworkLogPage
	ask(t, k, key, "GET", path+"/log?limit=1", "").decode(t, &page)
	if len(page.Entries) != 1 || page.Next != page.Entries[0].Seq || page.Entries[0].Host != "b.test" {
		t.Errorf("the first page is %+v", page)
	}
	count := 0
	for e, err := range c.NetworkLog(t.Context(), v1.NetworkLogOptions{After: page.Next}) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; e.Seq > last.Seq {
			t.Errorf("a later entry than the last: %+v", e)
		}
	}
	if count == 0 {
		t.Error("the log has one entry only")
	}
	metrics := ask(t, k, k.Key("a", "admin"), "GET", "/metrics", "").body
	if !strings.Contains(metrics, `recluse_network_connections_total{action="deny"} 2`) ||
		!strings.Contains(metrics, `recluse_network_bytes_total{direction="sent"} 0`) {
		t.Error("the metrics lack the connections")
	}
}
