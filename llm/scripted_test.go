package llm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// ask returns a request with one user message.
func ask(text string) Request { return Request{Messages: []Message{{Role: User, Content: text}}} }

func mustReply(t *testing.T, m Model, req Request, want string) *Reply {
	t.Helper()
	r, err := m.Complete(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if r.Text != want {
		t.Fatalf("reply %q, want %q", r.Text, want)
	}
	return r
}

func wantCode(t *testing.T, err error, code v1.Code) *v1.Error {
	t.Helper()
	if v1.CodeOf(err) != code {
		t.Fatalf("error code %q (%v), want %q", v1.CodeOf(err), err, code)
	}
	e, ok := errors.AsType[*v1.Error](err)
	if !ok {
		t.Fatalf("%v is not a *v1.Error", err)
	}
	return e
}

func TestScriptedChoosesRules(t *testing.T) {
	m := NewScripted("demo",
		Rule{Match: `^capital of (?P<land>\w+)$`, Reply: `ask {{land}} or {{1}}; f"{{x}}" {{0|json}} at {{tag:depth}}`},
		Rule{Conversation: `(?s)system: be brief.*user: hi`, Reply: "hi"},
		Rule{Tags: map[string]string{"depth": "1"}, Reply: "below"},
		Rule{Match: "again", Nth: 2, Reply: "second"},
		Rule{Match: "again", Times: 1, Reply: "once"},
		Rule{Match: "again", Reply: "always"},
	)
	req := ask("capital of Peru")
	req.Tags = map[string]string{"depth": "0"}
	mustReply(t, m, req, `ask Peru or Peru; f"{{x}}" "capital of Peru" at 0`)
	mustReply(t, m, Request{Messages: []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "hi"}}}, "hi")
	req = ask("anything")
	req.Tags = map[string]string{"depth": "1", "turn": "3"}
	mustReply(t, m, req, "below")
	for _, want := range []string{"once", "second", "always", "always"} {
		mustReply(t, m, ask("again"), want)
	}
	_, err := m.Complete(t.Context(), ask("nobody knows this"))
	if e := wantCode(t, err, v1.CodeModelScript); !strings.Contains(e.Message, "nobody knows this") {
		t.Errorf("the error does not show the message: %v", err)
	}
	if m.Calls() != 8 {
		t.Errorf("%d calls counted, not 8", m.Calls())
	}
}

func TestScriptedRulesInOrderUnderLoad(t *testing.T) {
	var rules []Rule
	for i := range 50 {
		rules = append(rules, Rule{Nth: i + 1, Reply: strings.Repeat("x", i+1)})
	}
	m := NewScripted("many", rules...)
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r, err := m.Complete(t.Context(), ask("go"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[len(r.Text)]++
		})
	}
	wg.Wait()
	if len(seen) != 50 {
		t.Errorf("%d different replies, not 50", len(seen))
	}
}

func TestScriptedStreams(t *testing.T) {
	const text = "one äö two STOP three"
	for _, tc := range []struct {
		name   string
		req    func(*Request)
		cutAt  string
		want   string
		finish Finish
	}{
		{"whole", func(*Request) {}, "", text, FinishStop},
		{"to a stop word", func(r *Request) { r.Stop = []string{"three", "STOP"} }, "", "one äö two ", FinishStop},
		{"cut by the listener", func(*Request) {}, "äö", "one äö", FinishCut},
		{"to a length", func(r *Request) { r.MaxTokens = 2 }, "", "one ä", FinishLength},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, chunk := range []int{0, 1, 3} {
				var heard strings.Builder
				req := ask("go")
				tc.req(&req)
				req.Delta = func(s string) bool {
					heard.WriteString(s)
					return tc.cutAt == "" || !strings.Contains(heard.String(), tc.cutAt)
				}
				r, err := NewScripted("s", Rule{Reply: text, Chunk: chunk}).Complete(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				want := tc.want
				if chunk == 0 && tc.cutAt != "" {
					want = text // the whole text arrived in one piece
				}
				if chunk == 3 && tc.cutAt != "" {
					want += " " // the piece with the text ends with a space
				}
				if r.Text != want || heard.String() != want || r.Finish != tc.finish {
					t.Errorf("pieces of %d: %q (heard %q), ended by %s", chunk, r.Text, heard.String(), r.Finish)
				}
				if r.Usage.Output != Count(r.Text) || r.Usage.Estimated != (tc.finish == FinishCut) {
					t.Errorf("usage %+v", r.Usage)
				}
			}
		})
	}
}

