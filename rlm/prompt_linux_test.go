//go:build linux

package rlm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/terms"
	"github.com/recluse-dev/recluse/sandbox"
)

// firstMessages returns the system prompt and the question of the n-th request to the root model.
func (d *desk) firstMessages(n int) (system, first string) {
	d.root.mu.Lock()
	defer d.root.mu.Unlock()
	m := d.root.asked[n].Messages
	return m[0].Content, m[1].Content
}

// loadedBy returns what the context event of a run describes.
func loadedBy(t *testing.T, e *Engine, run string) v1.ContextLoaded {
	t.Helper()
	var out v1.ContextLoaded
	for ev, err := range e.Events(run) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == v1.KindContext && ev.Node == "0" {
			if err := ev.Decode(&out); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

func TestThePromptDescribesEveryKindOfContext(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) Input {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return File(p)
	}
	long := strings.Repeat("a", 400) + "\n" + strings.Repeat("z", 400) + "\n"
	file("tree/b.log", "log")
	file("tree/it's.log", "log")
	file("tree/README", "read")
	mails := `{"from": "Anna", "to": ["Bert"]}` + "\n\n" + `{"from": "Bert"}` + "\n"
	for _, c := range []struct {
		name  string
		in    Input
		wants []string
		lacks string
		value string // of the example
	}{
		{
			"a long text", Text(long),
			[]string{
				"context: str of 802 characters in 2 lines; for example context[:1000]",
				"its beginning ---\n" + strings.Repeat("a", 300) + "\n---", "its end ---\n" + strings.Repeat("z", 299) + "\n\n---",
			},
			strings.Repeat("a", 301), `"` + strings.ReplaceAll(long, "\n", `\n`) + `"`,
		},
		{"a short text", Text("short"), []string{"str of 5 characters in 1 lines", "all of it ---\nshort\n---"}, "its end", `"short"`},
		{
			"a list of texts", List([]string{"one", "the last"}),
			[]string{"list of 2 items, 11 characters; the first item is a str; for example context[0][:1000]", "one\n--- its end ---\nthe last"},
			"", `"one"`,
		},
		{
			"a list of objects", JSON([]any{map[string]any{"id": 7, "who": "Anna"}}),
			[]string{"the first item is a dict with the keys id, who; for example context[0]['id']", "{'id': 7, 'who': 'Anna'}"},
			"", "7",
		},
		{"an object", JSON(map[string]any{"mails": []int{5}}), []string{"dict of 1 items; its keys: mails; for example context['mails'][0]"}, "", "5"},
		{"a number", JSON(5), []string{"context: int; for example context\n"}, "", "5"},
		{"an empty list", JSON([]int{}), []string{"context: list; for example context\n"}, "", "[]"},
		{
			"a directory", File(filepath.Join(dir, "tree")),
			[]string{"Directory of 3 files, 10 bytes (2 .log: 6, 1 without extension: 4); a mapping of paths to texts, first README, b.log, it's.log;"},
			"", `"read"`,
		},
		{
			"JSON Lines", file("mails.jsonl", mails),
			[]string{"as jsonl, it has rows, each a dict with the keys from, to, such as rows(context)[0]['from']"},
			"", "",
		},
		{"CSV", file("list.csv", "name;age\n\"a\nb\";5\n"), []string{"as csv, it has rows, each a dict with the keys name, age, such as rows(context)[0]['name']"}, "", ""},
		{"no rows", file("none.jsonl", "broken"), []string{"str of 6 characters"}, "it has rows", ""},
		{"cp1252", file("old.txt", "caf\xe9"), []string{"decoded from cp1252", "café"}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			e := d.engine()
			messages, err := e.Prompt(t.Context(), Question{Query: "Q?", Inputs: []Input{c.in}})
			if err != nil || len(messages) != 2 || d.root.calls != 0 {
				t.Fatal(messages, err)
			}
			for _, want := range c.wants {
				contains(t, "the question", messages[1].Content, want)
			}
			if c.lacks != "" && strings.Contains(messages[1].Content, c.lacks) {
				t.Errorf("%q is in\n%s", c.lacks, messages[1].Content)
			}
			example := between(messages[1].Content, "for example ", "\n")
			d.root.answer = script(block("FINAL(" + example + ")"))
			res := d.answered(Question{Query: "Q?", Inputs: []Input{c.in}})
			note := loadedBy(t, e, res.Run).Contexts[0]
			same(t, "example", note.Example, example)
			if c.value != "" {
				quoted, err := json.Marshal(res.Answer)
				if err == nil && res.Value != nil {
					quoted = res.Value
				}
				same(t, "value of the example", string(quoted), c.value)
			}
			if note.Rows != nil {
				d.root.calls, d.root.answer = 0, script(block("FINAL("+note.Rows.Example+")"))
				d.answered(Question{Inputs: []Input{c.in}})
			}
		})
	}
}

