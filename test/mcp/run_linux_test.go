package mcp

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// script is a model that works as an RLM does: it examines the context with code, and submits the result as the answer.
const script = `name: root
rules:
  - match: plainly
    reply: plain it is
  - match: hang
    reply: "` + "```repl\\nimport time; time.sleep(600)\\n```" + `"
  - match: .
    reply: "` + "```repl\\nanswer['content'] = str(context.count('needle')); answer['ready'] = True\\n```" + `"
`

// connectStdio starts recluse mcp and returns a client that is connected to it.
func (p *testServer) connectStdio(t *testing.T, o *sdk.ClientOptions, version string, flags ...string) *sdk.ClientSession {
	t.Helper()
	cmd := exec.Command(p.Program, append([]string{"mcp"}, flags...)...)
	cmd.Env = p.Env
	var so *sdk.ClientSessionOptions
	if version != "" {
		so = &sdk.ClientSessionOptions{ProtocolVersion: version}
	}
	s, err := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, o).Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func call(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (*sdk.CallToolResult, string) {
	t.Helper()
	p := &sdk.CallToolParams{Name: name, Arguments: args}
	p.SetProgressToken(name)
	res, err := s.CallTool(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := res.Content[0].(*sdk.TextContent)
	return res, text.Text
}

func TestAWholeRunOverMCP(t *testing.T) {
	file := filepath.Join(t.TempDir(), "root.yaml")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serve(t, "RECLUSE_MODELS_SCRIPTS="+file, "RECLUSE_MODELS_DEFAULT=scripted/root", "RECLUSE_MODELS_SUB=scripted/root")
	heard := make(chan string, 1000)
	s := p.connectStdio(t, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}, "", "--terraphim-names")
	if _, said := call(t, s, "rlm_query", map[string]any{"prompt": "say it plainly", "model": "scripted/root", "temperature": 0, "max_tokens": 100}); said != "plain it is" {
		t.Error(said)
	}
	if res, said := call(t, s, "rlm_query", map[string]any{"prompt": "?", "model": "no/such"}); !res.IsError || !strings.Contains(said, "model_unknown") {
		t.Error(said)
	}
	hay := strings.Repeat("hay hay hay needle\n", 30_000)
	call(t, s, "files", map[string]any{"action": "write", "path": "hay.txt", "content": hay})
	res, answer := call(t, s, "query", map[string]any{"query": "How many needles?", "files": []string{"hay.txt"}, "limits": map[string]any{"turns": 5, "time": "2m"}})
	if answer != "30000" || res.IsError {
		t.Fatal(answer)
	}
	// The client hears notifications and answers on different goroutines.
	testneed.Await(t, "a progress notification", func() bool { return len(heard) > 0 })
	link, ok := res.Content[1].(*sdk.ResourceLink)
	if !ok {
		t.Fatalf("%+v", res.Content)
	}
	got, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI})
	if err != nil || !strings.Contains(got.Contents[0].Text, "run_started") {
		t.Error("unexpected trajectory", err)
	}
	// The beginning and the end of the context, which the model is shown, are in it, but not the context.
	if n := strings.Count(got.Contents[0].Text, "hay hay hay"); n == 0 || n > 100 {
		t.Errorf("the trajectory has %d of 30000 lines of the context", n)
	}
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 2 || list.Resources[0].URI != link.URI {
		t.Errorf("%+v %v", list, err)
	}

	// Cancelling the call cancels the run.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	for len(heard) > 0 {
		<-heard
	}
	go func() {
		params := &sdk.CallToolParams{Name: "query", Arguments: map[string]any{"query": "hang", "context": hay}}
		params.SetProgressToken("hang")
		_, err := s.CallTool(ctx, params)
		ended <- err
	}()
	<-heard // the run has begun
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has an answer")
	}
	p.awaitCancelled(t)
}