func TestScriptedIsGivenUp(t *testing.T) {
	m := NewScripted("slow", Rule{Match: "first", Reply: "x", Delay: time.Hour}, Rule{Reply: "ab", Chunk: 1, ChunkDelay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.Complete(ctx, ask("first"))
	wantCode(t, err, v1.CodeCancelled)

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	req := ask("second")
	req.Delta = func(string) bool { cancel(); return true }
	r, err := m.Complete(ctx, req)
	wantCode(t, err, v1.CodeCancelled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap the error of the ctx", err)
	}
	if r == nil || r.Text != "a" || r.Finish != FinishCut || !r.Usage.Estimated {
		t.Errorf("the received text is missing: %+v", r)
	}
}

func TestScriptedFailsAndCounts(t *testing.T) {
	busy := &v1.Error{Code: v1.CodeModelOverloaded, Message: "busy", Retry: true}
	m := NewScripted("s",
		Rule{Match: "fail", Error: busy},
		Rule{Match: "half", Reply: "half a", Error: busy},
		Rule{Match: "func", Respond: func(_ context.Context, r Request) (string, error) { return strings.ToUpper(r.Messages[0].Content), nil }},
		Rule{Match: "told", Reply: "x", Usage: &Usage{Input: 1_000_000, CachedInput: 500_000, Output: 1_000_000}},
	).WithInfo(Info{Window: 50, Price: &Price{Input: 2, CachedInput: 1, Output: 10}})
	_, err := m.Complete(t.Context(), ask("fail"))
	if e := wantCode(t, err, v1.CodeModelOverloaded); !e.Retry {
		t.Error("the error does not allow a retry")
	}
	r, err := m.Complete(t.Context(), ask("half"))
	wantCode(t, err, v1.CodeModelOverloaded)
	if r == nil || r.Text != "half a" || r.Usage.Calls != 1 {
		t.Errorf("partial reply %+v", r)
	}
	mustReply(t, m, ask("func"), "FUNC")
	if r := mustReply(t, m, ask("told"), "x"); r.Usage.Cost != 11.5 || r.Usage.Unpriced {
		t.Errorf("usage %+v", r.Usage)
	}
	_, err = m.Complete(t.Context(), ask(strings.Repeat("far too long ", 50)))
	if e := wantCode(t, err, v1.CodeModelContextExceeded); !strings.Contains(e.Message, "50") {
		t.Errorf("the error does not contain the limit: %v", err)
	}
	_, err = m.Complete(t.Context(), Request{})
	wantCode(t, err, v1.CodeInvalidRequest)
}

func TestScriptFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "name: demo\nwindow_tokens: 1000\nprice: {input: 1, cached_input: 0.5, output: 2}\nrules:\n" +
			"  - match: 'hello (\\w+)'\n    reply: 'hi {{1}}'\n    delay: 1ms\n    usage: {input_tokens: 7, output_tokens: 3}\n" +
			"  - error: {code: model_overloaded, message: busy, retry: true}\n",
		"a.json": "{\n\t\"name\": \"demo\", \"window_tokens\": 1000, \"price\": {\"input\": 1, \"cached_input\": 0.5, \"output\": 2},\n\t\"rules\": [" +
			"{\"match\": \"hello (\\\\w+)\", \"reply\": \"hi {{1}}\", \"delay\": \"1ms\", \"usage\": {\"input_tokens\": 7, \"output_tokens\": 3}}," +
			"{\"error\": {\"code\": \"model_overloaded\", \"message\": \"busy\", \"retry\": true}}]}",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := OpenScript(path)
		if err != nil {
			t.Fatal(name, err)
		}
		if info := m.Info(); info.Name != "scripted/demo" || info.Window != 1000 || info.Price.CachedInput != 0.5 {
			t.Errorf("%s: %+v", name, info)
		}
		if r := mustReply(t, m, ask("hello world"), "hi world"); r.Usage.Input != 7 || r.Usage.Cost != 13e-6 {
			t.Errorf("%s: usage %+v", name, r.Usage)
		}
		_, err = m.Complete(t.Context(), ask("else"))
		wantCode(t, err, v1.CodeModelOverloaded)
	}
}

func TestScriptFilesThatAreWrong(t *testing.T) {
	for name, text := range map[string]string{
		"empty":             "",
		"no rules":          "name: x\n",
		"unknown key":       "rules:\n  - replie: x\n",
		"bad expression":    "rules:\n  - match: '('\n",
		"bad delay":         "rules:\n  - delay: soon\n",
		"error has no code": "rules:\n  - error: {message: x}\n",
		"unknown finish":    "rules:\n  - finish: never\n",
		"negative":          "rules:\n  - nth: -1\n",
		"not yaml":          "\x00\x01{",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadScript(strings.NewReader(text))
			wantCode(t, err, v1.CodeModelScript)
		})
	}
	_, err := OpenScript(filepath.Join(t.TempDir(), "missing.yaml"))
	wantCode(t, err, v1.CodeModelScript)
}
