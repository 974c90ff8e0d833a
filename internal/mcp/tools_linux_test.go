package mcp

import (
	"context"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/session"
)

type args = map[string]any

// both runs a test over both transports.
func both(t *testing.T, test func(t *testing.T, d *door, s *sdk.ClientSession)) {
	d := open(t, Options{})
	t.Run("stdio", func(t *testing.T) { test(t, d, d.overStdio(t, StdioOptions{Session: "mine"}, nil)) })
	t.Run("http", func(t *testing.T) { test(t, d, d.overHTTP(t, nil)) })
}

func TestToolsWorkInOneSession(t *testing.T) {
	both(t, func(t *testing.T, _ *door, s *sdk.ClientSession) {
		first, _ := use[outcome](t, s, "run_code", args{"code": "x = 41\nprint('hello')"})
		if !first.OK || !first.NewSession || first.Stdout != "hello\n" {
			t.Fatalf("%+v", first)
		}
		next, res := use[outcome](t, s, "run_code", args{"code": "x + 1"})
		if next.Result != "42" || next.NewSession || res.IsError || next.Session != first.Session {
			t.Fatalf("%+v", next)
		}
		bad, res := use[outcome](t, s, "run_code", args{"code": "1/0"})
		if bad.OK || !res.IsError || bad.Error == nil || bad.Error.Name != "ZeroDivisionError" || !strings.Contains(text(res), "ZeroDivisionError") {
			t.Fatalf("%+v %s", bad, text(res))
		}
		sh, res := use[outcome](t, s, "run_bash", args{"command": "pwd; echo $A >&2; exit 3", "working_dir": "sub/..", "env": args{"A": "b"}})
		if sh.ExitCode != 3 || sh.Stdout != "/home/user\n" || sh.Stderr != "b\n" || !res.IsError {
			t.Fatalf("%+v", sh)
		}
		late, _ := use[outcome](t, s, "run_bash", args{"command": "echo begun; sleep 60", "timeout_seconds": 0.5})
		if late.Ended != "timeout" || late.Stdout != "begun\n" {
			t.Fatalf("%+v", late)
		}
		if w, res := use[filesResult](t, s, "files", args{"action": "write", "path": "d/a.txt", "content": "grün"}); res.IsError || w.File.Size != 5 {
			t.Fatalf("%+v %s", w, text(res))
		}
		if r, _ := use[filesResult](t, s, "files", args{"action": "read", "path": "/home/user/d/a.txt", "limit": 3}); r.Content != "gr" || r.Next != 2 {
			t.Fatalf("a character was cut: %+v", r)
		}
		if l, _ := use[filesResult](t, s, "files", args{"action": "list", "recursive": true}); len(l.Entries) < 2 {
			t.Fatalf("%+v", l)
		}
		if _, res := use[filesResult](t, s, "files", args{"action": "read", "path": "none"}); !res.IsError || !strings.Contains(text(res), "file_not_found") {
			t.Fatal(text(res))
		}
		if _, res := use[contextResult](t, s, "context", args{"action": "set", "key": "k", "value": ""}); res.IsError {
			t.Fatal(text(res))
		}
		if v, _ := use[contextResult](t, s, "context", args{"action": "list"}); v.Variables["k"] != "" || len(v.Variables) != 1 {
			t.Fatalf("%+v", v)
		}
		if _, res := use[contextResult](t, s, "context", args{"action": "get"}); !res.IsError {
			t.Fatal("a get without a key")
		}
		st, _ := use[statusResult](t, s, "status", args{"include_history": true})
		if !st.Exists || st.State != "ready" || len(st.History) < 4 || st.Backend != "gvisor" {
			t.Fatalf("%+v", st)
		}
	})
}

func TestSnapshotsAndCopies(t *testing.T) {
	d := open(t, Options{TerraphimNames: true})
	s := d.overStdio(t, StdioOptions{Session: "origin", Options: Options{TerraphimNames: true}}, nil)
	use[outcome](t, s, "rlm_code", args{"code": "v = 1", "timeout_ms": 20000})
	if r, res := use[snapshotResult](t, s, "snapshot", args{"action": "create", "name": "one"}); res.IsError || len(r.Snapshots) != 1 {
		t.Fatal(text(res))
	}
	use[outcome](t, s, "run_code", args{"code": "v = 2"})
	if _, res := use[snapshotResult](t, s, "rlm_snapshot", args{"action": "restore", "snapshot_name": "one"}); res.IsError {
		t.Fatal(text(res))
	}
	if o, _ := use[outcome](t, s, "run_code", args{"code": "v"}); o.Result != "1" {
		t.Fatalf("after a restore v is %q", o.Result)
	}
	f, res := use[snapshotResult](t, s, "snapshot", args{"action": "fork", "copies": 2})
	if len(f.Copies) != 2 {
		t.Fatal(text(res))
	}
	if o, _ := use[outcome](t, s, "run_code", args{"code": "v", "session": f.Copies[1]}); o.Result != "1" || o.Session != f.Copies[1] {
		t.Fatalf("%+v", o)
	}
	for _, name := range f.Copies {
		if err := d.Trusted.Session(name).End(t.Context(), "done"); err != nil {
			t.Error(err)
		}
	}
	found, _ := use[searchResult](t, s, "mcp_search_tools", args{"query": "read FILE", "tools": []args{
		{"name": "a", "description": "nothing"}, {"name": "b", "description": "reads", "tags": []string{"file"}},
	}})
	if found.Count != 1 || found.Tools[0].Name != "b" {
		t.Fatalf("%+v", found)
	}
}