// between returns the part of a text after one mark and before the next.
func between(s, after, before string) string {
	_, s, _ = strings.Cut(s, after)
	s, _, _ = strings.Cut(s, before)
	return s
}

func TestTheShownPromptIsTheOneThatIsSent(t *testing.T) {
	d := newDesk(t, block("FINAL(1)"))
	d.opts.Limits.Time = new(v1.Duration(v1.NoLimit)) // the prompt has the seconds that are left
	e := d.engine()
	q := func() Question {
		return Question{Query: "Q?", Inputs: []Input{Text(strings.Repeat("text ", 400))}, Prompt: "plan"}
	}
	shown, err := e.Prompt(t.Context(), q())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range e.Runs() {
		t.Errorf("a run was stored: %v", err)
	}
	d.answered(q())
	if sent := d.root.asked[0].Messages; !slices.Equal(shown, sent) {
		t.Errorf("shown\n%+v\nsent\n%+v", shown, sent)
	}
	d.opts.PlainBelow = 1000
	if shown, err = d.engine().Prompt(t.Context(), Question{Query: "Q?", Inputs: []Input{Text("small")}}); err != nil || len(shown) != 1 {
		t.Fatal(shown, err)
	}
	contains(t, "the plain prompt", shown[0].Content, "small\n\nQuestion: Q?")
}

func TestTheEnvironmentIsInThePrompt(t *testing.T) {
	d := newDesk(t, block("import sys, json\nFINAL('%d.%d' % sys.version_info[:2])"))
	d.opts.Limits.CellTime = new(v1.Duration(90e9))
	res := d.answered(Question{Query: "Q?"})
	system, first := d.firstMessages(0)
	contains(t, "the system prompt", system, "Python "+res.Answer)
	contains(t, "the system prompt", system, "no network, at most 1m30s of run time")
	contains(t, "the system prompt", system, "a failed call is a Failure object")
	contains(t, "the question", first, "There is no context; only the question.")
	d.opts.ErrorStrings = true
	d.answered(Question{Query: "Q?"})
	system, _ = d.firstMessages(1)
	contains(t, "the system prompt", system, `a failed call is a text that begins with "Error:"`)
}

func TestAFollowUpQuestionIsToldOfHistoryAndVariables(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d := newDesk(t, block("kept = 5\nFINAL('five')"))
	first := d.answered(Question{Query: "a", Inputs: []Input{Text("one")}, Sandbox: m})
	d.answered(Question{Query: "b", Sandbox: m, History: first.Conversation})
	system, question := d.firstMessages(1)
	contains(t, "the system prompt", system, fmt.Sprintf("- history: the conversation before this question, a list of %d dicts", len(first.Conversation)))
	contains(t, "the question", question, "Variables from before still exist: context_0, kept. SHOW_VARS() lists all.")
	if strings.Contains(question, "There is no context;") {
		t.Errorf("a contradiction: %s", question)
	}
	d.answered(Question{Query: "c", Inputs: []Input{Text("two")}, Sandbox: m, History: first.Conversation})
	system, question = d.firstMessages(2)
	contains(t, "the system prompt", system, "- context_1: the data")
	contains(t, "the question", question, "context_1: str of 3 characters")
	d.answered(Question{Query: "a question of a chat client", Inputs: []Input{Text("long")}, History: first.Conversation[:1]})
	system, question = d.firstMessages(3)
	contains(t, "the system prompt", system, "a list of 1 dicts with role and content")
	if strings.Contains(question, "Variables from before") {
		t.Errorf("a new sandbox has no variables: %s", question)
	}
}

