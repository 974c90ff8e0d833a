package mcp

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/session"
)

type args = map[string]any

// both runs a test over both transports.
func both(t *testing.T, test func(t *testing.T, d *mcpFixture, s *sdk.ClientSession)) {
	d := open(t, Options{})
	t.Run("stdio", func(t *testing.T) { test(t, d, d.overStdio(t, StdioOptions{Session: "mine"}, nil)) })
	t.Run("http", func(t *testing.T) { test(t, d, d.overHTTP(t, nil)) })
}

func TestToolsWorkInOneSession(t *testing.T) {
	both(t, func(t *testing.T, _ *mcpFixture, s *sdk.ClientSession) {
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
		shows, res := use[outcome](t, s, "run_code", args{"code": "class T:\n  def __repr__(self): return 'a  b'\nclass H:\n  def _repr_html_(self): return '<b>bold</b>'\ndisplay(T()); display(H())\nH()"})
		if got := text(res); !slices.Equal(shows.Displayed, []string{"a  b", "<b>bold</b>"}) || !strings.Contains(got, "a  b") || shows.Result != "<b>bold</b>" || strings.Contains(got, "without output") {
			t.Fatalf("%+v %s", shows, got)
		}
		slow, res := use[outcome](t, s, "run_code", args{"code": "import time; time.sleep(60)", "timeout_seconds": 0.5})
		if slow.Ended != "timeout" || !strings.Contains(text(res), "ended by timeout") {
			t.Fatalf("%+v %s", slow, text(res))
		}
		sh, res := use[outcome](t, s, "run_bash", args{"command": "pwd; echo $A >&2; exit 3", "working_dir": "sub/..", "env": args{"A": "b"}})
		if sh.ExitCode != 3 || sh.Stdout != "/home/user\n" || sh.Stderr != "b\n" || !res.IsError {
			t.Fatalf("%+v", sh)
		}
		late, _ := use[outcome](t, s, "run_bash", args{"command": "echo begun; sleep 60", "timeout_seconds": 0.5})
		if late.Ended != "timeout" || late.Stdout != "begun\n" {
			t.Fatalf("%+v", late)
		}
		if w, res := use[filesResult](t, s, "files", args{"action": "write", "path": "d/a.txt", "content": "grün"}); res.IsError || w.File.Size != 5 || w.Written == nil ||
			*w.Written != (v1.Uploaded{Name: "d/a.txt", Path: "/home/user/d/a.txt", Size: 5, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("grün")))}) {
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
		if v, res := use[contextResult](t, s, "context", args{"action": "get", "key": "k"}); v.Value == nil || *v.Value != "" || res.IsError {
			t.Fatalf("%+v %s", v, text(res))
		}
		if _, res := use[contextResult](t, s, "context", args{"action": "get", "key": "none"}); !res.IsError {
			t.Fatal("get of a missing key succeeded")
		}
		if _, res := use[contextResult](t, s, "context", args{"action": "get"}); !res.IsError {
			t.Fatal("get without a key succeeded")
		}
		st, _ := use[statusResult](t, s, "status", args{"include_history": true})
		if !st.Exists || st.State != "ready" || len(st.History) < 4 || st.Backend != "gvisor" {
			t.Fatalf("%+v", st)
		}
	})
}

