package mcp

import (
	"context"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Every parameter of terraphim's tools has the effect of its name, over both transports.
//
//nolint:staticcheck // sampling is deprecated, but supported
func TestTerraphimsParametersAreHonoured(t *testing.T) {
	d := open(t, Options{TerraphimNames: true})
	var (
		mu   sync.Mutex
		last *sdk.CreateMessageParams
	)
	o := &sdk.ClientOptions{CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		mu.Lock()
		defer mu.Unlock()
		last = r.Params
		return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: "four"}, StopReason: "endTurn"}, nil
	}}
	for name, s := range map[string]*sdk.ClientSession{
		"stdio": d.overStdio(t, StdioOptions{Session: "own", Options: Options{TerraphimNames: true}}, o), "http": d.overHTTP(t, o),
	} {
		t.Run(name, func(t *testing.T) {
			in := "named-" + name
			t.Run("rlm_code", func(t *testing.T) {
				if r, res := use[outcome](t, s, "rlm_code", args{"code": "x = 6 * 7\nx", "session_id": in, "timeout_ms": 30_000}); r.Result != "42" || r.Session != in {
					t.Fatal(text(res))
				}
				if r, _ := use[outcome](t, s, "rlm_code", args{"code": "'x' in globals()"}); r.Result != "False" || r.Session == in {
					t.Errorf("the connection's own session is the named one: %+v", r)
				}
				if r, _ := use[outcome](t, s, "rlm_code", args{"code": "import time; time.sleep(60)", "session_id": in, "timeout_ms": 300}); r.Ended != "timeout" {
					t.Errorf("%+v", r)
				}
			})
			t.Run("rlm_bash", func(t *testing.T) {
				if r, _ := use[outcome](t, s, "rlm_bash", args{"command": "pwd; mkdir -p sub", "session_id": in, "working_dir": "/tmp", "timeout_ms": 30_000}); r.Stdout != "/tmp\n" || r.Session != in {
					t.Errorf("%+v", r)
				}
				if r, _ := use[outcome](t, s, "rlm_bash", args{"command": "echo begun; sleep 60", "session_id": in, "timeout_ms": 500}); r.Ended != "timeout" || r.Stdout != "begun\n" {
					t.Errorf("%+v", r)
				}
			})
			t.Run("rlm_query", func(t *testing.T) {
				r, res := use[terraphimReply](t, s, "rlm_query", args{"prompt": "two and two?", "session_id": in, "model": "small", "temperature": 0.25, "max_tokens": 77})
				mu.Lock()
				defer mu.Unlock()
				if r.Response != "four" || text(res) != "four" || r.Tokens == 0 || !r.Estimated || r.Model != "sampling/m" {
					t.Fatalf("%+v %s", r, text(res))
				}
				if last.MaxTokens != 77 || last.Temperature != 0.25 || last.ModelPreferences.Hints[0].Name != "small" || last.Messages[0].Content.(*sdk.TextContent).Text != "two and two?" {
					t.Errorf("%+v", last)
				}
			})
			t.Run("rlm_context", func(t *testing.T) {
				use[contextResult](t, s, "rlm_context", args{"action": "set", "key": "k", "value": "v", "session_id": in})
				if r, _ := use[contextResult](t, s, "rlm_context", args{"action": "list", "session_id": in}); r.Variables["k"] != "v" {
					t.Errorf("%+v", r)
				}
				use[contextResult](t, s, "rlm_context", args{"action": "delete", "key": "k", "session_id": in})
				if _, res := use[contextResult](t, s, "rlm_context", args{"action": "get", "key": "k", "session_id": in}); !res.IsError {
					t.Error("the variable still exists")
				}
			})
			t.Run("rlm_snapshot", func(t *testing.T) {
				if r, res := use[snapshotResult](t, s, "rlm_snapshot", args{"action": "create", "snapshot_name": "s", "session_id": in}); len(r.Snapshots) != 1 {
					t.Fatal(text(res))
				}
				use[outcome](t, s, "rlm_code", args{"code": "x = 0", "session_id": in})
				use[snapshotResult](t, s, "rlm_snapshot", args{"action": "restore", "snapshot_name": "s", "session_id": in})
				if r, _ := use[outcome](t, s, "rlm_code", args{"code": "x", "session_id": in}); r.Result != "42" {
					t.Errorf("after the restore: %+v", r)
				}
				use[snapshotResult](t, s, "rlm_snapshot", args{"action": "delete", "snapshot_name": "s", "session_id": in})
				if r, _ := use[snapshotResult](t, s, "rlm_snapshot", args{"action": "list", "session_id": in}); len(r.Snapshots) != 0 {
					t.Errorf("%+v", r)
				}
			})
			t.Run("rlm_status", func(t *testing.T) {
				with, _ := use[statusResult](t, s, "rlm_status", args{"session_id": in, "include_history": true})
				without, _ := use[statusResult](t, s, "rlm_status", args{"session_id": in})
				if !with.Exists || with.Session != in || len(with.History) == 0 || len(without.History) != 0 {
					t.Errorf("%+v %+v", with, without)
				}
			})
			t.Run("mcp_search_tools", func(t *testing.T) {
				r, _ := use[searchResult](t, s, "mcp_search_tools", args{"query": "grep", "tools": []args{{"name": "a", "description": "finds", "server_name": "x", "tags": []string{"grep"}}, {"name": "b", "description": "sorts"}}})
				if r.Count != 1 || r.Tools[0].Name != "a" || r.Tools[0].Server != "x" {
					t.Errorf("%+v", r)
				}
			})
			t.Run("mcp_search_skills", func(t *testing.T) {
				r, _ := use[skillsResult](t, s, "mcp_search_skills", args{"query": "cook", "skills": []args{
					{"name": "a", "description": "cooks", "version": "2", "author": "ann", "tags": []string{"kitchen"}}, {"name": "b", "description": "sings"},
				}})
				if r.Count != 1 || r.Skills[0].Author != "ann" || r.Skills[0].Version != "2" {
					t.Errorf("%+v", r)
				}
			})
			t.Run("what is no parameter", func(t *testing.T) {
				for _, bad := range []struct {
					tool string
					args args
					says string
				}{
					{"rlm_code", args{"code": "1", "timeout_ms": -1}, "timeout_ms"},
					{"rlm_bash", args{"command": "true", "timeout": 1}, "timeout"},
					{"rlm_query", args{"prompt": "?", "temperature": 3}, "temperature"},
					{"rlm_snapshot", args{"action": "fork"}, "action"},
				} {
					if _, res := use[outcome](t, s, bad.tool, bad.args); !res.IsError || !strings.Contains(text(res), bad.says) {
						t.Errorf("%s %v: %s", bad.tool, bad.args, text(res))
					}
				}
			})
			if err := d.Trusted.Session(in).End(t.Context(), "done"); err != nil {
				t.Error(err)
			}
		})
	}
}
