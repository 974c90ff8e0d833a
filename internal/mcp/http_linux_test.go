package mcp

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/session"
)

func TestTheLaterEraNeedsASessionByName(t *testing.T) {
	d := open(t, Options{})
	s := connect(t, &sdk.StreamableClientTransport{Endpoint: d.url}, nil, "")
	if s.ID() != "" {
		t.Fatalf("unexpected session id %q", s.ID())
	}
	if _, res := use[outcome](t, s, "run_code", args{"code": "1"}); !res.IsError || !strings.Contains(text(res), string(v1.CodeSessionNeeded)) {
		t.Fatal(text(res))
	}
	use[outcome](t, s, "run_code", args{"code": "x = 5", "session": "named"})
	if o, _ := use[outcome](t, s, "run_code", args{"code": "x", "session": "named"}); o.Result != "5" {
		t.Fatalf("%+v", o)
	}
	if st, _ := use[statusResult](t, s, "status", args{"session": "other"}); st.Exists {
		t.Fatal("status created a session")
	}
	for _, c := range []struct {
		client *sdk.ClientSession
		needed bool
	}{{s, true}, {d.overHTTP(t, nil), false}} {
		list, err := c.client.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			in := tool.InputSchema.(map[string]any)
			required, _ := in["required"].([]any)
			if _, has := in["properties"].(map[string]any)["session"]; has && slices.Contains(required, "session") != c.needed {
				t.Errorf("%s: required are %v", tool.Name, required)
			}
		}
	}
}

func TestKeysAndTenantsHoldThroughMCP(t *testing.T) {
	d := open(t, Options{})
	key := func(tenant, scope string) string {
		k, err := d.Trusted.CreateKey(t.Context(), v1.NewAPIKey{Name: tenant + "-" + scope, Tenant: tenant, Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		return k.Secret
	}
	as := func(key string) *sdk.StreamableClientTransport {
		return &sdk.StreamableClientTransport{Endpoint: d.url, HTTPClient: &http.Client{Transport: withKey{key}}}
	}
	executes, reads := key("a", "execute"), key("a", "read")
	// Since a key exists, requests without a key or with a wrong key are refused.
	for name, tr := range map[string]*sdk.StreamableClientTransport{"none": {Endpoint: d.url}, "wrong": as("rk_0_0")} {
		if s, err := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), tr, nil); err == nil {
			_ = s.Close()
			t.Errorf("connected with key: %s", name)
		}
	}
	a := connect(t, as(executes), nil, legacy)
	use[outcome](t, a, "run_code", args{"code": "secret = 1", "session": "shared-name"})
	b := connect(t, as(key("b", "execute")), nil, legacy)
	if o, _ := use[outcome](t, b, "run_code", args{"code": "secret", "session": "shared-name"}); o.OK || !o.NewSession {
		t.Fatalf("tenant b uses the session of tenant a: %+v", o)
	}
	reader := connect(t, as(reads), nil, legacy)
	if _, res := use[outcome](t, reader, "run_code", args{"code": "1", "session": "shared-name"}); !res.IsError || !strings.Contains(text(res), string(v1.CodeForbidden)) {
		t.Fatal(text(res))
	}
	if st, _ := use[statusResult](t, reader, "status", args{"session": "shared-name"}); !st.Exists || st.Scope != "read" || st.Tenant != "a" {
		t.Fatalf("%+v", st)
	}
	// A caller cannot use the connection of another caller.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", a.ID())
	req.Header.Set("Authorization", "Bearer "+key("b", "admin"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Fatalf("status %d", res.StatusCode)
	}
	operator, err := client.New(client.Options{Socket: d.Socket, Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	for e, err := range operator.Audit(t.Context(), session.AuditOptions{}) {
		if err == nil && e.Actor == "a-execute" {
			return
		}
	}
	t.Error("the audit log does not name the caller")
}

func TestBadRequestsOverHTTP(t *testing.T) {
	d := open(t, Options{})
	post := func(body io.Reader, header map[string]string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range header {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for name, c := range map[string]struct {
		body   string
		header map[string]string
		want   int
	}{
		"a page of another site":        {list, map[string]string{"Origin": "https://evil.example"}, http.StatusForbidden},
		"a page with no origin to show": {list, map[string]string{"Origin": "null"}, http.StatusForbidden},
		"half a message":                {`{"jsonrpc":"2.0","id":`, nil, http.StatusBadRequest},
		"no message at all":             {`{"foo":1}`, nil, http.StatusBadRequest},
		"an unknown connection":         {list, map[string]string{"Mcp-Session-Id": "none"}, http.StatusNotFound},
		"credentials of ours made up":   {list, map[string]string{"Authorization": "Basic x", headerRemote: "127.0.0.1:1"}, http.StatusUnauthorized},
		"too much":                      {`{"x":"` + strings.Repeat("x", maxMessage) + `"}`, map[string]string{"Mcp-Protocol-Version": statelessVersion}, http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if got := post(strings.NewReader(c.body), c.header); got != c.want {
				t.Errorf("status %d, want %d", got, c.want)
			}
		})
	}
}

func TestACallOfSomebodyWhoHasGoneIsCancelled(t *testing.T) {
	d := open(t, Options{})
	for name, version := range map[string]string{"with a connection": legacy, "without": ""} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, &sdk.StreamableClientTransport{Endpoint: d.url}, nil, version)
			ms := s.ID()
			where := "gone-" + strings.ReplaceAll(name, " ", "-")
			use[outcome](t, s, "run_bash", args{"command": "true", "session": where})
			ctx, leave := context.WithCancel(t.Context())
			body := `{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"run_bash","arguments":{"session":"` + where + `","command":"echo up; sleep 300"},"_meta":{"progressToken":1` + meta(version) + `}}}`
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			if ms != "" {
				req.Header.Set("Mcp-Session-Id", ms)
				req.Header.Set("Mcp-Protocol-Version", legacy)
			} else {
				req.Header.Set("Mcp-Protocol-Version", statelessVersion)
				req.Header.Set("Mcp-Method", "tools/call")
				req.Header.Set("Mcp-Name", "run_bash")
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				if strings.Contains(lines.Text(), "up") {
					break
				}
			}
			leave() // as if the client's machine was switched off
			_ = res.Body.Close()
			awaitEnding(t, d, where, "cancelled")
		})
	}
}

// meta is the metadata of requests of stateless protocol versions.
func meta(version string) string {
	if version != "" {
		return ""
	}
	return `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
}

// awaitEnding waits until the session's last command has ended, and returns how it ended.
func awaitEnding(t *testing.T, d *mcpFixture, name, want string) {
	t.Helper()
	s := d.Trusted.Session(name)
	ops, err := s.Operations(t.Context())
	if err != nil || len(ops) == 0 {
		t.Fatal(ops, err)
	}
	v, err := s.Follow(t.Context(), ops[len(ops)-1].ID, followAll)
	if err != nil || string(v.Ended) != want {
		t.Fatal(v, err)
	}
}