func TestADirectoryCanBeIndexed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesk(t, block(`
assert list(context[:2]) == ["a.txt", "b.txt"] and context[-1:]["c.txt"] == "text of c.txt"
assert context[0] == "text of a.txt" == context.get("a.txt") and context.get("x") is None and context.get("x", 1) == 1
assert list(context.values())[2] == "text of c.txt" and dict(context.items())["b.txt"] == "text of b.txt"
assert [p for p in context] == list(context.keys()) and len(context) == 3 and "a.txt" in context and 0 not in context
assert [context[i] for i in range(len(context))] == list(context.values())
assert "'a.txt'" in repr(context)
try:
    context["d.txt"]
except KeyError as e:
    assert "such as 'a.txt': use list(context), or context[:3]" in str(e), e
FINAL("all")`))
	same(t, "answer", d.answered(Question{Inputs: []Input{File(dir)}}).Answer, "all")
}

func TestRowsOfATextAreParsed(t *testing.T) {
	d := newDesk(t, block(`
assert rows() == rows(context) == [{"a": 1}, [2]], rows()
assert rows(context_1) == [{"name": "a\nb", "age": "5"}], rows(context_1)
assert rows("x\ty\n1\t2") == [{"x": "1", "y": "2"}] == rows("x\ty\n1\t2", format="tsv")
assert rows("") == [] == rows("", "csv")
for bad, want in (('{"a": 1}\n{', "line 2 is not JSON"), ):
    try:
        rows(bad)
    except ValueError as e:
        assert want in str(e), e
    else:
        assert False
try:
    rows(5)
except TypeError as e:
    assert "parses a str" in str(e)
assert len(rows("n\n" + "x" * 300000)[0]["n"]) == 300000
FINAL("all")`))
	res := d.answered(Question{Inputs: []Input{Text("{\"a\": 1}\n\n[2]\n"), Text("\ufeffname;age\r\n\"a\nb\";5\r\n")}})
	same(t, "answer", res.Answer, "all")
}

const kitchen = `{"name": "kitchen", "data": {"onion": {"id": 1, "nterm": "vegetable"}, "leek": {"id": 2, "nterm": "vegetable"},
"invoice": {"id": 3, "nterm": "bill"}, "due date": {"id": 4, "nterm": "bill"}}}`

