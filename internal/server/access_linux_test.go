package server_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// bodies are valid request bodies by route, so that only access control can reject the requests.
var bodies = map[string]string{
	"POST /cells": `{"code":"1"}`, "POST /commands": `{"args":["true"]}`, "POST /operations/{operation}/signal": `{"signal":"TERM"}`,
	"POST /files/mkdir": `{"path":"d"}`, "POST /files/move": `{"from":"a","to":"b"}`, "PUT /vars/{name}": `{"value":"v"}`,
	"POST /snapshots": `{"name":"n"}`, "POST /restore": `{"ref":"n"}`, "POST /keys": `{"name":"n","scope":"read"}`,
	"POST /approvals/{approval}": `{"grant":true}`, "POST /runs": `{"query":"what?"}`, "POST /runs/{run}/fork": `{"at":0}`,
	"POST /volumes": `{"name":"v","size":8388608}`, "PUT /network": `{"preset":"none"}`, "POST /network/check": `{"destination":"example.com"}`,
	"POST /files/batch": "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n",
}

// try sends a request to a route that is valid except for its access.
func try(t *testing.T, k *servertest.Bench, key string, r server.TestRoute, name string) answer {
	t.Helper()
	return tryWith(t, k, key, r, name, "r-0", "q-0")
}

// tryWith is try with the ids of a run and an approval for the path.
func tryWith(t *testing.T, k *servertest.Bench, key string, r server.TestRoute, name, run, approval string) answer {
	t.Helper()
	short := strings.TrimPrefix(strings.TrimPrefix(r.Path, "/v1/sessions/{session}"), "/v1")
	path := strings.NewReplacer("{session}", name, "{operation}", "c1", "{context}", "default", "{name}", "v", "{port}", "9", "{path}", "x", "{snapshot}", "n", "{key}", "0", "{run}", run, "{approval}", approval).Replace(r.Path)
	if strings.Contains(r.Path, "/files") && r.Method != http.MethodPost {
		path += "?path=/tmp/x"
	}
	if strings.HasSuffix(r.Path, "{session}/events") {
		path += "?follow=false"
	}
	var header []string
	if strings.HasSuffix(r.Path, "/batch") {
		header = []string{"Content-Type", "multipart/form-data; boundary=b"}
	}
	return ask(t, k, key, r.Method, path, bodies[r.Method+" "+short], header...)
}

func TestEveryRouteNeedsAKey(t *testing.T) {
	k := servertest.New(t, server.Options{})
	k.Key("a", "admin") // from now on every caller needs a key
	open := map[string]bool{"/healthz": true, "/readyz": true, "/v1/openapi.json": true, "/v1/openapi.yaml": true}
	for _, r := range k.Server.TestRoutes() {
		for _, key := range []string{"", "rk_0000000000000000_0", "nonsense", "rs_0000000000000000_" + strings.Repeat("0", 64)} {
			a := try(t, k, key, r, "work")
			if open[r.Path] {
				if a.status != http.StatusOK {
					t.Errorf("%s %s: %d %s", r.Method, r.Path, a.status, a.body)
				}
				continue
			}
			if a.status != http.StatusUnauthorized || a.problem(t).Code != v1.CodeUnauthorized || a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s with key %q: %d %s", r.Method, r.Path, key, a.status, a.body)
			}
		}
	}
}

func TestScopesOfEveryRoute(t *testing.T) {
	k := servertest.New(t, server.Options{})
	keys := map[string]string{"read": k.Key("a", "read"), "execute": k.Key("a", "execute"), "admin": k.Key("a", "admin")}
	rank := map[string]int{"none": 0, "read": 1, "execute": 2, "admin": 3}
	for _, r := range k.Server.TestRoutes() {
		if r.Path == "/v1/sessions" && r.Method == http.MethodPost || r.Path == "/v1/sessions/{session}" && r.Method == http.MethodPut {
			continue // these routes would make a sandbox; the scope is checked before, as for all routes
		}
		for name, key := range keys {
			a := try(t, k, key, r, "nowhere")
			refused := a.status == http.StatusForbidden && a.problem(t).Code == v1.CodeForbidden
			if want := rank[name] < rank[r.Scope] || r.Operator; refused != want {
				t.Errorf("%s %s with scope %s: %d, refused %v, want %v", r.Method, r.Path, name, a.status, refused, want)
			}
		}
	}
}

