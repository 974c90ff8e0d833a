package codingagents

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

type object = map[string]any

// model simulates the API of a model for agents: Anthropic's Messages (Claude Code, opencode) and OpenAI's Responses
// (Codex). It requests one shell command from each agent, and stores the results that the agent sends back.
type model struct {
	url     string
	command string

	mu      sync.Mutex
	results []string // results of the command
	tools   []string // names of the tools that the agent offers
}

// newModel starts a model that requests a command.
func newModel(t *testing.T, command string) *model {
	t.Helper()
	m := &model{command: command}
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	m.url = srv.URL
	return m
}

// result returns the results of the command that the agent has sent.
func (m *model) result() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.results, "\n")
}

// offered reports whether the agent offers a tool whose name contains a text.
func (m *model) offered(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.tools, func(name string) bool { return strings.Contains(name, text) })
}

// request is the part of the requests of both APIs that the model uses.
type request struct {
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
	Messages []struct {
		Content json.RawMessage `json:"content"`
	} `json:"messages"` // Messages
	Input []item `json:"input"` // Responses
}

// item is a part of a conversation.
type item struct {
	Type    string          `json:"type"`
	Content json.RawMessage `json:"content"` // of a tool_result
	Output  json.RawMessage `json:"output"`  // of a function_call_output
}

// ServeHTTP answers requests for the next message of a conversation. All other requests get status 404.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in request
	messages, responses := strings.HasSuffix(r.URL.Path, "/messages"), strings.HasSuffix(r.URL.Path, "/responses")
	if err != nil || !messages && !responses || json.Unmarshal(body, &in) != nil {
		http.NotFound(w, r)
		return
	}
	shell, answered := m.read(&in)
	w.Header().Set("Content-Type", "text/event-stream")
	switch {
	case messages && (shell == "" || answered):
		streamMessage(w, object{"type": "text", "text": ""}, object{"type": "text_delta", "text": "done"}, "end_turn")
	case messages:
		input := text(object{"command": m.command, "description": "a command of the test"})
		streamMessage(w, object{"type": "tool_use", "id": "toolu_1", "name": shell, "input": object{}}, object{"type": "input_json_delta", "partial_json": input}, "tool_use")
	case shell == "" || answered:
		streamResponse(w, object{"type": "message", "role": "assistant", "id": "msg_1", "content": []object{{"type": "output_text", "text": "done"}}})
	default:
		streamResponse(w, object{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": shell, "arguments": text(object{"cmd": m.command, "command": m.command})})
	}
}

// read stores the results and tools in a request. It returns the name of the shell tool, and whether the command has
// run.
func (m *model) read(in *request) (shell string, answered bool) {
	items := in.Input
	for _, msg := range in.Messages {
		var parts []item
		if json.Unmarshal(msg.Content, &parts) == nil { // otherwise the content is a text
			items = append(items, parts...)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range items {
		if i.Type == "tool_result" || i.Type == "function_call_output" {
			m.results, answered = append(m.results, plain(i.Content)+plain(i.Output)), true
		}
	}
	for _, t := range in.Tools {
		m.tools = append(m.tools, t.Name)
		if slices.Contains([]string{"Bash", "bash", "exec_command", "shell_command"}, t.Name) {
			shell = t.Name
		}
	}
	return shell, answered
}

// plain returns a result, which is a text or a list of parts, as text.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts and maps can always be encoded
	}
	return string(b)
}

func event(w io.Writer, name string, v object) {
	v["type"] = name
	fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, text(v))
}

// streamMessage streams a message of one block, as Anthropic does.
func streamMessage(w io.Writer, block, delta object, stop string) {
	event(w, "message_start", object{"message": object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		"usage": object{"input_tokens": 1, "output_tokens": 1},
	}})
	event(w, "content_block_start", object{"index": 0, "content_block": block})
	event(w, "content_block_delta", object{"index": 0, "delta": delta})
	event(w, "content_block_stop", object{"index": 0})
	event(w, "message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 1}})
	event(w, "message_stop", object{})
}

// streamResponse streams a response of one item, as OpenAI does.
func streamResponse(w io.Writer, out object) {
	event(w, "response.created", object{"response": object{"id": "resp_1"}})
	event(w, "response.output_item.done", object{"output_index": 0, "item": out})
	event(w, "response.completed", object{"response": object{
		"id": "resp_1", "usage": object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": nil, "output_tokens_details": nil},
	}})
}
