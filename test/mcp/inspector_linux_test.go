package mcp

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// tools are the tools that all agents find.
var tools = []string{"context", "files", "query", "run_bash", "run_code", "search_tools", "snapshot", "status"}

func TestTheInspectorListsAndCallsTools(t *testing.T) {
	bin := filepath.Join(node(t), "node_modules", ".bin")
	p := serve(t)
	for name, target := range map[string][]string{
		"stdio": {p.Program, "mcp"},
		"http":  {p.url + "/mcp", "--transport", "http"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "http" {
				testneed.All(t, "the inspector speaks the same over stdio, and the conformance suite speaks HTTP")
			}
			inspect := func(out any, args ...string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				cmd := exec.CommandContext(ctx, filepath.Join(bin, "node"), slices.Concat([]string{filepath.Join(bin, "mcp-inspector"), "--cli"}, target, args)...)
				cmd.Env = p.Env
				raw, err := cmd.Output()
				if err != nil {
					if e, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output does not wrap the error
						t.Logf("%s", e.Stderr)
					}
					t.Fatalf("%v\n%s", err, raw)
				}
				if err := json.Unmarshal(raw, out); err != nil {
					t.Fatalf("%v\n%s", err, raw)
				}
			}
			var list struct {
				Tools []struct {
					Name        string         `json:"name"`
					InputSchema map[string]any `json:"inputSchema"`
					Annotations map[string]any `json:"annotations"`
				} `json:"tools"`
			}
			inspect(&list, "--method", "tools/list")
			if len(list.Tools) != len(tools) {
				t.Fatalf("%+v", list)
			}
			for i, tool := range list.Tools {
				if tool.Name != tools[i] || tool.InputSchema == nil || tool.Annotations == nil {
					t.Errorf("%+v", tool)
				}
			}
			var called struct {
				Structured map[string]any `json:"structuredContent"`
			}
			inspect(&called, "--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=6*7")
			if called.Structured["result"] != "42" {
				t.Errorf("%+v", called)
			}
			inspect(&called, "--method", "tools/call", "--tool-name", "run_bash", "--tool-arg", "command=id -u")
			if called.Structured["stdout"] != "1000\n" {
				t.Errorf("%+v", called)
			}
		})
	}
}

func TestAnAgentStartsTheProgram(t *testing.T) {
	p := serve(t)
	cmd := exec.Command(p.Program, "mcp", "--terraphim-names", "--memory", "256m")
	cmd.Env = p.Env
	c := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[string]string{"6 * 7": "42"} {
		res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "rlm_code", Arguments: map[string]any{"code": code}})
		if err != nil || res.StructuredContent.(map[string]any)["result"] != want {
			t.Fatal(res, err)
		}
	}
	res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "status"})
	if err != nil {
		t.Fatal(err)
	}
	st := res.StructuredContent.(map[string]any)
	if st["memory_limit_bytes"] != float64(256<<20) {
		t.Errorf("%v", st)
	}
	if err := s.Close(); err != nil { // closes the input of the program, which must then end its session and exit
		t.Error(err)
	}
	list := exec.Command(p.Program, "session", "list", "--json")
	list.Env = p.Env
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var left []any
	if err := json.Unmarshal(out, &left); err != nil || len(left) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
