package runview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/redact"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

const key = "sk-ant-0123456789abcdefghijklmnopqrstuvwxyz"

// hostile is what a model may write to break a page or a terminal.
const hostile = "</script></style></pre></details><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">" +
	"\x1b[2J\x00\x07\u202e{{.}} javascript:alert(1) <a href=\"javascript:alert(1)\">x</a>"

// novel returns the events of a run whose model writes a text in every place, with a sub-call, a failed one, a tool and a
// child run that fails.
func novel(t *testing.T, text string) *story {
	t.Helper()
	s := &story{t: t}
	s.add("0", 0, 0, v1.KindRunStarted, v1.RunStarted{Run: "r1", Query: "Who? " + text, Model: "scripted/m" + text})
	s.add("0", 0, 0, v1.KindContext, v1.ContextLoaded{Contexts: []v1.ContextNote{{Variable: "context_0", Name: text, Type: "str", Size: 99}}})
	s.add("0", 0, 1, v1.KindTurnStarted, nil)
	s.add("0", 0, 1, v1.KindCallStarted, v1.CallStarted{ID: "c1", Call: v1.CallTurn, Model: "m", Prompt: "p1"})
	s.add("0", 0, 1, v1.KindCallEnded, v1.CallEnded{
		ID: "c1", Call: v1.CallTurn, Model: "scripted/m", Text: "I look. " + text + "\n```repl\nprint(1)\n```", Usage: llm.Usage{Calls: 1, Input: 100, Output: 20, Cost: 0.01},
	})
	s.add("0", 0, 1, v1.KindCellStarted, v1.CellStarted{Lang: "python", Code: "import re  # " + text + "\nprint('" + text + "')"})
	for i, fail := range []*v1.EventError{nil, {Code: v1.CodeModelFailed, Message: "broken " + text}} {
		id := fmt.Sprintf("c%d", i+2)
		s.add("0", 0, 1, v1.KindCallStarted, v1.CallStarted{ID: id, Call: v1.CallSub, Model: "sub", Chars: 5000, Preview: "Summarize " + text, Prompt: "p2"})
		s.add("0", 0, 1, v1.KindCallEnded, v1.CallEnded{
			ID: id, Call: v1.CallSub, Model: "scripted/sub", Text: "a summary " + text, Usage: llm.Usage{Calls: 1, Input: 1000, Output: 5, Cost: 0.02, Estimated: true}, Wall: 1500 * time.Millisecond, Error: fail,
		})
	}
	s.add("0", 0, 1, v1.KindTool, v1.ToolUsed{Name: "price", Args: json.RawMessage(`{"of":"tea"}`), Error: "no shop " + text})
	s.add("0", 0, 1, v1.KindChildStarted, v1.ChildStarted{Node: "0/1-a", Model: "scripted/sub", Preview: "Count them " + text, Chars: 99, Prompt: "p3"})
	s.add("0/1-a", 1, 1, v1.KindTurnStarted, nil)
	s.add("0/1-a", 1, 1, v1.KindCallStarted, v1.CallStarted{ID: "c4", Call: v1.CallTurn, Model: "m"})
	s.add("0/1-a", 1, 1, v1.KindCallEnded, v1.CallEnded{ID: "c4", Call: v1.CallTurn, Model: "scripted/sub", Text: text, Usage: llm.Usage{Calls: 1, Input: 7, Output: 1}})
	s.add("0/1-a", 1, 1, v1.KindTurnEnded, v1.TurnEnded{Reply: text, Observation: "Reply with code. " + text})
	s.add("0", 0, 1, v1.KindChildEnded, v1.ChildEnded{Node: "0/1-a", Reason: v1.ReasonFormat, Answer: "half " + text, Partial: true, Error: &v1.EventError{Message: "3 replies in a row had nothing to run " + text}})
	s.add("0", 0, 1, v1.KindCellEnded, v1.CellEnded{
		Outcome: v1.Outcome{Ended: v1.EndedExit, Wall: 2 * time.Second}, OK: true, Stdout: "printed " + text + "\n", Stderr: "warned " + text, Result: "value " + text, Produced: 8,
	})
	s.add("0", 0, 1, v1.KindTurnEnded, v1.TurnEnded{Reply: "I look. " + text + "\n```repl\nprint(1)\n```", Observation: "printed"})
	s.add("0", 0, 0, v1.KindRunEnded, rlm.Result{
		Run: "r1", Reason: v1.ReasonAnswered, How: v1.HowCode, Answer: "The end. " + text, Turns: 1, Children: 1, Wall: 18 * time.Second,
		Usage: llm.Usage{Calls: 4, Input: 2107, Output: 31, Cost: 0.05, Estimated: true}, Coverage: &rlm.Coverage{Bytes: 99, Read: 33},
		By: []v1.Spent{{Model: "scripted/m" + text, Usage: llm.Usage{Calls: 1, Input: 100, Output: 20, Cost: 0.01}}},
	})
	return s
}

