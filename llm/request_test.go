package llm

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// sent returns the last request that the server received.
func sent(t *testing.T, h *hits) object {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var o object
	if err := json.Unmarshal(h.last, &o); err != nil {
		t.Fatalf("%v: %s", err, h.last)
	}
	return o
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	var plain any
	if err := json.Unmarshal([]byte(jsonText(want)), &plain); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, plain) {
		t.Errorf("%s: %s, not %s", what, jsonText(got), jsonText(want))
	}
}

func TestWhatIsSent(t *testing.T) {
	warm := 0.25
	req := Request{
		Messages:  []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "hi"}, {Role: Assistant, Content: "hello"}, {Role: User, Content: "more"}},
		MaxTokens: 50, Temperature: &warm, Stop: []string{"END"}, Schema: []byte(`{"type":"object"}`), Tags: map[string]string{"run": "secret-run"},
	}
	eachWire(t, func(t *testing.T, w wire) {
		m, h := serve(t, w, respond(w.stream("x")))
		mustReply(t, m, req, "x")
		got := sent(t, h)
		same(t, "model", got["model"], "m")
		same(t, "stream", got["stream"], true)
		all := []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "hi"}, {Role: Assistant, Content: "hello"}, {Role: User, Content: "more"}}
		switch w.typ {
		case TypeOpenAI:
			same(t, "messages", got["messages"], all)
			same(t, "max_tokens", got["max_tokens"], 50)
			same(t, "temperature", got["temperature"], warm)
			same(t, "stop", got["stop"], req.Stop)
			same(t, "stream_options", got["stream_options"], object{"include_usage": true})
			same(t, "schema", got["response_format"].(object)["json_schema"].(object)["schema"], object{"type": "object"})
		case TypeAnthropic:
			same(t, "system", got["system"], []object{{"type": "text", "text": "be brief"}})
			if n := len(got["messages"].([]any)); n != 3 {
				t.Errorf("%d messages", n)
			}
			same(t, "max_tokens", got["max_tokens"], 50)
			same(t, "stop", got["stop_sequences"], req.Stop)
			same(t, "cache", got["cache_control"], object{"type": "ephemeral"})
			same(t, "schema", got["output_config"].(object)["format"].(object)["schema"], object{"type": "object"})
		case TypeOllama:
			same(t, "messages", got["messages"], all)
			same(t, "format", got["format"], object{"type": "object"})
			same(t, "options", got["options"], object{"num_ctx": ollamaWindow, "num_predict": 50, "temperature": warm, "stop": req.Stop})
		}
		if strings.Contains(string(h.last), "secret-run") {
			t.Error("the tags were sent")
		}
		if w.typ != TypeOllama && !strings.Contains(h.head[0], secret) {
			t.Errorf("the key was not sent: %q", h.head)
		}
	})
}

func TestKeysOfTheEnvironmentStayWithTheirProvider(t *testing.T) {
	for _, name := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"} {
		t.Setenv(name, secret)
	}
	eachWire(t, func(t *testing.T, w wire) {
		m, h := serve(t, w, respond(w.stream("x")), func(c *Config, p *Provider) { p.Key, c.Env = "", nil })
		mustReply(t, m, ask("hi"), "x")
		if strings.Contains(h.head[0], secret) {
			t.Errorf("the key was sent to another server: %q", h.head)
		}
	})
}