// requestIDs matches the ids of requests, which differ between otherwise equal answers.
var requestIDs = regexp.MustCompile(`"instance":"[0-9a-f]+"`)

// newQuestionedBench returns a server with an ended run and a pending approval of a tenant.
func newQuestionedBench(t *testing.T, tenant string) (k *servertest.Bench, run, question string) {
	t.Helper()
	models, err := llm.Open(llm.Config{Default: "scripted/root"})
	if err != nil {
		t.Fatal(err)
	}
	models.Add(llm.NewScripted("root", llm.Rule{Reply: "a plain reply"}))
	keeper := runs.New(runs.Options{
		Models: models, DataDir: t.TempDir(), Limits: rlm.DefaultLimits(), Backend: func(context.Context) (sandbox.Backend, error) { return k.Backend, nil },
	})
	g, questions := askingGate(t, gate.Options{RulesMode: gate.ModeBlock, EscalateAfter: 1})
	k = servertest.New(t, server.Options{Runs: keeper, Approvals: questions})
	t.Cleanup(keeper.Close) // before the server's own end
	d, err := g.Judge(t.Context(), gate.Request{Language: gate.Bash, Code: "rm -rf / # secret", Session: "work", Tenant: tenant})
	if err != nil || d.Approval == "" {
		t.Fatalf("nobody was asked: %+v %v", d, err)
	}
	c := k.Client(k.Key(tenant, "execute"))
	i, err := c.StartRun(t.Context(), client.RunOptions{Query: "What is the secret?"})
	if err != nil {
		t.Fatal(err)
	}
	follow(t, c, i.ID, 0) // until the run has ended
	return k, i.ID, d.Approval
}