func TestTheGateAsksTheAgentsUser(t *testing.T) {
	p := serve(t, "RECLUSE_GATE_RULES=block")
	create := exec.Command(p.Program, "key", "create", "boss", "--scope", "admin") // only this scope may grant approvals
	create.Env = p.Env
	key, err := create.Output()
	if err != nil {
		t.Fatal(err)
	}
	boss := *p
	boss.key = strings.TrimSpace(string(key))
	const shred = "echo x > notes.txt && shred -u notes.txt && echo shredded"
	for name, connect := range map[string]func(*testing.T, *sdk.ClientOptions) *sdk.ClientSession{
		"in the era of sessions": func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectStdio(t, o, "2025-11-25") },
		"in the later one":       func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectStdio(t, o, "") },
		"over HTTP":              func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return boss.connectHTTP(t, o, false) },
		"over HTTP, in the later one": func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
			return boss.connectHTTPVersion(t, o, false, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(s *sdk.ClientSession, command string) (*sdk.CallToolResult, string) {
				t.Helper()
				args := map[string]any{"command": command}
				if strings.HasSuffix(name, "HTTP, in the later one") { // stateless requests have no session of their own
					args["session"] = "asked"
				}
				return call(t, s, "run_bash", args)
			}
			var asked []string
			allow := false
			s := connect(t, &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
				asked = append(asked, r.Params.Message)
				return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"allow": allow}}, nil
			}})
			if _, said := run(s, shred); !strings.Contains(said, "did not allow") {
				t.Fatal(said)
			}
			allow = true
			if res, said := run(s, "true; "+shred); res.IsError || !strings.Contains(said, "shredded") {
				t.Fatal(said)
			}
			// the reason also contains the command
			if len(asked) != 2 || !strings.Contains(asked[0], shred) || !strings.Contains(strings.ReplaceAll(asked[0], shred, ""), "shred") {
				t.Errorf("%q", asked)
			}
		})
	}
	t.Run("an agent without such a user", func(t *testing.T) {
		s := p.connectStdio(t, nil, "")
		if res, said := call(t, s, "run_bash", map[string]any{"command": shred}); !res.IsError || strings.Contains(said, "gate grant") || !strings.Contains(said, "ask the user") {
			t.Fatal(said)
		}
	})
}

// samplingClient returns the options of a client that offers a model, which works as an RLM does and counts its calls.
//
//nolint:staticcheck // sampling is deprecated, but supported
func samplingClient(asked *atomic.Int32) *sdk.ClientOptions {
	return &sdk.ClientOptions{CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		asked.Add(1)
		last := r.Params.Messages[len(r.Params.Messages)-1].Content.(*sdk.TextContent).Text
		reply := "```repl\nanswer['content'] = llm_query('sub: ' + str(context.count('needle'))); answer['ready'] = True\n```\nand then I made this up"
		if strings.HasPrefix(last, "sub: ") {
			reply = "there are " + strings.TrimPrefix(last, "sub: ")
		}
		return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: reply}, StopReason: "endTurn"}, nil
	}}
}

// withKey sends a key with each request.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// connectHTTP returns a client that is connected over HTTP, with a version of the protocol that has MCP sessions.
// Without a second stream, the client receives requests of the server only in the response to its own request, as many
// agents do.
func (p *testServer) connectHTTP(t *testing.T, o *sdk.ClientOptions, second bool) *sdk.ClientSession {
	t.Helper()
	return p.connectHTTPVersion(t, o, second, "2025-11-25")
}

// connectHTTPVersion is like connectHTTP with any version of the protocol; empty: the newest.
func (p *testServer) connectHTTPVersion(t *testing.T, o *sdk.ClientOptions, second bool, version string) *sdk.ClientSession {
	t.Helper()
	var so *sdk.ClientSessionOptions
	if version != "" {
		so = &sdk.ClientSessionOptions{ProtocolVersion: version}
	}
	tr := &sdk.StreamableClientTransport{Endpoint: p.url + "/mcp", DisableStandaloneSSE: !second}
	if p.key != "" {
		tr.HTTPClient = &http.Client{Transport: withKey(p.key)}
	}
	s, err := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, o).Connect(t.Context(), tr, so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestARunAsksTheAgentsOwnModelWhereThereIsNone(t *testing.T) {
	p := serve(t)
	for name, connect := range map[string]func(*testing.T, *sdk.ClientOptions) *sdk.ClientSession{
		"over stdio":                  func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectStdio(t, o, "2025-11-25") },
		"over HTTP":                   func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectHTTP(t, o, true) },
		"over HTTP, by single stream": func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectHTTP(t, o, false) },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			s := connect(t, samplingClient(&asked))
			hay := strings.Repeat("hay hay hay needle\n", 30_000)
			res, answer := call(t, s, "query", map[string]any{"query": "How many needles?", "context": hay})
			if answer != "there are 30000" || res.IsError || asked.Load() != 2 {
				t.Fatal(answer, asked.Load())
			}
			if got, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: res.Content[1].(*sdk.ResourceLink).URI}); err != nil || !strings.Contains(got.Contents[0].Text, "run_started") {
				t.Errorf("the trajectory cannot be read: %v", err)
			}
			if out := res.StructuredContent.(map[string]any); out["estimated"] != true || out["model_calls"] != 2.0 {
				t.Errorf("%v", out)
			}
			// The next query is another call of the same connection.
			if res, answer := call(t, s, "query", map[string]any{"query": "How many needles now?", "context": hay + "needle"}); answer != "there are 30001" || res.IsError || asked.Load() != 4 {
				t.Fatal(answer, asked.Load())
			}
			if res, said := call(t, s, "query", map[string]any{"query": "?", "in_session": true}); !res.IsError || !strings.Contains(said, "in_session") {
				t.Error(said)
			}
		})
	}
}