func TestServersThatCannotStream(t *testing.T) {
	heard := 0
	req := ask("hi")
	req.Stop = []string{"END"}
	req.Delta = func(string) bool { heard++; return true }
	m, h := serve(t, wires[0], func(_ int, rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		io.WriteString(rw, jsonText(object{"choices": []object{{"message": object{"role": "assistant", "content": "all of it END x"}, "finish_reason": "length"}}, "usage": object{"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}))
	}, func(_ *Config, p *Provider) { p.NoStream = true })
	if r := mustReply(t, m, req, "all of it "); r.Usage.Input != 3 || heard != 1 {
		t.Errorf("%+v, heard %d pieces", r, heard)
	}
	if sent(t, h)["stream"] != nil {
		t.Errorf("%v", sent(t, h))
	}
	m, _ = serve(t, wires[0], func(_ int, rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		io.WriteString(rw, `{"choices": [{"message": {"content": "whole"}}]}`)
	})
	_, err := m.Complete(t.Context(), ask("hi"))
	if e := wantCode(t, err, v1.CodeModelReplyBroken); !strings.Contains(e.Remedy, "no_stream") {
		t.Errorf("%v", err)
	}
	m, _ = serve(t, wires[2], respond(jsonText(object{"message": object{"content": "whole"}, "done": true, "eval_count": 2, "prompt_eval_count": 3})), func(_ *Config, p *Provider) { p.NoStream = true })
	mustReply(t, m, ask("hi"), "whole")
}

func TestParametersThatAServerDoesNotTake(t *testing.T) {
	w := wires[0]
	refuse := func(rw http.ResponseWriter, what string) {
		rw.WriteHeader(http.StatusBadRequest)
		io.WriteString(rw, w.fail("unsupported_parameter", "Unsupported parameter: '"+what+"'"))
	}
	req := ask("hi")
	req.MaxTokens, req.Stop = 5, []string{"END"}
	var last object
	m, h := serveBodies(t, w, func(o object, rw http.ResponseWriter) {
		last = o
		switch {
		case o["stream_options"] != nil:
			refuse(rw, "stream_options")
		case o["max_tokens"] != nil:
			refuse(rw, "max_tokens' is not supported, use 'max_completion_tokens")
		case o["stop"] != nil:
			refuse(rw, "stop")
		default:
			io.WriteString(rw, w.stream("x END y"))
		}
	})
	if r := mustReply(t, m, req, "x "); r.Finish != FinishStop {
		t.Errorf("%+v", r)
	}
	if last["max_completion_tokens"] == nil || h.count() != 4 {
		t.Errorf("asked %d times, at last %v", h.count(), last)
	}
	mustReply(t, m, req, "x ")
	if h.count() != 5 {
		t.Error("the refused parameters were sent again")
	}
}

// serveBodies is like serve for a handler that reads the request.
func serveBodies(t *testing.T, w wire, answer func(o object, rw http.ResponseWriter)) (Model, *hits) {
	t.Helper()
	var h *hits
	var m Model
	m, h = serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) { answer(sent(t, h), rw) })
	return m, h
}

func TestEmptyMessagesForAnthropic(t *testing.T) {
	m, h := serve(t, wires[1], respond(wires[1].stream("x")))
	mustReply(t, m, Request{Messages: []Message{{Role: User, Content: "hi"}, {Role: Assistant, Content: ""}, {Role: User, Content: "again"}, {Role: Assistant, Content: "begin: \n"}}}, "x")
	if n := len(sent(t, h)["messages"].([]any)); n != 3 || strings.Contains(string(h.last), `begin: `) {
		t.Errorf("%s", h.last)
	}
	mustReply(t, m, Request{Messages: []Message{{Role: System, Content: "only this"}}}, "x")
	if n := len(sent(t, h)["messages"].([]any)); n != 1 {
		t.Errorf("%s", h.last)
	}
}

func TestOllamaIsNotAskedWhatItWouldCut(t *testing.T) {
	m, h := serve(t, wires[2], respond(wires[2].stream("x")), func(c *Config, _ *Provider) { c.Models = map[string]ModelConfig{"here/m": {Window: 100}} })
	_, err := m.Complete(t.Context(), ask(strings.Repeat("word ", 200)))
	if e := wantCode(t, err, v1.CodeModelContextExceeded); !strings.Contains(e.Message, "100") || h.count() != 0 {
		t.Errorf("asked %d times: %v", h.count(), err)
	}
}

func TestThinkingIsPaidButNotSaid(t *testing.T) {
	for i, body := range []string{
		"data: " + jsonText(object{"choices": []object{{"delta": object{"reasoning_content": "let me think about that"}}}}) + "\n\n" + openAIChunks("yes"),
		anthropicEvents() + anthropicEvent("content_block_delta", object{"index": 0, "delta": object{"type": "thinking_delta", "thinking": "let me think about that"}}) + anthropicEvent("content_block_delta", object{"index": 1, "delta": object{"type": "text_delta", "text": "yes"}}),
		jsonText(object{"message": object{"thinking": "let me think about that"}}) + "\n" + ollamaLines("yes"),
	} {
		m, _ := serve(t, wires[i], respond(body))
		req := ask("hi")
		req.Delta = func(string) bool { return false }
		r := mustReply(t, m, req, "yes")
		if want := Count("yes") + Count("let me think about that"); r.Usage.Output != want || !r.Usage.Estimated {
			t.Errorf("%s: %+v, not %d", wires[i].typ, r.Usage, want)
		}
	}
}

func TestHowRepliesEnd(t *testing.T) {
	for _, tc := range []struct {
		wire int
		body string
		want Finish
	}{
		{0, openAIChunks("x") + "data: " + jsonText(object{"choices": []object{{"delta": object{}, "finish_reason": "length"}}}) + "\n\n", FinishLength},
		{0, openAIChunks("x") + "data: " + jsonText(object{"choices": []object{{"delta": object{}, "finish_reason": "content_filter"}}}) + "\n\n", FinishFilter},
		{0, "data: " + jsonText(object{"choices": []object{{"delta": object{"refusal": "x"}, "finish_reason": "stop"}}}) + "\n\n", FinishFilter},
		{1, anthropicEvents("x") + anthropicEvent("message_delta", object{"delta": object{"stop_reason": "max_tokens"}, "usage": object{"output_tokens": 1}}), FinishLength},
		{1, anthropicEvents("x") + anthropicEvent("message_delta", object{"delta": object{"stop_reason": "refusal"}, "usage": object{"output_tokens": 1}}), FinishFilter},
		{1, anthropicEvents("x") + anthropicEvent("message_delta", object{"delta": object{"stop_reason": "stop_sequence"}, "usage": object{"output_tokens": 1}}), FinishStop},
		{2, ollamaLines("x") + `{"done": true, "done_reason": "length", "eval_count": 1}` + "\n", FinishLength},
	} {
		m, _ := serve(t, wires[tc.wire], respond(tc.body))
		if r := mustReply(t, m, ask("hi"), "x"); r.Finish != tc.want {
			t.Errorf("%s: %s, not %s", wires[tc.wire].typ, r.Finish, tc.want)
		}
	}
}