func TestProgressTellsOutputWhileItComes(t *testing.T) {
	d := open(t, Options{})
	heard := make(chan string, 100)
	o := &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}
	s := d.overHTTP(t, o)
	p := &sdk.CallToolParams{Name: "run_bash", Arguments: args{"command": "echo one; read < /home/user/pipe; echo two"}}
	p.SetProgressToken("p")
	use[outcome](t, s, "run_bash", args{"command": "mkfifo pipe"})
	done := make(chan error, 1)
	go func() { _, err := s.CallTool(t.Context(), p); done <- err }()
	if m := <-heard; m != "one\n" {
		t.Fatalf("heard %q", m)
	}
	use[outcome](t, s, "run_bash", args{"command": "echo go > pipe"}) // it still runs
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for m := range heard {
		if m == "two\n" {
			return
		}
	}
}

func TestASessionEndsWithItsConnection(t *testing.T) {
	d := open(t, Options{})
	s := d.overHTTP(t, nil)
	o, _ := use[outcome](t, s, "run_code", args{"code": "1"})
	if o.Session == "" || strings.Contains(o.Session, s.ID()) {
		t.Fatalf("the session is called %q", o.Session)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, d.Trusted, o.Session)

	kept := d.overStdio(t, StdioOptions{Session: "kept", Keep: true}, nil)
	use[outcome](t, kept, "run_code", args{"code": "1"})
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Trusted.Get(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
}

// awaitGone waits until a session has ended.
func awaitGone(t *testing.T, c *client.Client, name string) {
	t.Helper()
	for e, err := range c.Session(name).Events(t.Context(), 0, true) {
		if absent(err) || err == nil && e.State == session.Ended {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

//nolint:staticcheck // sampling is deprecated, and served
func TestTheClientsOwnModelIsAskedWhereThereIsNone(t *testing.T) {
	d := open(t, Options{})
	var mu sync.Mutex
	asked := 0
	o := &sdk.ClientOptions{CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		prompt := r.Params.Messages[0].Content.(*sdk.TextContent).Text
		return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: "heard " + prompt}, StopReason: "endTurn"}, nil
	}}
	s := d.overStdio(t, StdioOptions{Session: "asking", Options: Options{TerraphimNames: true, SamplingCalls: 2}}, o)
	r, res := use[terraphimReply](t, s, "rlm_query", args{"prompt": "hi", "model": "any", "temperature": 0.5, "max_tokens": 10})
	if r.Response != "heard hi" || !r.Estimated || r.Model != "sampling/m" {
		t.Fatalf("%+v %s", r, text(res))
	}
	if r, res := use[terraphimReply](t, s, "rlm_query", args{"prompt": "ho"}); r.Response != "heard ho" {
		t.Fatal(text(res))
	}
	if _, res := use[terraphimReply](t, s, "rlm_query", args{"prompt": "hum"}); !res.IsError || !strings.Contains(text(res), string(CodeSampling)) {
		t.Fatalf("more calls than allowed: %s", text(res))
	}
	if _, res := use[queryResult](t, s, "query", args{"query": "what?"}); !res.IsError || !strings.Contains(text(res), string(CodeNoModel)) {
		t.Fatal(text(res))
	}
	mu.Lock()
	defer mu.Unlock()
	if asked != 2 {
		t.Fatalf("asked %d times", asked)
	}

	none := d.overStdio(t, StdioOptions{Session: "asking-none"}, nil)
	if _, res := use[queryResult](t, none, "query", args{"query": "?"}); !res.IsError || !strings.Contains(text(res), "offers sampling") {
		t.Fatal(text(res))
	}
}

func TestResourcesAndPrompts(t *testing.T) {
	both(t, func(t *testing.T, _ *door, s *sdk.ClientSession) {
		use[filesResult](t, s, "files", args{"action": "write", "path": "a b.txt", "content": "text"})
		list, err := s.ListResources(t.Context(), nil)
		if err != nil || len(list.Resources) != 1 {
			t.Fatal(list, err)
		}
		r, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: list.Resources[0].URI})
		if err != nil || r.Contents[0].Text != "text" {
			t.Fatal(r, err)
		}
		for _, uri := range []string{"recluse://sessions/none/files/a", "recluse://runs/none", list.Resources[0].URI + "x"} {
			if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
				t.Errorf("%s can be read", uri)
			}
		}
		p, err := s.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "rlm", Arguments: map[string]string{"question": "how many?"}})
		if err != nil || !strings.Contains(p.Messages[0].Content.(*sdk.TextContent).Text, "how many?") {
			t.Fatal(p, err)
		}
	})
}