func TestFilesByEveryAction(t *testing.T) {
	both(t, func(t *testing.T, _ *mcpFixture, s *sdk.ClientSession) {
		do := func(action, path string, more args) (filesResult, *sdk.CallToolResult) {
			t.Helper()
			all := args{"action": action, "path": path}
			maps.Copy(all, more)
			return use[filesResult](t, s, "files", all)
		}
		content := func(path, want, encoding string) {
			t.Helper()
			if r, res := do("read", path, nil); r.Content != want || r.Encoding != encoding {
				t.Errorf("%s has %q, %s: %s", path, r.Content, r.Encoding, text(res))
			}
		}
		fails := func(why string, res *sdk.CallToolResult, says string) {
			t.Helper()
			if !res.IsError || !strings.Contains(text(res), says) {
				t.Errorf("%s: %s", why, text(res))
			}
		}
		if _, res := do("mkdir", "a/b", nil); res.IsError {
			t.Fatal(text(res))
		}
		if r, _ := do("stat", "a/b", nil); r.File == nil || r.File.Kind != "dir" || r.Path != "/home/user/a/b" {
			t.Errorf("%+v", r)
		}
		do("write", "a/b/one", args{"content": "one"})
		do("write", "a/b/one", args{"content": ", two", "append": true})
		content("a/b/one", "one, two", "text")
		_, res := do("write", "a/b/one", args{"content": "three", "exclusive": true})
		fails("writing what is there", res, "exist")
		content("a/b/one", "one, two", "text")
		do("write", "bytes", args{"content": "/wD+", "encoding": "base64"})
		content("bytes", "/wD+", "base64")
		if r, _ := do("stat", "bytes", nil); r.File == nil || r.File.Kind != "file" || r.File.Size != 3 {
			t.Errorf("%+v", r)
		}
		_, res = do("write", "bytes", args{"content": "no base64!", "encoding": "base64"})
		fails("what is no base64", res, "base64")
		_, res = do("move", "a/b/one", args{"to": "bytes", "exclusive": true})
		fails("moving onto what is there", res, "exist")
		if _, res := do("move", "a/b/one", args{"to": "moved"}); res.IsError {
			t.Error(text(res))
		}
		content("moved", "one, two", "text")
		_, res = do("stat", "a/b/one", nil)
		fails("what was moved away", res, "file_not_found")
		_, res = do("move", "moved", nil)
		fails("moving nowhere", res, "to")
		do("write", "a/two", args{"content": "x"})
		use[outcome](t, s, "run_bash", args{"command": "mkdir a/locked && chmod 0 a/locked"})
		if r, _ := do("list", "a", args{"recursive": true}); r.Unreadable != 1 || len(r.Entries) != 3 {
			t.Errorf("with a directory that cannot be entered: %+v", r)
		}
		_, res = do("remove", "a", nil)
		fails("removing what is not empty", res, "")
		if _, res := do("remove", "a", args{"recursive": true}); res.IsError {
			t.Error(text(res))
		}
		_, res = do("stat", "a", nil)
		fails("what was removed", res, "file_not_found")
	})
}

