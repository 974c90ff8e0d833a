//go:build linux

package rlm

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func TestAnAnswerBeforeAnythingIsReadIsRefusedOnce(t *testing.T) {
	for _, c := range []struct {
		name, first string
		bare        bool // without a context
		turns       int
	}{
		{"a literal in code", block("FINAL('guess')"), false, 2},
		{"a literal in code, printed", block("print('guess')\nFINAL('guess')"), false, 2},
		{"a literal in the text", "FINAL(guess)", false, 2},
		{"ready", block("answer['content'] = 'guess'\nanswer['ready'] = True"), false, 2},
		{"the second time in the same cell", block("try:\n    FINAL('guess')\nexcept ValueError:\n    FINAL('guess')"), false, 1},
		{"computed from the context", block("FINAL(len(context))"), false, 1},
		{"an expression in the text", "FINAL(len(context))", false, 1},
		{"after a sub-call", block("FINAL(llm_query('x'))"), false, 1},
		{"without a context", block("FINAL('guess')"), true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, c.first)
			d.opts.AcceptUnread = false
			q := Question{Query: "Q?"}
			if !c.bare {
				q.Inputs = []Input{Text(strings.Repeat("more than the prompt quotes\n", 60))}
			}
			if res := d.answered(q); res.Turns != c.turns {
				t.Errorf("%d turns, want %d", res.Turns, c.turns)
			}
			if c.turns == 2 {
				contains(t, "what the model sees", d.seen(), "nothing of the context was read yet")
			}
		})
	}
}

func TestHowTheAnswerWasGiven(t *testing.T) {
	const fence = "```\n"
	first := block("n = len(context)\nprint(n)")
	schema := json.RawMessage(`{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}`)
	for _, c := range []struct {
		name    string
		replies []string
		schema  json.RawMessage
		want    string
		how     v1.AnswerHow
	}{
		{"code", []string{first, block("FINAL(n)")}, nil, "15", v1.HowCode},
		{"ready", []string{first, block("answer['content'] = n\nanswer['ready'] = True")}, nil, "15", v1.HowCode},
		{"an untagged block", []string{fence + "FINAL(len(context))\n" + fence}, nil, "15", v1.HowCode},
		{"text", []string{first, "FINAL(15)"}, nil, "15", v1.HowText},
		{"an expression in the text", []string{first, "FINAL(n)"}, nil, "15", v1.HowText},
		{"a variable in the text", []string{first, "FINAL_VAR(n)"}, nil, "15", v1.HowText},
		{"prose twice", []string{first, "It has 15 characters.\n", "It has 15\ncharacters."}, nil, "It has 15\ncharacters.", v1.HowProse},
		{"prose that differs, and a value in a block", []string{first, "I think it is 15.", fence + "15\n" + fence, block("FINAL(n)")}, nil, "15", v1.HowCode},
		{"prose twice before any code", []string{"It is 3.", "It is 3.", block("FINAL(len(context))")}, nil, "15", v1.HowCode},
		{"JSON of the schema", []string{first, "{\"n\": 15}\n"}, schema, `{"n": 15}`, v1.HowJSON},
		{"JSON in a block", []string{first, "Here it is:\n```json\n{\"n\": 15}\n```\n"}, schema, `{"n": 15}`, v1.HowJSON},
		{"JSON in an untagged block", []string{first, fence + "{\"n\": 15}\n" + fence}, schema, `{"n": 15}`, v1.HowJSON},
		{"JSON of another schema", []string{first, `{"m": 15}`, block("FINAL({'n': 15})")}, schema, `{"n": 15}`, v1.HowCode},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, c.replies...)
			e := d.engine()
			r, err := e.Start(t.Context(), Question{Query: "How long is it?", Inputs: []Input{Text("a short context")}, Schema: c.schema})
			if err != nil {
				t.Fatal(err)
			}
			res, err := r.Wait()
			if err != nil || res.Answer != c.want || res.How != c.how || d.root.calls != len(c.replies) {
				t.Fatalf("%q by %s after %d calls, want %q by %s: %v", res.Answer, res.How, d.root.calls, c.want, c.how, err)
			}
			again, err := e.Replay(t.Context(), r.ID())
			if err != nil {
				t.Fatal(err)
			}
			if res, err := again.Wait(); err != nil || res.Answer != c.want || res.How != c.how {
				t.Errorf("the replay answers %q by %s: %v", res.Answer, res.How, err)
			}
		})
	}
}