func TestAnotherTenantsSessionIsNotThere(t *testing.T) {
	k, run, question := newQuestionedBench(t, "a")
	mine := open(t, k, "a", "alpha")
	if _, err := mine.Save(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	if err := mine.SetVar(t.Context(), "v", "secret-value"); err != nil {
		t.Fatal(err)
	}
	if v, err := mine.Run(t.Context(), sandbox.Command{RunOptions: sandbox.RunOptions{ID: "c1"}, Shell: "echo secret-value > /tmp/x"}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	k.Key("a", "admin")
	foreign := k.Key("b", "admin")
	clean := func(a answer, name string) string {
		return fmt.Sprint(a.status, requestIDs.ReplaceAllString(strings.ReplaceAll(a.body, name, "NAME"), ""))
	}
	for _, r := range k.Server.TestRoutes() {
		if r.Operator || r.Scope == "none" || r.Path == "/metrics" {
			continue
		}
		what := r.Method + " " + r.Path
		switch {
		case what == "PUT /v1/sessions/{session}", what == "POST /v1/sessions", what == "POST /v1/keys", what == "POST /v1/runs", what == "POST /v1/chat/completions":
			continue // these routes create something for the caller; see below
		case strings.Contains(r.Path, "{run}"), strings.Contains(r.Path, "{approval}"):
			there, nowhere := tryWith(t, k, foreign, r, "", run, question), try(t, k, foreign, r, "")
			one := strings.NewReplacer(run, "NAME", question, "NAME").Replace(clean(there, "NAME"))
			if other := strings.NewReplacer("r-0", "NAME", "q-0", "NAME").Replace(clean(nowhere, "NAME")); there.status != http.StatusNotFound || one != other {
				t.Errorf("%s differs for another tenant's:\n%s\n%s", what, one, other)
			}
		case !strings.Contains(r.Path, "{session}"):
			a := try(t, k, foreign, r, "")
			if strings.Contains(a.body, "alpha") || strings.Contains(a.body, "secret") || strings.Contains(a.body, run) || strings.Contains(a.body, question) || strings.Contains(a.body, `"a admin"`) {
				t.Errorf("%s shows what belongs to another tenant: %s", what, a.body)
			}
		default:
			there, nowhere := try(t, k, foreign, r, "alpha"), try(t, k, foreign, r, "omega")
			if there.status != http.StatusNotFound || clean(there, "alpha") != clean(nowhere, "omega") {
				t.Errorf("%s differs for a foreign session:\n%s\n%s", what, clean(there, "alpha"), clean(nowhere, "omega"))
			}
		}
	}
	// Naming the tenant in the header is refused, too.
	a := ask(t, k, foreign, "GET", "/v1/sessions/alpha", "", v1.HeaderTenant, "a")
	if a.status != http.StatusForbidden {
		t.Errorf("a tenant was let in as another: %d %s", a.status, a.body)
	}
	a = ask(t, k, foreign, "POST", "/v1/keys", `{"name":"n","scope":"read","tenant":"a"}`)
	if a.status != http.StatusForbidden {
		t.Errorf("a tenant made a key for another: %d %s", a.status, a.body)
	}
	a = ask(t, k, foreign, "PUT", "/v1/sessions/beta", `{"from":"alpha@n"}`)
	if a.status != http.StatusNotFound {
		t.Errorf("a tenant began from another's snapshot: %d %s", a.status, a.body)
	}
	// The same name in another tenant is another session.
	a = ask(t, k, foreign, "PUT", "/v1/sessions/alpha", `{}`)
	var opened session.Opened
	a.decode(t, &opened)
	if a.status != http.StatusCreated || opened.ID == mine.Info().ID {
		t.Errorf("the session of another tenant was opened: %d %s", a.status, a.body)
	}
	// The objects of the first tenant are unchanged.
	owner := k.Client(k.Key("a", "admin"))
	if i, err := owner.Run(t.Context(), run); err != nil || i.ID != run {
		t.Errorf("its run: %+v %v", i, err)
	}
	if q, err := owner.Approval(t.Context(), question, client.ApprovalOptions{}); err != nil || q.State != v1.ApprovalPending {
		t.Errorf("its question: %+v %v", q, err)
	}
	v, err := mine.Run(t.Context(), sandbox.Command{Shell: "cat /tmp/x"})
	if err != nil || string(v.Stdout.Head) != "secret-value\n" || !mine.Info().State.Live() {
		t.Errorf("the session was changed: %v %v", v, err)
	}
}

func TestTokenOfASession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key := k.Key("a", "execute")
	open(t, k, "a", "one")
	open(t, k, "a", "two")
	var tok v1.Token
	ask(t, k, key, "POST", "/v1/sessions/one/tokens", `{}`).decode(t, &tok)
	check := func(what string, a answer, status int) {
		t.Helper()
		if a.status != status {
			t.Errorf("%s: %d %s, want %d", what, a.status, a.body, status)
		}
	}
	check("its session", ask(t, k, tok.Token, "POST", "/v1/sessions/one/cells", `{"code":"1"}`), http.StatusOK)
	check("opening it", ask(t, k, tok.Token, "PUT", "/v1/sessions/one", `{}`), http.StatusOK)
	check("another session", ask(t, k, tok.Token, "GET", "/v1/sessions/two", ""), http.StatusNotFound)
	check("making a session", ask(t, k, tok.Token, "POST", "/v1/sessions", `{}`), http.StatusForbidden)
	check("all sessions", ask(t, k, tok.Token, "GET", "/v1/sessions", ""), http.StatusForbidden)
	check("keys", ask(t, k, tok.Token, "GET", "/v1/keys", ""), http.StatusForbidden)
	check("an admin's token", ask(t, k, key, "POST", "/v1/sessions/one/tokens", `{"scope":"admin"}`), http.StatusBadRequest)
	var look v1.Token
	ask(t, k, key, "POST", "/v1/sessions/one/tokens", `{"scope":"read"}`).decode(t, &look)
	check("running with a token that may only look", ask(t, k, look.Token, "POST", "/v1/sessions/one/cells", `{"code":"1"}`), http.StatusForbidden)
	var brief v1.Token
	ask(t, k, key, "POST", "/v1/sessions/one/tokens", `{"for":"1ns"}`).decode(t, &brief)
	if brief.Expires == nil {
		t.Errorf("got %+v", brief)
	}
	for range 2 { // also when the token is cached
		check("a token that has expired", ask(t, k, brief.Token, "GET", "/v1/sessions/one", ""), http.StatusUnauthorized)
	}
	two, err := k.Manager.Get(t.Context(), session.Key{Tenant: "a", Name: "two"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Save(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	check("a snapshot of its own", ask(t, k, tok.Token, "POST", "/v1/sessions/one/snapshots", `{"name":"n"}`), http.StatusCreated)
	check("another session's snapshot", ask(t, k, tok.Token, "POST", "/v1/sessions/one/restore", `{"ref":"two@n"}`), http.StatusForbidden)
	check("its own by its short name", ask(t, k, tok.Token, "POST", "/v1/sessions/one/restore", `{"ref":"n"}`), http.StatusOK)
	check("its own by its whole name", ask(t, k, tok.Token, "POST", "/v1/sessions/one/restore", `{"ref":"one@n"}`), http.StatusOK)
	check("copies", ask(t, k, tok.Token, "POST", "/v1/sessions/one/forks", `{"count":2}`), http.StatusForbidden)
	check("the end", ask(t, k, tok.Token, "DELETE", "/v1/sessions/one", ""), http.StatusNoContent)
	open(t, k, "a", "one") // another session with the same name
	check("a session of the same name", ask(t, k, tok.Token, "GET", "/v1/sessions/one", ""), http.StatusNotFound)
}

func TestKeysOverTheirLife(t *testing.T) {
	k := servertest.New(t, server.Options{})
	admin := k.Key("a", "admin")
	var made v1.APIKey
	ask(t, k, admin, "POST", "/v1/keys", `{"name":"short","scope":"read","for":"1h"}`).decode(t, &made)
	if made.Secret == "" || made.Expires == nil {
		t.Fatalf("got %+v", made)
	}
	if a := ask(t, k, made.Secret, "GET", "/v1/sessions", ""); a.status != http.StatusOK {
		t.Errorf("a new key: %d %s", a.status, a.body)
	}
	if a := ask(t, k, admin, "GET", "/v1/keys", ""); strings.Contains(a.body, made.Secret) || strings.Contains(a.body, "secret") || !strings.Contains(a.body, made.ID) {
		t.Errorf("the list: %s", a.body)
	}
	stored, err := k.Store.Keys(t.Context(), "a")
	if err != nil || strings.Contains(fmt.Sprintf("%+v", stored), made.Secret[len("rk_0000000000000000_"):]) {
		t.Errorf("the store holds the secret itself: %v", err)
	}
	k.Stop()
	k.Start()
	if a := ask(t, k, made.Secret, "GET", "/v1/sessions", ""); a.status != http.StatusOK {
		t.Errorf("after a restart: %d %s", a.status, a.body)
	}
	if a := ask(t, k, admin, "DELETE", "/v1/keys/"+made.ID, ""); a.status != http.StatusNoContent {
		t.Errorf("revoke: %d %s", a.status, a.body)
	}
	if a := ask(t, k, made.Secret, "GET", "/v1/sessions", ""); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked key: %d %s", a.status, a.body)
	}
	other := k.Key("b", "admin")
	if a := ask(t, k, other, "DELETE", "/v1/keys/"+made.ID, ""); a.problem(t).Code != v1.CodeKeyUnknown {
		t.Errorf("another tenant's key: %d %s", a.status, a.body)
	}
}

func TestKeysAndTokensAreInTheAuditLog(t *testing.T) {
	k := servertest.New(t, server.Options{})
	admin := k.Key("a", "admin")
	open(t, k, "a", "work")
	var key v1.APIKey
	ask(t, k, admin, "POST", "/v1/keys", `{"name":"ci","scope":"read"}`).decode(t, &key)
	var token v1.Token
	ask(t, k, admin, "POST", "/v1/sessions/work/tokens", `{"scope":"read"}`).decode(t, &token)
	ask(t, k, admin, "DELETE", "/v1/keys/"+key.ID, "")
	everywhere := k.Key("*", "read")
	for tenant, want := range map[string][]string{
		"a": {
			`key.create "a admin", tenant a, scope admin`, `key.create "ci", tenant a, scope read`, `token.create work, scope read`,
			`key.revoke "ci", tenant a, scope read`,
		},
		"default": {`key.create "* read", tenant *, scope read`},
	} {
		var got []string
		for e, err := range k.Manager.Audit(t.Context(), session.AuditOptions{Tenant: tenant}) {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(e.Action, "key.") && !strings.HasPrefix(e.Action, "token.") {
				continue
			}
			id, rest, _ := strings.Cut(e.Detail, " ")
			if e.Session != "" {
				rest = e.Session + ", " + rest
			}
			got = append(got, e.Action+" "+rest)
			if len(strings.Trim(id, ",")) != 16 || e.Actor == "" {
				t.Errorf("%+v", e)
			}
			for _, secret := range []string{admin, key.Secret, token.Token, everywhere} {
				if strings.Contains(fmt.Sprintf("%+v", e), secret[20:]) {
					t.Errorf("the secret is in the audit log: %+v", e)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", tenant, got, want)
		}
	}
}

func TestOperatorActsForATenant(t *testing.T) {
	k := servertest.New(t, server.Options{})
	op := k.Key("*", "admin")
	mine := open(t, k, "a", "alpha")
	var i session.Info
	ask(t, k, op, "GET", "/v1/sessions/alpha", "", v1.HeaderTenant, "a").decode(t, &i)
	if i.ID != mine.Info().ID {
		t.Errorf("got %+v", i)
	}
	if a := ask(t, k, op, "GET", "/v1/sessions/alpha", ""); a.status != http.StatusNotFound {
		t.Errorf("without naming the tenant: %d", a.status)
	}
}

func TestWhoeverNeedsNoKey(t *testing.T) {
	k := servertest.New(t, server.Options{})
	check := func(what string, a answer, status int) {
		t.Helper()
		if a.status != status {
			t.Errorf("%s: %d %s, want %d", what, a.status, a.body, status)
		}
	}
	check("a program of this machine", ask(t, k, "", "GET", "/v1/sessions", ""), http.StatusOK)
	check("a page of somebody else's", ask(t, k, "", "GET", "/v1/sessions", "", "Origin", "http://evil.example"), http.StatusUnauthorized)
	check("a page that a browser says is foreign", ask(t, k, "", "POST", "/v1/sessions", "{}", "Sec-Fetch-Site", "cross-site"), http.StatusUnauthorized)
	check("a name that was bent to loopback", ask(t, k, "", "GET", "/v1/sessions", "", "Host", "evil.example"), http.StatusMisdirectedRequest)
	check("the keys", ask(t, k, "", "GET", "/v1/keys", ""), http.StatusForbidden)
	check("a volume of the engine", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"volumes":[{"name":"v","path":"/v"}]}}`), http.StatusNotFound)
	check("a host config", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"options":{"docker":{"host_config":{"CpuShares":7}}}}}`), http.StatusForbidden)
	check("options that the server does not know", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"options":{"x":{}}}}`), http.StatusForbidden)
	check("options that are no object", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"options":{"docker":"host_config"}}}`), http.StatusForbidden)
	check("a mount of the host", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"mounts":[{"host":"/usr","path":"/m"}]}}`), http.StatusForbidden)
	check("a root of the host", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"rootfs":"/"}}`), http.StatusForbidden)
	for _, ref := range []string{
		"tar:/etc/passwd", "oci:layout", "oci-archive:/etc/passwd", "docker-archive:x", "/etc/passwd", "./layout", "../layout:tag", "saved.tar",
	} {
		check("the image "+ref+" of the host", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"image":"`+ref+`"}}`), http.StatusForbidden)
	}
	check("labels of ours", ask(t, k, "", "PUT", "/v1/sessions/x", `{"spec":{"labels":{"recluse.instance":"x"}}}`), http.StatusBadRequest)
	fi, err := os.Stat(k.Socket)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", fi.Mode(), err)
	}
	me, err := k.Trusted.Server(t.Context())
	if err != nil || me.Scope != "admin" || !strings.HasPrefix(me.Actor, "user ") {
		t.Errorf("over the socket: %+v %v", me, err)
	}
}

func TestNobodyComesBackWhenTheLastKeyGoes(t *testing.T) {
	k := servertest.New(t, server.Options{})
	for name, o := range map[string]v1.NewAPIKey{
		"revoked": {Name: "r", Tenant: "a", Scope: "admin"}, "expired": {Name: "e", Tenant: "a", Scope: "admin", For: v1.Duration(time.Nanosecond)},
	} {
		made, err := k.Trusted.CreateKey(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if name == "revoked" {
			if err := k.Trusted.RevokeKey(t.Context(), made.ID); err != nil {
				t.Fatal(err)
			}
		}
		if a := ask(t, k, made.Secret, "GET", "/v1/sessions", ""); a.status != http.StatusUnauthorized || a.problem(t).Code != v1.CodeUnauthorized {
			t.Errorf("a key that was %s: %d %s", name, a.status, a.body)
		}
	}
	for _, when := range []string{"at once", "after a restart"} {
		if a := ask(t, k, "", "GET", "/v1/sessions", ""); a.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", when, a.status, a.body)
		}
		if k.Server.HaveKeys() {
			t.Errorf("%s: a key can be used", when)
		}
		k.Stop()
		k.Start()
	}
}

func TestTokensOfAKeyThatIsRevoked(t *testing.T) {
	k := servertest.New(t, server.Options{})
	made, err := k.Trusted.CreateKey(t.Context(), v1.NewAPIKey{Name: "k", Tenant: "a", Scope: "execute"})
	if err != nil {
		t.Fatal(err)
	}
	open(t, k, "a", "one")
	var tok v1.Token
	ask(t, k, made.Secret, "POST", "/v1/sessions/one/tokens", `{"for":"1h"}`).decode(t, &tok)
	if a := ask(t, k, tok.Token, "POST", "/v1/sessions/one/tokens", `{}`); a.status != http.StatusForbidden {
		t.Errorf("a token made a token: %d %s", a.status, a.body)
	}
	k.Stop()
	k.Start()
	if a := ask(t, k, tok.Token, "GET", "/v1/sessions/one", ""); a.status != http.StatusOK {
		t.Errorf("while the key is good: %d %s", a.status, a.body)
	}
	if err := k.Trusted.RevokeKey(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if a := ask(t, k, tok.Token, "GET", "/v1/sessions/one", ""); a.status != http.StatusUnauthorized {
		t.Errorf("behind the key's end: %d %s", a.status, a.body)
	}
}

func TestCheckListen(t *testing.T) {
	for _, c := range []struct {
		addr string
		keys bool
		ok   bool
	}{
		{"127.0.0.1:7070", false, true},
		{"localhost:7070", false, true},
		{"[::1]:7070", false, true},
		{"0.0.0.0:7070", false, false},
		{":7070", false, false},
		{"[::]:7070", false, false},
		{"192.168.1.5:7070", false, false},
		{"example.com:7070", false, false},
		{"0.0.0.0:7070", true, true},
		{"nonsense", true, false},
	} {
		if err := server.CheckListen(c.addr, c.keys); (err == nil) != c.ok {
			t.Errorf("%s with keys %v: %v", c.addr, c.keys, err)
		}
	}
}

func TestRateOfAKey(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Rate: 0.001, Burst: 2}})
	one, two := k.Key("a", "read"), k.Key("a", "read")
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		a := ask(t, k, one, "GET", "/v1/sessions", "")
		if a.status != want || want != http.StatusOK && (a.header.Get("Retry-After") == "" || !a.problem(t).Retry) {
			t.Errorf("request %d: %d %v %s", i, a.status, a.header, a.body)
		}
	}
	if a := ask(t, k, two, "GET", "/v1/sessions", ""); a.status != http.StatusOK {
		t.Errorf("another key: %d", a.status)
	}
}

// TestARequiredBodyIsRequired sends an otherwise valid request without a body to each route that has one.
func TestARequiredBodyIsRequired(t *testing.T) {
	k, run, question := newQuestionedBench(t, "a")
	work := open(t, k, "a", "work")
	if _, err := work.Start(t.Context(), sandbox.Command{RunOptions: sandbox.RunOptions{ID: "c1", KeepStdin: true}, Args: []string{"cat"}}); err != nil {
		t.Fatal(err)
	}
	operator := k.Key("*", "admin")
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody *struct {
				Required bool
				Content  map[string]any
			}
		}
	}
	ask(t, k, "", "GET", "/v1/openapi.json", "").decode(t, &doc)
	fill := strings.NewReplacer("{session}", "work", "{operation}", "c1", "{name}", "v", "{run}", run, "{approval}", question, "{tenant}", "a", "{port}", "8000")
	for _, r := range k.Server.TestRoutes() {
		body := doc.Paths[r.Path][strings.ToLower(r.Method)].RequestBody
		if body == nil || strings.HasSuffix(r.Path, "/http/{path}") { // the program inside decides about its body
			continue
		}
		path, header := fill.Replace(r.Path), []string{v1.HeaderTenant, "a"}
		for media := range body.Content {
			if media == "multipart/form-data" {
				media += "; boundary=b"
			}
			header = append(header, "Content-Type", media)
		}
		if r.Method == http.MethodPut && strings.Contains(path, "/files") {
			path += "?parents=true&path=/tmp/" + strings.ReplaceAll(r.Path[1:], "/", "-")
		}
		a := ask(t, k, operator, r.Method, path, "", header...)
		// The run has an answer, so it cannot be resumed; the body is read before that check.
		accepted := a.status < http.StatusMultipleChoices || strings.HasSuffix(path, "/resume") && a.status == http.StatusConflict
		if refused := a.status == http.StatusBadRequest; refused != body.Required || accepted == body.Required {
			t.Errorf("%s %s is documented with required: %v, and answers an empty body with %d %s", r.Method, r.Path, body.Required, a.status, a.body)
		}
	}
}