func transcript(s *story) *Transcript {
	tr := NewTranscript()
	for _, e := range s.events {
		tr.Event(e)
	}
	return tr
}

func asText(t *testing.T, tr *Transcript, o TranscriptOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := tr.WriteText(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func asPage(t *testing.T, tr *Transcript, o TranscriptOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := tr.WriteHTML(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const novelText = `Run r1

Question  Who? X
Model     scripted/mX
Context   context_0 (X): str of 99 characters
Started   2026-09-01 12:00:00 UTC

Turn 1 · scripted/m · 120 tokens · $0.0100 · 0 ms
I look. X

  python:
    import re  # X
    print('X')
  2 calls · ≈2,010 tokens · ≈$0.0400 · 1 failed:
    c2 scripted/sub · ≈1,005 tokens · ≈$0.0200 · 1.5 s
      prompt (5,000 characters) Summarize X
      reply  a summary X
    c3 scripted/sub · ≈1,005 tokens · ≈$0.0200 · 1.5 s
      prompt (5,000 characters) Summarize X
      failed broken X
  tool price({"of":"tea"}) failed: no shop X

  Child run 0/1-a · scripted/sub · 1 turn · 8 tokens · $0.0000 · 5.0 s
    question: Count them X

    Turn 1 · scripted/sub · 8 tokens · $0.0000 · 0 ms
    X
      Reply with code. X

    ended without an answer: format: 3 replies in a row had nothing to run X
    so far: half X

  output (2.0 s):
    printed X
    warned X
    value X

Answer (code)
The end. X

1 turn, 1 child run · 4 model calls · ≈2,138 tokens · ≈$0.0500 · 18 s
models have read 33.3 % of the context (33 of 99 bytes)
  depth 0: scripted/mX: 1 call · 120 tokens · $0.0100
`

func TestTranscript(t *testing.T) {
	if got := asText(t, transcript(novel(t, "X")), TranscriptOptions{}); got != novelText {
		t.Errorf("got:\n%s\nwant:\n%s", got, novelText)
	}
}

func TestATranscriptCutsLongTexts(t *testing.T) {
	long := strings.Repeat("a line\n", 100) + strings.Repeat("x", 1000) + "END"
	tr := transcript(novel(t, long))
	short := asText(t, tr, TranscriptOptions{})
	wants(t, short, " more lines …", "more characters)", "Long texts are cut; --full shows all.")
	if len(short) > 20_000 {
		t.Errorf("%d bytes", len(short))
	}
	full := asText(t, tr, TranscriptOptions{Full: true})
	if strings.Contains(full, "more lines") || strings.Contains(full, "--full") || strings.Count(full, "xEND") < 10 {
		t.Errorf("the full transcript is cut: %s", full)
	}
}

func TestATranscriptHasNoControlCharacters(t *testing.T) {
	for _, full := range []bool{false, true} {
		got := asText(t, transcript(novel(t, hostile)), TranscriptOptions{Full: full})
		if i := strings.IndexAny(got, "\x00\x07\x1b\u202e"); i >= 0 {
			t.Errorf("full %v: control character in %q", full, got[max(0, i-40):i+20])
		}
	}
}

func TestAFullTranscriptHasThePrompts(t *testing.T) {
	tr := transcript(novel(t, "X"))
	tr.SetPrompts(&v1.RunPrompts{
		Prompts: map[string]v1.PromptEnd{"p0": {Role: llm.System, Text: "s"}, "p1": {Before: "p0", Role: llm.User, Text: "q"}, "p2": {Role: llm.User, Text: "long"}, "p3": {Role: llm.User, Text: "child"}},
		Texts:   map[string]string{"s": "You write code.", "q": "The question is.", "long": "Summarize all of this text.", "child": "Count them, all of them."},
	})
	all := []string{"You write code.", "The question is.", "Summarize all of this text.", "Count them, all of them."}
	wants(t, asText(t, tr, TranscriptOptions{Full: true}), append(all, "  prompt, system:\n", "prompt Summarize all of this text.\n")...)
	wants(t, asPage(t, tr, TranscriptOptions{}), all...)
	if got := asText(t, tr, TranscriptOptions{}); strings.Contains(got, "You write code.") {
		t.Errorf("prompts in a short transcript:\n%s", got)
	}
}

func TestARunThatIsStillWorkedOn(t *testing.T) {
	s := beginning(t)
	s.events = s.events[:len(s.events)-1]
	for _, got := range []string{asText(t, transcript(s), TranscriptOptions{State: "running"}), asPage(t, transcript(s), TranscriptOptions{State: "running"})} {
		wants(t, got, "running", "0/1", "Count them")
	}
}

func TestAPageHasNoSecrets(t *testing.T) {
	s := novel(t, "the key is "+key+", the password is open-sesame-42")
	got := asPage(t, transcript(s), TranscriptOptions{Full: true, Redact: redact.New([]string{"open-sesame-42"}).Text})
	if strings.Contains(got, key) || strings.Contains(got, "open-sesame-42") {
		t.Error("a secret is in the page")
	}
	wants(t, got, "the key is [secret], the password is [secret]")
}

func TestAPageLoadsAndRunsNothing(t *testing.T) {
	got := asPage(t, transcript(novel(t, hostile)), TranscriptOptions{Full: true})
	for _, bad := range []string{"<script", "<img", "<a href=\"javascript", "http://", "https://", "url(", "@import", "\x1b", "\x00", "\u202e"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	for _, tag := range regexp.MustCompile(`<[^>]*>`).FindAllString(got, -1) {
		if regexp.MustCompile(`\s(src|on\w+|href="[^#])`).MatchString(tag) {
			t.Errorf("the element %s loads or runs something", tag)
		}
	}
	wants(t, got, "&lt;script&gt;", "␛[2J␀␇\uFFFD{{.}}", `content="default-src 'none'; style-src 'unsafe-inline'"`)
}

func TestHighlight(t *testing.T) {
	for _, tt := range []struct{ lang, code, want string }{
		{"python", "for x in y: # all", "k:for| x |k:in| y: |c:# all"},
		{"python", `s = 'it\'s' + "a" # b`, `s = |s:'it\'s'| + |s:"a"| |c:# b`},
		{"python", "\"\"\"a\nb\"\"\"\nforx", "s:\"\"\"a\nb\"\"\"|\nforx"},
		{"python", "'open\nif", "s:'open|\n|k:if"},
		{"bash", "if echo $#; then", "k:if| echo $#; |k:then"},
		{"cobol", "IF é", "IF é"},
	} {
		var parts []string
		all := ""
		for _, x := range highlight(tt.lang, tt.code) {
			all += x.Text
			if x.Class != "" {
				x.Text = x.Class + ":" + x.Text
			}
			parts = append(parts, x.Text)
		}
		if got := strings.Join(parts, "|"); got != tt.want || all != tt.code {
			t.Errorf("%q: %q, want %q", tt.code, got, tt.want)
		}
	}
}
