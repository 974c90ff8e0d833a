package llm

import (
	"strings"
	"testing"
)

// toolReply returns a stream with a tool call in two pieces.
func (w wire) toolReply(name, first, second string) string {
	switch w.typ {
	case TypeOpenAI:
		piece := func(f object) string {
			delta := object{"tool_calls": []object{{"index": 0, "id": "t", "type": "function", "function": f}}}
			return "data: " + jsonText(object{"choices": []object{{"index": 0, "delta": delta}}}) + "\n\n"
		}
		return openAIChunks("Look:") + piece(object{"name": name, "arguments": first}) + piece(object{"arguments": second}) +
			"data: " + jsonText(object{"choices": []object{{"index": 0, "delta": object{}, "finish_reason": "tool_calls"}}}) +
			"\n\ndata: [DONE]\n\n"
	case TypeAnthropic:
		piece := func(s string) string {
			delta := object{"type": "input_json_delta", "partial_json": s}
			return anthropicEvent("content_block_delta", object{"index": 1, "delta": delta})
		}
		block := object{"type": "tool_use", "id": "t", "name": name, "input": object{}}
		return anthropicEvents("Look:") + anthropicEvent("content_block_start", object{"index": 1, "content_block": block}) +
			piece(first) + piece(second) + anthropicEvent("content_block_stop", object{"index": 1}) +
			anthropicEvent("message_delta", object{"delta": object{"stop_reason": "tool_use"}, "usage": object{"output_tokens": 7}}) +
			anthropicEvent("message_stop", object{})
	}
	call := `{"message":{"content":"","tool_calls":[{"function":{"name":"` + name + `","arguments":` + first + second + `}}]}}`
	return ollamaLines("Look:") + call + "\n" + `{"done":true,"done_reason":"stop","prompt_eval_count":3,"eval_count":7}` + "\n"
}

func TestANativeToolCallIsABlockOfCode(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		for _, c := range []struct{ name, first, second, want string }{
			{"repl", `{"code": "x = 1\n`, `print(x)"}`, "Look:\n```repl\nx = 1\nprint(x)\n```\n"},
			{"python", `{"source": "s = `, "'```'\"}", "Look:\n````repl\ns = '```'\n````\n"},
			{"weather", `{"city": "`, `Rome"}`, "Look:"},
		} {
			var streamed strings.Builder
			m, _ := serve(t, w, respond(w.toolReply(c.name, c.first, c.second)))
			r, err := m.Complete(t.Context(), Request{
				Messages: []Message{{Role: User, Content: "Q"}},
				Delta:    func(s string) bool { streamed.WriteString(s); return true },
			})
			if err != nil || r.Text != c.want || r.Finish != FinishStop || streamed.String() != c.want {
				t.Errorf("%s: %v %+v, streamed %q", c.name, err, r, streamed.String())
			}
		}
	})
}

func TestTheCodeOfAToolCall(t *testing.T) {
	for args, want := range map[string]string{
		`{"code": "print(1)", "timeout": 3}`: "print(1)",
		`{"a": "x", "b": "y"}`:               "",
		`"print(1)"`:                         "print(1)",
		"print(1)":                           "print(1)",
		`{"code": "pri`:                      "",
		"":                                   "",
	} {
		if got := codeArgument(args); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