func TestTheAgentsOwnModelIsAskedNoMoreThanIsAllowed(t *testing.T) {
	hay := strings.Repeat("hay hay hay needle\n", 30_000)
	for name, tt := range map[string]struct {
		calls string
		asked int32
		says  string
	}{
		"once":     {"1", 1, "limit of 1 calls in this connection reached"},
		"not once": {"0", 0, "the client does not offer its own"},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, "RECLUSE_SERVER_SAMPLING_CALLS="+tt.calls)
			for over, connect := range map[string]func(*testing.T, *sdk.ClientOptions) *sdk.ClientSession{
				"HTTP": func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession { return p.connectHTTP(t, o, true) },
				"stdio": func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
					return p.connectStdio(t, o, "2025-11-25", "--sampling-calls", tt.calls)
				},
			} {
				var asked atomic.Int32
				s := connect(t, samplingClient(&asked))
				res, said := call(t, s, "query", map[string]any{"query": "How many needles?", "context": hay, "limits": map[string]any{"turns": 1}})
				if asked.Load() != tt.asked || tt.asked == 0 && (!res.IsError || !strings.Contains(said, tt.says)) {
					t.Errorf("over %s it was asked %d times: %s", over, asked.Load(), said)
				}
				if res, said := call(t, s, "query", map[string]any{"query": "How many needles?", "context": hay}); !res.IsError || !strings.Contains(said, tt.says) || asked.Load() != tt.asked {
					t.Errorf("over %s it was asked %d times: %s", over, asked.Load(), said)
				}
			}
		})
	}
}

//nolint:staticcheck // sampling is deprecated, but supported
func TestARunWithALentModelEndsWithItsLender(t *testing.T) {
	p := serve(t)
	begun, over := make(chan struct{}, 1), make(chan struct{})
	o := &sdk.ClientOptions{CreateMessageHandler: func(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		begun <- struct{}{}
		<-over // the model answers after the end of the call
		return nil, errors.New("too late")
	}}
	s := p.connectHTTP(t, o, true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "query", Arguments: map[string]any{"query": "How many needles?", "context": strings.Repeat("hay needle\n", 30_000)}})
		ended <- err
	}()
	<-begun
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has an answer")
	}
	p.awaitCancelled(t)
	close(over)
}

// awaitCancelled waits until no run is running and one was cancelled.
func (p *testServer) awaitCancelled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) { // the cancellation is asynchronous
		runs := exec.Command(p.Program, "runs", "list", "--json")
		runs.Env = p.Env
		out, err := runs.Output()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), `"running": true`) && strings.Contains(string(out), "cancelled") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s", out)
		}
	}
}

func TestTerraphimsNamesOverHTTP(t *testing.T) {
	names := []string{"rlm_code", "rlm_bash", "rlm_query", "rlm_context", "rlm_snapshot", "rlm_status", "mcp_search_tools", "mcp_search_skills"}
	for how, more := range map[string]string{"by a flag": "--terraphim-names", "by the configuration": "RECLUSE_SERVER_TERRAPHIM_NAMES=true", "not at all": ""} {
		t.Run(how, func(t *testing.T) {
			s := serve(t, more).connectHTTP(t, nil, true)
			list, err := s.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, tool := range list.Tools {
				if slices.Contains(names, tool.Name) {
					found++
				}
			}
			if want := len(names); more == "" && found != 0 || more != "" && found != want {
				t.Errorf("found %d of the names", found)
			}
		})
	}
}