func TestCommandWordsRunOnlyWithTheDialect(t *testing.T) {
	for _, on := range []bool{false, true} {
		d := newDesk(t, "CODE(x = 41 + 1)", block("FINAL(globals().get('x', 'text'))"))
		d.opts.Dialect = on
		want := map[bool]string{false: "text", true: "42"}[on]
		if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != want {
			t.Errorf("dialect %v: %q, want %q", on, res.Answer, want)
		}
	}
}

// A run of an older version has no rules in its file. Its replies are read as they were read then.
func TestARunOfAnOlderVersionReplaysByItsRules(t *testing.T) {
	d := newDesk(t, "CODE(x = 1)", "The same.", "The same.", block("FINAL(x)"))
	d.opts.Dialect = true
	d.sub.answer = script(block("print(1)"))
	e := d.engine()
	r, err := e.Start(t.Context(), Question{Inputs: []Input{Text("a short context")}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := r.Wait(); err != nil || res.Answer != "The same." {
		t.Fatalf("%v %+v", err, res)
	}
	file := filepath.Join(r.Dir(), runFile)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var stored map[string]any
	if err := json.Unmarshal(data, &stored); err != nil || stored["rules"] == nil {
		t.Fatalf("%v %s", err, data)
	}
	delete(stored, "rules")
	if data, err = json.Marshal(stored); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := e.Replay(t.Context(), r.ID())
	if err != nil {
		t.Fatal(err)
	}
	// By the old rules, two equal texts are no answer, so the replay needs a reply that the run did not have.
	if _, err := again.Wait(); v1.CodeOf(err) != v1.CodeNotRecorded {
		t.Errorf("%v", err)
	}
}

func TestAModelThatHasLittleLeftIsTold(t *testing.T) {
	const note = `set answer["content"]`
	t.Run("turns", func(t *testing.T) {
		d := newDesk(t, block("print(1)"), block("print(2)"), block("print(3)"), block("FINAL(4)"))
		d.opts.Limits.Turns = new(4)
		d.answered(Question{Inputs: []Input{Text("a short context")}})
		for i, req := range d.root.asked[1:] {
			if got := strings.Contains(req.Messages[len(req.Messages)-1].Content, note); got != (i > 0) {
				t.Errorf("after turn %d: told %v", i+1, got)
			}
		}
	})
	t.Run("tokens", func(t *testing.T) {
		d := newDesk(t, block("print('x' * 12000)"))
		d.opts.Limits.Tokens = new(int64(30_000))
		res, err := d.run(Question{Inputs: []Input{Text("a short context")}})
		if err == nil || res.Reason != v1.ReasonTokens {
			t.Fatalf("%v %+v", err, res)
		}
		first, last := d.root.asked[1].Messages, d.root.asked[len(d.root.asked)-1].Messages
		told := func(m llm.Message) bool { return strings.Contains(m.Content, note) }
		if slices.ContainsFunc(first[1:], told) || !slices.ContainsFunc(last[1:], told) {
			t.Errorf("the first request after an output has %d messages, the last one %d", len(first), len(last))
		}
	})
}

func TestOldOutputsAreShortenedWhenTokensRunOut(t *testing.T) {
	d := newDesk(t, block("print('x' * 12000)"))
	d.opts.Limits.Tokens = new(int64(60_000))
	_, _ = d.run(Question{Inputs: []Input{Text("a short context")}})
	whole := d.root.calls
	if whole < 9 { // without shortening, the sixth turn has 18,000 tokens, and all before it 45,000
		t.Errorf("%d turns", whole)
	}
	m := d.root.asked[whole-2].Messages
	if old := m[3].Content; len(old) > 1000 || !strings.Contains(old, "of this old output are left out") {
		t.Errorf("the first output is %.700q", old)
	}
	if last := m[len(m)-1].Content; len(last) < 12_000 {
		t.Errorf("the last output has %d characters", len(last))
	}
}

func TestAReplyThatIsLargerThanTheWindowIsShortened(t *testing.T) {
	long := "The data:\n" + strings.Repeat("many words ", 8000) + "\n" + block("print('ran')")
	d := newDesk(t, long, block("FINAL('done')"))
	d.root.window, d.root.output = 16_000, 100_000
	d.root.answer = func(_ context.Context, n int, _ llm.Request) (string, error) {
		return []string{long, block("FINAL('done')")}[n-1], nil
	}
	unbound := unboundedModel{d.root}
	d.opts.Models = func(int, string) (llm.Model, error) { return unbound, nil }
	if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != "done" {
		t.Errorf("%q", res.Answer)
	}
	contains(t, "what the model sees", d.seen(), "ran")
	if reply := d.root.asked[1].Messages[2].Content; len(reply) > 16_000 || !strings.Contains(reply, "characters cut") {
		t.Errorf("its own reply has %d characters", len(reply))
	}
}

// unboundedModel ignores the limit of a reply, as some servers do.
type unboundedModel struct{ *fake }

func (m unboundedModel) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	req.MaxTokens = 0
	return m.fake.Complete(ctx, req)
}

func TestChildrenHaveTheirOwnContextAndSchema(t *testing.T) {
	const schema = "{'type': 'object', 'required': ['n'], 'properties': {'n': {'type': 'integer'}}}"
	look := block("n = len(context)\nprint(n)")
	for _, c := range []struct {
		name, code string
		child      []string
		depth      int
		want       string
	}{
		{"a text", "FINAL(rlm_query('How long?', context='x' * 9))", []string{block("FINAL(len(context))")}, 2, "9"},
		{"a list", "FINAL(rlm_query(question='How many?', context=['a', 'b']))", []string{block("FINAL([type(context).__name__, len(context)])")}, 2, `["list", 2]`},
		{"a dict", "FINAL(rlm_query('Which?', context={'a': {1}}))", []string{block("FINAL(context['a'])")}, 2, "[1]"},
		{"a schema", "r = rlm_query('How long?', context='xyz', schema=" + schema + ")\nFINAL(r['n'] + 1)", []string{look, block("FINAL('three')"), block("FINAL({'n': n})")}, 2, "4"},
		{"a schema without a context", "FINAL(rlm_query('Say 7', schema=" + schema + ")['n'])", []string{block("FINAL({'n': 7})")}, 2, "7"},
		{"a batch", "r = rlm_query_batched([{'question': 'How long?', 'context': 'xy'}, 'plain'])\nFINAL(r)", []string{block("FINAL(len(context))")}, 2, `["2", "5"]`},
		{"a plain call at the depth limit", "FINAL(rlm_query('How long?', context='xyz', schema=" + schema + ")['n'])", []string{"three", `{"n": 3}`}, 1, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block("_ = context\n"+c.code))
			d.opts.AcceptUnread, d.opts.PlainBelow = false, 1<<14 // a small prompt of a child is not a plain call
			d.opts.Limits.Depth = new(c.depth)
			d.sub.answer = script(c.child...)
			res := d.answered(Question{Query: "Q?", Inputs: []Input{Text(strings.Repeat("a long context ", 20_000))}})
			if res.Answer != c.want {
				t.Errorf("%q, want %q", res.Answer, c.want)
			}
			if last := d.sub.asked[0].Messages; c.depth == 2 && (len(last) != 2 || last[0].Role != llm.System) {
				t.Errorf("the child is asked %+v", last)
			}
		})
	}
	for code, want := range map[string]string{
		"rlm_query('Q', context=object())":                    "context= must be a text",
		"rlm_query('Q', schema={'type': 'thing'})":            "invalid schema",
		"rlm_query_batched([{'question': 'Q', 'contxt': 1}])": "unknown key 'contxt'",
	} {
		d := newDesk(t, block(code), block("FINAL(1)"))
		d.answered(Question{Inputs: []Input{Text("a short context")}})
		contains(t, code, d.seen(), want)
	}
}