func TestChunksAreCutAtConcepts(t *testing.T) {
	th, err := terms.Parse("t.json", []byte(kitchen))
	if err != nil {
		t.Fatal(err)
	}
	graph, err := terms.NewGraph(th, terms.GraphOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(gate.Options{Graphs: map[string]*terms.Graph{"cook": graph}, Role: "cook", GraphMode: gate.ModeOff})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	// Each part is about one concept, and the mentions are not at the beginning of its lines.
	part := func(i int) string {
		return strings.Repeat([]string{"we cut the ünion thin, an onion. And a leek.\n", "the invoice has a Due  Date\n"}[i%2], 30)
	}
	var text strings.Builder
	for i := range 6 {
		text.WriteString(part(i))
	}
	d := newDesk(t, block(`
parts = chunks(context, 1500, by="terms")
assert "".join(parts) == context and len(parts) == 6, [len(p) for p in parts]
assert all(("onion" in p) != ("invoice" in p) for p in parts), parts
assert [p[:6] for p in parts] == ["we cut", "the in"] * 3
small = chunks(context, 500, by="terms")
assert "".join(small) == context and all(len(p) <= 500 for p in small)
assert all(("onion" in p) != ("invoice" in p) for p in small)
line = "An onion is here. Now an invoice follows. " * 3
assert [p[:6] for p in chunks(line, 25, by="terms")][:2] == ["An oni", "Now an"], chunks(line, 25, by="terms")
assert chunks("no term at all " * 100, 400, by="terms") == chunks("no term at all " * 100, 400)
assert "".join(chunks("", 5, by="terms")) == ""
big = chunks(context * 2000, 40000, by="terms")
assert "".join(big) == context * 2000 and all(len(p) <= 40000 for p in big)
assert chunks(context, 1500, overlap=10, by="terms")[1].startswith(context[len(parts[0]) - 10:][:20])
FINAL("all")`))
	d.opts.Gate = g
	same(t, "answer", d.answered(Question{Inputs: []Input{Text(text.String())}}).Answer, "all")
	system, _ := d.firstMessages(0)
	contains(t, "the system prompt", system, `by="terms"`)

	d = newDesk(t, block(`
for by in ("terms", "words"):
    try:
        chunks(context, 10, by=by)
    except Exception as e:
        print(type(e).__name__, e)
`), block("FINAL(1)"))
	d.answered(Question{Inputs: []Input{Text("an onion")}})
	contains(t, "without a thesaurus", d.seen(), "QueryError find terms: no thesaurus is configured for this run")
	contains(t, "an unknown way", d.seen(), `ValueError by must be "terms", or left out`)
	system, _ = d.firstMessages(0)
	if strings.Contains(system, `by="terms"`) {
		t.Errorf("the prompt offers terms without a thesaurus: %s", system)
	}
}

func TestATextInAnotherEncodingIsNotCounted(t *testing.T) {
	dir := t.TempDir()
	plain := prose(3000, 4) + "ä"
	for name, text := range map[string]string{"old.txt": strings.Repeat("a caf\xe9 ", 100_000), "new.txt": plain} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesk(t, block("assert 'café' in context['old.txt']\nllm_query(context['old.txt'])\nllm_query(context['new.txt'])\nFINAL(1)"))
	d.sub.window = 1 << 30
	c := d.answered(Question{Inputs: []Input{File(dir)}}).Coverage
	if want := []Omitted{{Why: v1.OmittedEncoding, Files: 1, Bytes: 700_000}}; !slices.Equal(c.Omitted, want) {
		t.Errorf("omitted: %+v", c.Omitted)
	}
	same(t, "bytes", c.Bytes, int64(len(plain)))
	same(t, "read", c.Read, int64(len(plain)))
	same(t, "percent", c.Percent, 100)
}

func TestAProfileIsKeptByResumeForkAndReplay(t *testing.T) {
	d := newDesk(t, block("FINAL(rlm_query('go', context='some text'))"))
	d.opts.Limits.Depth = new(3)
	d.sub.answer = script(block("FINAL('child')"))
	d.opts.Prompts.Profiles = []string{"1:compact", "official"}
	first := d.answered(Question{Query: "Q?"})
	system, _ := d.firstMessages(0)
	contains(t, "the root", system, "You have to answer a query")
	contains(t, "the child", d.sub.asked[0].Messages[0].Content, "Answer a question about data in Python variables.")

	d.opts.Prompts.Profiles = nil // the run keeps its own rules
	d.root.calls = 0
	fork, err := d.engine().Fork(t.Context(), first.Run, 0, ContinueOptions{})
	waited(t, fork, err)
	system, _ = d.firstMessages(1)
	contains(t, "the fork", system, "You have to answer a query")
	e := d.engine()
	replay, err := e.Replay(t.Context(), first.Run)
	waited(t, replay, err)
	p, err := e.readRun(replay.ID(), -1, true)
	if err != nil || !slices.Equal(p.saved.Prompts.Rules, []string{"1:compact", "official"}) {
		t.Errorf("the replay: %+v %v", p.saved.Prompts, err)
	}

	own := newDesk(t)
	own.root.answer = script(block("x = 1"))
	own.opts.Limits.Turns = new(1)
	res, err := own.run(Question{Query: "Q?", System: "OWN {{.Depth}}", Prompt: "compact"})
	if err == nil {
		t.Fatal("an answer without FINAL")
	}
	own.root.answer = script(block("FINAL(x)"))
	r, err := own.engine().Resume(t.Context(), res.Run, ContinueOptions{Limits: v1.RunLimits{Turns: new(3)}})
	waited(t, r, err)
	for _, i := range []int{0, len(own.root.asked) - 1} {
		system, _ = own.firstMessages(i)
		same(t, "the system prompt", system, "OWN 0")
	}
}

func TestTheExampleOfACorrectionCannotRun(t *testing.T) {
	for _, profile := range PromptProfiles() {
		d := newDesk(t, "no code")
		d.root.answer = script("no code", "placeholder", block("FINAL('done')"))
		var nothing strings.Builder
		if err := profiles()[profile]["nothing"].Execute(&nothing, PromptData{}); err != nil {
			t.Fatal(err)
		}
		d.root.answer = script(nothing.String(), block("FINAL('done')"))
		res := d.answered(Question{Query: "Q?", Prompt: profile})
		same(t, "answer", res.Answer, "done")
		contains(t, "an echo of the correction", d.seen(), "SyntaxError")
	}
}
