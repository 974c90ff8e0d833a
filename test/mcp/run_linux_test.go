package mcp

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// script is a model that works as an RLM does: it looks at the context by code, and hands in what the code found.
const script = `name: root
rules:
  - match: plainly
    reply: plain it is
  - match: hang
    reply: "` + "```repl\\nimport time; time.sleep(600)\\n```" + `"
  - match: .
    reply: "` + "```repl\\nanswer['content'] = str(context.count('needle')); answer['ready'] = True\\n```" + `"
`

// started is an agent that has started the program.
func (p *place) started(t *testing.T, o *sdk.ClientOptions, version string, flags ...string) *sdk.ClientSession {
	t.Helper()
	cmd := exec.Command(p.program, append([]string{"mcp"}, flags...)...)
	cmd.Env = p.env
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
	s := p.started(t, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message }}, "", "--terraphim-names")
	if _, said := call(t, s, "rlm_query", map[string]any{"prompt": "say it plainly", "model": "scripted/root", "temperature": 0, "max_tokens": 100}); said != "plain it is" {
		t.Error(said)
	}
	if res, said := call(t, s, "rlm_query", map[string]any{"prompt": "?", "model": "no/such"}); !res.IsError || !strings.Contains(said, "model_unknown") {
		t.Error(said)
	}
	hay := strings.Repeat("hay hay hay needle\n", 30_000)
	call(t, s, "files", map[string]any{"action": "write", "path": "hay.txt", "content": hay})
	res, answer := call(t, s, "query", map[string]any{"query": "How many needles?", "files": []string{"hay.txt"}, "max_turns": 5, "max_seconds": 120})
	if answer != "30000" || res.IsError {
		t.Fatal(answer)
	}
	if len(heard) == 0 {
		t.Error("nothing was told while it ran")
	}
	link, ok := res.Content[1].(*sdk.ResourceLink)
	if !ok {
		t.Fatalf("%+v", res.Content)
	}
	got, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI})
	if err != nil || !strings.Contains(got.Contents[0].Text, "run_started") || strings.Contains(got.Contents[0].Text, "hay hay hay") {
		t.Error("the trajectory is not as it should be", err)
	}
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 2 || list.Resources[0].URI != link.URI {
		t.Errorf("%+v %v", list, err)
	}

	// Giving up the call gives up the run.
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
	<-heard // it is under way
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call that was given up has an answer")
	}
	runs := exec.Command(p.program, "runs", "list", "--json")
	runs.Env = p.env
	for { // the notification and the answer of the server come when they come
		out, err := runs.Output()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), `"running": true`) && strings.Contains(string(out), "cancelled") {
			return
		}
		if t.Context().Err() != nil {
			t.Fatalf("%s", out)
		}
		runs = exec.Command(p.program, "runs", "list", "--json")
		runs.Env = p.env
	}
}

func TestTheGateAsksTheAgentsUser(t *testing.T) {
	p := serve(t, "RECLUSE_GATE_RULES=block")
	const shred = "echo x > notes.txt && shred -u notes.txt && echo shredded"
	for name, version := range map[string]string{"in the era of sessions": "2025-11-25", "in the later one": ""} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			allow := false
			s := p.started(t, &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
				asked = append(asked, r.Params.Message)
				return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"allow": allow}}, nil
			}}, version)
			if _, said := call(t, s, "run_bash", map[string]any{"command": shred}); !strings.Contains(said, "did not allow") {
				t.Fatal(said)
			}
			allow = true
			if res, said := call(t, s, "run_bash", map[string]any{"command": "true; " + shred}); res.IsError || !strings.Contains(said, "shredded") {
				t.Fatal(said)
			}
			if len(asked) != 2 || !strings.Contains(asked[0], shred) {
				t.Errorf("%q", asked)
			}
		})
	}
	t.Run("an agent without such a user", func(t *testing.T) {
		s := p.started(t, nil, "")
		if res, said := call(t, s, "run_bash", map[string]any{"command": shred}); !res.IsError || !strings.Contains(said, "recluse gate grant") {
			t.Fatal(said)
		}
	})
}

//nolint:staticcheck // sampling is deprecated, and served
func TestARunAsksTheAgentsOwnModelWhereThereIsNone(t *testing.T) {
	p := serve(t)
	var asked atomic.Int32
	s := p.started(t, &sdk.ClientOptions{CreateMessageHandler: func(_ context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
		asked.Add(1)
		last := r.Params.Messages[len(r.Params.Messages)-1].Content.(*sdk.TextContent).Text
		reply := "```repl\nanswer['content'] = llm_query('sub: ' + str(context.count('needle'))); answer['ready'] = True\n```\nand then I made this up"
		if strings.HasPrefix(last, "sub: ") {
			reply = "there are " + strings.TrimPrefix(last, "sub: ")
		}
		return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: reply}, StopReason: "endTurn"}, nil
	}}, "2025-11-25")
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
}
