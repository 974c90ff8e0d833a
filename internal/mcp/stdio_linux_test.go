package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

var followAll = sandbox.FollowOptions{}

func TestBadMessagesDoNotEndTheConversation(t *testing.T) {
	d := open(t, Options{})
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Serve(context.Background(), d.Trusted, inR, outW, StdioOptions{Session: "rough"})
		_ = outW.Close()
		done <- err
	}()
	lines := bufio.NewScanner(outR)
	lines.Buffer(nil, 1<<20)
	say := func(line string) (id, code any) {
		t.Helper()
		if _, err := io.WriteString(inW, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatal("no answer to ", line[:min(len(line), 80)])
		}
		var m struct {
			ID    any `json:"id"`
			Error *struct {
				Code float64 `json:"code"`
			} `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		if m.Error == nil {
			return m.ID, nil
		}
		return m.ID, m.Error.Code
	}
	for _, c := range []struct {
		name, line string
		id, code   any
	}{
		{"no JSON", `hello`, nil, -32700.0},
		{"half JSON", `{"jsonrpc":"2.0","id":1,`, nil, -32700.0},
		{"no message", `{"id":5}`, 5.0, -32600.0},
		{"an old version", `{"jsonrpc":"1.0","id":6,"method":"ping"}`, 6.0, -32600.0},
		{"a batch", `[{"jsonrpc":"2.0","id":7,"method":"ping"}]`, nil, -32600.0},
		{"a number", `42`, nil, -32600.0},
		{"too much", `{"jsonrpc":"2.0","id":8,"method":"ping","params":{"x":"` + strings.Repeat("x", maxMessage) + `"}}`, nil, -32600.0},
		{"a greeting", `{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, 9.0, nil},
		{"an unknown method", `{"jsonrpc":"2.0","id":10,"method":"no/such"}`, 10.0, -32601.0},
		{"an unknown tool", `{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{"name":"nope","arguments":{}}}`, 11.0, -32602.0},
	} {
		if id, code := say(c.line); id != c.id || code != c.code {
			t.Errorf("%s: answer to %v with code %v, want %v and %v", c.name, id, code, c.id, c.code)
		}
		if c.name == "a greeting" {
			if _, err := io.WriteString(inW, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = inW.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	d := open(t, Options{})
	s := d.overStdio(t, StdioOptions{Session: "checked"}, nil)
	for name, c := range map[string]struct {
		tool string
		args args
		says string
	}{
		"an argument nobody knows":  {"run_code", args{"code": "1", "colour": "red"}, "colour"},
		"none where one is needed":  {"run_code", args{}, "code"},
		"a number for a text":       {"run_code", args{"code": 1}, "code"},
		"an unknown action":         {"snapshot", args{"action": "explode"}, "action"},
		"a time that is below zero": {"run_bash", args{"command": "true", "timeout_seconds": -1}, "timeout_seconds"},
		"code that is too long":     {"run_code", args{"code": strings.Repeat("x", v1.MaxCode+1)}, "code"},
		"a name that is none":       {"run_code", args{"code": "1", "session": "a/b"}, ""},
		"content that is no base64": {"files", args{"action": "write", "path": "a", "content": "!", "encoding": "base64"}, "base64"},
		"a fork of too many":        {"snapshot", args{"action": "fork", "copies": 1000}, "copies"},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: c.tool, Arguments: c.args})
			if err != nil {
				t.Fatal(err)
			}
			if !res.IsError || !strings.Contains(text(res), c.says) {
				t.Error(text(res)[:min(300, len(text(res)))])
			}
		})
	}
}

func TestAVanishedAgentLeavesNothingRunning(t *testing.T) {
	d := open(t, Options{})
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(context.Background(), d.Trusted, inR, outW, StdioOptions{Session: "vanishing", Keep: true})
		_ = outW.Close()
	}()
	lines := bufio.NewScanner(outR)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_bash","arguments":{"command":"echo up; sleep 300"},"_meta":{"progressToken":1}}}`,
	} {
		if _, err := io.WriteString(inW, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	for lines.Scan() && !strings.Contains(lines.Text(), "up") {
	}
	_ = inW.Close()
	go func() { _, _ = io.Copy(io.Discard, outR) }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	awaitEnding(t, d, "vanishing", "cancelled")
}

func TestACancelledCallIsNotAnswered(t *testing.T) {
	var out bytes.Buffer
	s := &stdio{out: &out}
	s.noteCancelled([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`))
	for _, line := range []string{`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"given up"}}`, `{"jsonrpc":"2.0","id":8,"result":{}}`, `{"jsonrpc":"2.0","id":7,"method":"ping"}`} {
		if n, err := s.Write([]byte(line + "\n")); err != nil || n != len(line)+1 {
			t.Fatal(n, err)
		}
	}
	want := `{"jsonrpc":"2.0","id":8,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":7,"method":"ping"}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("%s", got)
	}
}