func TestToolsSayWhatTheyAre(t *testing.T) {
	both(t, func(t *testing.T, _ *mcpFixture, s *sdk.ClientSession) {
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		type hints struct{ reads, destroys, again bool }
		want := map[string]hints{
			"run_code": {destroys: true}, "run_bash": {destroys: true}, "query": {}, "context": {destroys: true, again: true}, "snapshot": {destroys: true},
			"files": {destroys: true}, "status": {reads: true, again: true}, "search_tools": {reads: true, again: true},
		}
		for _, tool := range list.Tools {
			h, known := want[tool.Name]
			delete(want, tool.Name)
			a := tool.Annotations
			if !known || a == nil || a.DestructiveHint == nil || a.OpenWorldHint == nil || *a.OpenWorldHint ||
				(hints{a.ReadOnlyHint, *a.DestructiveHint, a.IdempotentHint}) != h || a.Title == "" || tool.Title == "" || tool.Description == "" {
				t.Errorf("%s: %+v, want %+v", tool.Name, a, h)
			}
			for which, schema := range map[string]any{"arguments": tool.InputSchema, "results": tool.OutputSchema} {
				m, _ := schema.(map[string]any)
				properties, _ := m["properties"].(map[string]any)
				if m["type"] != "object" || len(properties) == 0 || which == "arguments" && m["additionalProperties"] == nil {
					t.Errorf("%s, its %s: %v", tool.Name, which, schema)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("missing tools: %v", want)
		}
		found, _ := use[searchResult](t, s, "search_tools", args{"query": "Python interpreter", "limit": 1})
		if found.Count != 1 || found.Tools[0].Name != "run_code" {
			t.Errorf("%+v", found)
		}
		if found, _ := use[searchResult](t, s, "search_tools", args{"query": "snapshot"}); found.Count == 0 || found.Tools[0].Name != "snapshot" {
			t.Errorf("%+v", found)
		}
		if found, _ := use[searchResult](t, s, "search_tools", args{"query": "zebra"}); found.Count != 0 || found.Tools == nil {
			t.Errorf("%+v", found)
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

func TestAModelIsToldThatANameIsUsedAgain(t *testing.T) {
	d := open(t, Options{})
	s := d.overStdio(t, StdioOptions{Session: "work"}, nil)
	end := func(name string) {
		t.Helper()
		if err := d.Trusted.Session(name).End(t.Context(), "done with it"); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := use[outcome](t, s, "run_code", args{"code": "1"})
	end("work")
	o, res := use[outcome](t, s, "run_code", args{"code": "1"})
	if first.Previous != "" || !strings.Contains(o.Previous, "done with it") || !strings.Contains(text(res), newSessionNote(o.Previous)) {
		t.Errorf("previous was %q and is %q: %s", first.Previous, o.Previous, text(res))
	}
	if o, res := use[outcome](t, s, "run_code", args{"code": "1"}); o.Previous != "" {
		t.Errorf("the previous session is reported again: %s", text(res))
	}

	fork := args{"action": "fork", "names": []string{"copy"}}
	f, _ := use[snapshotResult](t, s, "snapshot", fork)
	end("copy")
	again, res := use[snapshotResult](t, s, "snapshot", fork)
	if len(f.Previous) != 0 || !strings.Contains(again.Previous["copy"], "done with it") || !strings.Contains(text(res), "previous_sessions") {
		t.Errorf("previous was %v and is %v: %s", f.Previous, again.Previous, text(res))
	}
	if o, res := use[outcome](t, s, "run_code", args{"code": "1", "session": "copy"}); !strings.Contains(o.Previous, "done with it") || !strings.Contains(text(res), o.Previous) {
		t.Errorf("the first cell of the copy: %s", text(res))
	}
}

func TestAModelIsToldThatTheStateWentBack(t *testing.T) {
	d := open(t, Options{})
	s := d.overStdio(t, StdioOptions{Session: "work"}, nil)
	use[outcome](t, s, "run_code", args{"code": "x = 1"})
	use[snapshotResult](t, s, "snapshot", args{"action": "create", "name": "one"})
	use[outcome](t, s, "run_code", args{"code": "x = 2"})
	work, err := d.Manager.Get(t.Context(), session.Key{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	d.KillSandbox(work)
	o, res := use[outcome](t, s, "run_code", args{"code": "x"})
	if from, err := time.Parse(time.RFC3339Nano, o.StateFrom); o.Result != "1" || err != nil || !strings.Contains(text(res), o.StateFrom) {
		t.Errorf("x is %q, from %s (%v): %s", o.Result, from, err, text(res))
	}
	if o, _ := use[outcome](t, s, "run_bash", args{"command": "true"}); o.StateFrom != "" {
		t.Error("the restore is reported twice")
	}
	if got := text(queryResult{Answer: "42", Reason: string(v1.ReasonAnswered), StateFrom: "then"}.render()); got != restoredNote("then")+"\n42" {
		t.Errorf("an answer after a restore: %q", got)
	}
}

func TestProgressTellsOutputWhileItComes(t *testing.T) {
	d := open(t, Options{})
	heard := make(chan string, 100)
	o := &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}
	s := d.overHTTP(t, o)
	use[outcome](t, s, "run_bash", args{"command": "mkfifo pipe"})
	for tool, a := range map[string]args{
		"run_bash": {"command": "echo one; read < /home/user/pipe; echo two"},
		"run_code": {"code": "print('one')\nopen('/home/user/pipe').read()\nprint('two')"},
	} {
		t.Run(tool, func(t *testing.T) {
			p := &sdk.CallToolParams{Name: tool, Arguments: a}
			p.SetProgressToken(tool)
			done := make(chan error, 1)
			go func() { _, err := s.CallTool(t.Context(), p); done <- err }()
			awaitLine(t, heard, "one\n")
			use[outcome](t, s, "run_bash", args{"command": "echo go > pipe"}) // the first command still runs
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			awaitLine(t, heard, "two\n")
		})
	}
}

// awaitLine waits for a notification with some output. It skips notifications that the call still runs.
func awaitLine(t *testing.T, heard <-chan string, want string) {
	t.Helper()
	for m := range heard {
		if m == want {
			return
		}
		if !strings.HasPrefix(m, "running, ") {
			t.Fatalf("received %q, want %q", m, want)
		}
	}
}

func TestASessionEndsWithItsConnection(t *testing.T) {
	d := open(t, Options{})
	s, other := d.overHTTP(t, nil), d.overHTTP(t, nil)
	o, _ := use[outcome](t, s, "run_code", args{"code": "x = 1"})
	if two, _ := use[outcome](t, other, "run_code", args{"code": "'x' in globals()"}); two.Result != "False" || two.Session == o.Session || !two.NewSession {
		t.Fatalf("two connections share a session: %+v", two)
	}
	if o.Session == "" || strings.Contains(o.Session, s.ID()) {
		t.Fatalf("the name of the session is %q", o.Session)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, d.Trusted, o.Session)
	if two, res := use[outcome](t, other, "run_code", args{"code": "1"}); two.Result != "1" || two.NewSession {
		t.Fatalf("the session of the other connection has ended, too: %s", text(res))
	}

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
	for e, err := range c.Session(name).Events(t.Context(), session.EventsOptions{Follow: true}) {
		if sessionGone(err) || err == nil && e.State == v1.StateEnded {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

//nolint:staticcheck // sampling is deprecated, but supported
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
	if _, res := use[terraphimReply](t, s, "rlm_query", args{"prompt": "hum"}); !res.IsError || !strings.Contains(text(res), string(v1.CodeSampling)) {
		t.Fatalf("more calls than allowed: %s", text(res))
	}
	if _, res := use[queryResult](t, s, "query", args{"query": "what?"}); !res.IsError || !strings.Contains(text(res), string(v1.CodeModelMissing)) {
		t.Fatal(text(res))
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
	if n := count(); n != 2 {
		t.Fatalf("asked %d times", n)
	}

	none := d.overStdio(t, StdioOptions{Session: "asking-none"}, nil)
	if _, res := use[queryResult](t, none, "query", args{"query": "?"}); !res.IsError || !strings.Contains(text(res), "offers sampling") || !strings.Contains(text(res), "agent program") {
		t.Fatal(text(res))
	}

	// Stateless protocol versions have no sampling, even if the client supports it.
	later := connect(t, &sdk.StreamableClientTransport{Endpoint: d.url}, o, "")
	if _, res := use[queryResult](t, later, "query", args{"query": "?", "session": "later"}); !res.IsError || !strings.Contains(text(res), string(v1.CodeModelMissing)) || !strings.Contains(text(res), "agent program") {
		t.Fatal(text(res))
	}
	if n := count(); n != 2 {
		t.Fatalf("asked %d times", n)
	}
}

// The client's user pays for its model, so at most four calls run at once, and by default at most fifty in a
// connection.
//
//nolint:staticcheck // sampling is deprecated, but supported
func TestTheClientsOwnModelIsNotOverrun(t *testing.T) {
	d := open(t, Options{})
	const callers, most, calls = 6, 4, 50
	var (
		mu       sync.Mutex
		at, peak int
	)
	arrived, answer := make(chan struct{}, calls), make(chan struct{}, calls)
	o := &sdk.ClientOptions{CreateMessageHandler: func(ctx context.Context, _ *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		mu.Lock()
		at++
		if at > peak {
			peak = at
		}
		mu.Unlock()
		arrived <- struct{}{}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		mu.Lock()
		at--
		mu.Unlock()
		return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: "yes"}, StopReason: "endTurn"}, nil
	}}
	s := d.overStdio(t, StdioOptions{Session: "many", Options: Options{TerraphimNames: true}}, o)
	ask := func() (terraphimReply, *sdk.CallToolResult) {
		return use[terraphimReply](t, s, "rlm_query", args{"prompt": "?"})
	}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if r, res := ask(); r.Response != "yes" {
				t.Error(text(res))
			}
		})
	}
	for range most {
		<-arrived
	}
	use[statusResult](t, s, "status", nil) // other tools are answered meanwhile
	if len(arrived) > 0 {
		t.Error("more than four calls at once")
	}
	for range calls {
		answer <- struct{}{}
	}
	wg.Wait()
	if peak != most {
		t.Errorf("%d at once", peak)
	}
	for range calls - callers {
		if r, res := ask(); r.Response != "yes" {
			t.Fatal(text(res))
		}
	}
	if _, res := ask(); !res.IsError || !strings.Contains(text(res), string(v1.CodeSampling)) || !strings.Contains(text(res), "50 calls") {
		t.Errorf("call 51: %s", text(res))
	}
}

func TestResourcesAndPrompts(t *testing.T) {
	both(t, func(t *testing.T, _ *mcpFixture, s *sdk.ClientSession) {
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

func TestWhatAConnectionMadeEndsWithIt(t *testing.T) {
	d := open(t, Options{})
	for name, connect := range map[string]func() *sdk.ClientSession{
		"stdio": func() *sdk.ClientSession { return d.overStdio(t, StdioOptions{Session: "mine"}, nil) },
		"http":  func() *sdk.ClientSession { return d.overHTTP(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			s := connect()
			use[outcome](t, s, "run_code", args{"code": "x = 1"})
			if _, res := use[snapshotResult](t, s, "snapshot", args{"action": "create", "name": "one"}); res.IsError {
				t.Fatal(text(res))
			}
			if f, res := use[snapshotResult](t, s, "snapshot", args{"action": "fork", "copies": 2}); res.IsError || len(f.Copies) != 2 {
				t.Fatal(text(res))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			testneed.Await(t, "its sessions and snapshots are gone", func() bool {
				for _, err := range d.Trusted.List(t.Context(), v1.SessionListOptions{}) {
					if err != nil {
						t.Fatal(err)
					}
					return false
				}
				kept, err := d.Trusted.Snapshots(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				return len(kept) == 0
			})
		})
	}
}

func TestWhatAConnectionFoundStays(t *testing.T) {
	d := open(t, Options{})
	if _, _, err := d.Trusted.Open(t.Context(), "before", session.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Run("connection", func(t *testing.T) {
		s := d.overStdio(t, StdioOptions{Session: "before"}, nil)
		if _, res := use[snapshotResult](t, s, "snapshot", args{"action": "create", "name": "one"}); res.IsError {
			t.Fatal(text(res))
		}
		if f, res := use[snapshotResult](t, s, "snapshot", args{"action": "fork", "names": []string{"copy"}}); res.IsError || len(f.Copies) != 1 {
			t.Fatal(text(res))
		}
	})
	for _, name := range []string{"before", "copy"} {
		if _, _, err := d.Trusted.Get(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if kept, err := d.Trusted.Snapshots(t.Context(), "before"); err != nil || len(kept) != 1 {
		t.Errorf("%+v, %v", kept, err)
	}
}

func TestResourcesAreCompletedAndWatched(t *testing.T) {
	d := open(t, Options{})
	updated := make(chan string, 10)
	heard := &sdk.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI }}
	s := d.overStdio(t, StdioOptions{Session: "mine"}, heard)
	use[outcome](t, s, "run_bash", args{"command": "mkdir data; echo a > data/one.txt; echo b > data/other.txt"})
	complete := func(argument, value string) []string {
		t.Helper()
		res, err := s.Complete(t.Context(), &sdk.CompleteParams{
			Ref:      &sdk.CompleteReference{Type: "ref/resource", URI: filesTemplate},
			Argument: sdk.CompleteParamsArgument{Name: argument, Value: value},
			Context:  &sdk.CompleteContext{Arguments: map[string]string{"session": "mine"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return res.Completion.Values
	}
	if got := complete("session", "mi"); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("sessions %q", got)
	}
	if got := complete("path", "/home/user/da"); !slices.Equal(got, []string{"/home/user/data/"}) {
		t.Errorf("paths %q", got)
	}
	if got := complete("path", "/home/user/data/o"); len(got) != 2 || !slices.Contains(got, "/home/user/data/one.txt") {
		t.Errorf("paths %q", got)
	}
	const uri = "recluse://sessions/mine/files/home/user/data/one.txt"
	r, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
	if err != nil || r.Contents[0].Text != "a\n" || r.CacheScope == "public" {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := s.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "recluse://sessions/none/files/a"}); err == nil {
		t.Error("subscribed to a file of a missing session")
	}
	if err := s.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	change := func(why string) {
		t.Helper()
		for len(updated) > 0 {
			<-updated
		}
		use[outcome](t, s, "run_bash", args{"command": "echo more >> data/other.txt; echo more >> data/one.txt"})
		select {
		case got := <-updated:
			if got != uri {
				t.Errorf("%s: notified about %s", why, got)
			}
		case <-time.After(time.Minute):
			t.Fatal("the client was not notified:", why)
		}
	}
	change("a subscription")
	if err := s.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	change("a new subscription after the end of another")
	if err := d.Trusted.Session("mine").Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	change("a session that slept")
	if err := s.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "recluse://sessions/mine/files/none/a"}); err == nil {
		t.Error("subscribed to a file in a missing directory")
	}
	_, err = s.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "rlm"})
	if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(e.Message, "question") {
		t.Errorf("a prompt without its question: %v", err)
	}
}