func TestAChildWithoutAnAnswerReturnsWhatItHas(t *testing.T) {
	for _, c := range []struct{ name, code, want string }{
		{"one", "r = rlm_query('x' * 3000)\nFINAL([isinstance(r, Partial), r.reason, r])", `[true, "turns", "[no answer: the child run ended early (turns); what it had so far:]\nhalf of it"]`},
		{"in a batch", "r = rlm_query_batched(['x' * 3000, 'y' * 3000])\nFINAL([type(x).__name__ for x in r])", `["Partial", "str"]`},
		{"with a schema", "try:\n    rlm_query('x' * 3000, schema={'type': 'integer'})\nexcept QueryError as e:\n    FINAL('raised')", "raised"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block(c.code))
			d.opts.Limits.Turns = new(1)
			d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
				for _, m := range req.Messages {
					if strings.Contains(m.Content, "write your best answer") {
						return "half of it", nil
					}
				}
				return block("print('working')\nif context[0] == 'y': FINAL('done')"), nil
			}
			e := d.engine()
			r, err := e.Start(t.Context(), Question{Inputs: []Input{Text("a short context")}})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := r.Wait(); err != nil || res.Answer != c.want {
				t.Fatalf("%v %+v", err, res)
			}
			again, err := e.Replay(t.Context(), r.ID())
			if err != nil {
				t.Fatal(err)
			}
			if res, err := again.Wait(); err != nil || res.Answer != c.want {
				t.Errorf("the replay: %v %+v", err, res)
			}
		})
	}
}
