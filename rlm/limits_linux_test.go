//go:build linux

package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func TestEveryBadEndHasItsReasonAndAPartialAnswer(t *testing.T) {
	draft := block("answer['content'] = 'so far'\nprint(1)")
	for _, c := range []struct {
		name   string
		texts  []string
		change func(d *desk, l *v1.RunLimits)
		reason Reason
		answer string
	}{
		{"turns run out", []string{block("print(1)"), block("print(2)"), "It is probably 5."}, func(_ *desk, l *v1.RunLimits) { l.Turns = new(2) }, v1.ReasonTurns, "It is probably 5."},
		{"turns run out with a draft", []string{draft, block("print(2)")}, func(_ *desk, l *v1.RunLimits) { l.Turns = new(2) }, v1.ReasonTurns, "so far"},
		{"tokens run out", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Tokens = new(int64(3000)) }, v1.ReasonTokens, "so far"},
		{"no tokens at all", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Tokens = new(int64(0)) }, v1.ReasonTokens, ""},
		{"money runs out", []string{draft}, func(d *desk, l *v1.RunLimits) {
			d.root.price = &llm.Price{Input: 10, Output: 10}
			l.Cost = new(0.02)
		}, v1.ReasonCost, "so far"},
		{"no money at all", []string{draft}, func(d *desk, l *v1.RunLimits) {
			d.root.price = &llm.Price{Input: 10, Output: 10}
			l.Cost = new(0.0)
		}, v1.ReasonCost, ""},
		{"calls run out", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Calls = new(int64(2)) }, v1.ReasonCalls, "so far"},
		{"no calls at all", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Calls = new(int64(0)) }, v1.ReasonCalls, ""},
		{"no turns at all", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Turns = new(0) }, v1.ReasonTurns, ""},
		{"no time at all", []string{draft}, func(_ *desk, l *v1.RunLimits) { l.Time = new(v1.Duration(0)) }, v1.ReasonTime, ""},
		{"time runs out in a cell", []string{draft, block("import time\nwhile True: time.sleep(0.01)")}, func(_ *desk, l *v1.RunLimits) { l.Time = new(v1.Duration(3 * time.Second)) }, v1.ReasonTime, "so far"},
		{"time runs out in the model", []string{draft}, func(d *desk, l *v1.RunLimits) {
			l.Time = new(v1.Duration(3 * time.Second))
			d.root.answer = func(ctx context.Context, n int, _ llm.Request) (string, error) {
				if n == 1 {
					return draft, nil
				}
				<-ctx.Done()
				return "", ctx.Err()
			}
		}, v1.ReasonTime, "so far"},
		{"CPU time runs out", []string{draft, block("x = 0\nwhile x < 30000000: x += 1")}, func(_ *desk, l *v1.RunLimits) { l.CPU = new(v1.Duration(100 * time.Millisecond)) }, v1.ReasonCPU, "so far"},
		{"code that always fails", []string{draft, block("1/0")}, func(_ *desk, l *v1.RunLimits) { l.Errors = new(2) }, v1.ReasonErrors, "so far"},
		{"empty replies", []string{""}, nil, v1.ReasonFormat, ""},
		{"replies without code", []string{"I would look at the data."}, nil, v1.ReasonFormat, "I would look at the data."},
		{"garbage", []string{"\x00\xff```\xfe"}, nil, v1.ReasonFormat, "\x00\xff```\xfe"},
		{"a model that fails", []string{""}, func(d *desk, _ *v1.RunLimits) {
			d.root.answer = func(_ context.Context, n int, _ llm.Request) (string, error) {
				if n == 1 {
					return draft, nil
				}
				return "", errors.New("503 overloaded")
			}
		}, v1.ReasonModel, "so far"},
		{"a child that asks itself for ever", []string{block("print(rlm_query('again'))"), "nobody knows"}, func(d *desk, l *v1.RunLimits) {
			l.Depth, l.Calls, l.Turns = new(3), new(int64(12)), new(3)
			d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
				if req.Tags["call"] == v1.CallSub {
					return "the bottom", nil
				}
				return block("print(rlm_query(context + '!'))"), nil
			}
		}, v1.ReasonCalls, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d *desk
			var res *Result
			var err error
			for patience := time.Duration(1); ; patience *= 4 {
				d = newDesk(t, c.texts...)
				if c.change != nil {
					c.change(d, &d.opts.Limits)
				}
				d.opts.Limits.Time = new(*d.opts.Limits.Time * v1.Duration(patience))
				if res, err = d.run(Question{Query: "?", Inputs: []Input{Text("some text")}}); err == nil || res == nil {
					t.Fatalf("no error, or no result: %v %+v", err, res)
				}
				if c.reason != v1.ReasonTime || res.Answer == c.answer || patience > 4 {
					break // otherwise the host may have been too busy for the first turn
				}
			}
			same(t, "reason", res.Reason, c.reason)
			same(t, "partial", res.Partial, true)
			if c.answer != "" || !strings.Contains(c.name, "child") {
				same(t, "answer", res.Answer, c.answer)
			}
			if _, ok := errors.AsType[*v1.Error](err); !ok {
				t.Errorf("an error without a code: %v", err)
			}
			if res.Usage.Calls > 0 && len(res.By) == 0 {
				t.Error("no usage by model")
			}
			info, err := d.engine().Show(res.Run)
			if err != nil || info.Result == nil || info.Result.Reason != c.reason {
				t.Errorf("the stored run: %+v %v", info, err)
			}
		})
	}
}

func TestAPartialAnswerThatMeetsTheSchemaIsNoneWhenTheRunGoesOn(t *testing.T) {
	d := newDesk(t, block("x = 8"), `{"n": 7}`, block("SUBMIT(n=x)"))
	d.opts.Limits.Turns = new(1)
	res, err := d.run(Question{Inputs: []Input{Text("x")}, Schema: json.RawMessage(schema)})
	if err == nil {
		t.Fatal("the turns were used up, but the run was answered")
	}
	same(t, "reason", res.Reason, v1.ReasonTurns)
	same(t, "partial", res.Partial, true)
	same(t, "value", string(res.Value), `{"n": 7}`)
	more := d.opts.Limits
	more.Turns = new(5)
	r, err := d.engine().Resume(t.Context(), res.Run, ContinueOptions{Limits: more})
	if err != nil {
		t.Fatal(err)
	}
	if res, err = r.Wait(); err != nil {
		t.Fatal(err)
	}
	same(t, "value of the run that went on", string(res.Value), `{"n": 8}`)
	same(t, "turns", res.Turns, 2)
}

func TestCancelReachesEverythingAndKeepsWhatThereIs(t *testing.T) {
	d := newDesk(t, block("answer['content'] = 'half'"), block("print(rlm_query('never ends'))"))
	asked := make(chan struct{})
	d.sub.answer = func(ctx context.Context, _ int, _ llm.Request) (string, error) {
		close(asked)
		<-ctx.Done()
		return "", ctx.Err()
	}
	r, err := d.engine().Start(t.Context(), Question{Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	r.Cancel()
	res, err := r.Wait()
	same(t, "reason", res.Reason, v1.ReasonCancelled)
	same(t, "answer", res.Answer, "half")
	same(t, "code", v1.CodeOf(err), v1.CodeCancelled)
	kinds := map[v1.RunEventKind]int{}
	for e, err := range r.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[e.Kind]++
	}
	same(t, "ends of children", kinds[v1.KindChildEnded], 1)
	same(t, "ends of the run", kinds[v1.KindRunEnded], 1)
}

func TestBadQuestionsAreRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, data, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name string
		q    Question
		code v1.Code
	}{
		{"a context that is not there", Question{Inputs: []Input{File(dir + "/nothing")}}, v1.CodeContextMissing},
		{"an empty file", Question{Inputs: []Input{File(write("empty", nil, 0o644))}}, v1.CodeContextEmpty},
		{"an empty text", Question{Inputs: []Input{Text("")}}, v1.CodeContextEmpty},
		{"an empty list", Question{Inputs: []Input{List(nil)}}, v1.CodeContextEmpty},
		{"an empty directory", Question{Inputs: []Input{File(t.TempDir())}}, v1.CodeContextEmpty},
		{"a binary file", Question{Inputs: []Input{File(write("bin", []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00"), 0o644))}}, v1.CodeContextBinary},
		{"a device", Question{Inputs: []Input{File("/dev/null")}}, v1.CodeContextUnread},
		{"a schema that is none", Question{Schema: json.RawMessage(`{"type": "nonsense"}`)}, v1.CodeInvalidSchema},
		{"a schema that is no JSON", Question{Schema: json.RawMessage(`{`)}, v1.CodeInvalidSchema},
		{"a schema that refers elsewhere", Question{Schema: json.RawMessage(`{"$ref": "file:///etc/passwd"}`)}, v1.CodeInvalidSchema},
		{"a model that does not exist", Question{Model: "nobody"}, v1.CodeModelMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, "FINAL(1)")
			res, err := d.run(c.q)
			same(t, "code", v1.CodeOf(err), c.code)
			if res != nil || d.root.calls > 0 {
				t.Error("the run began")
			}
		})
	}
	_, err := New(Options{Sandboxes: sandboxes(t)})
	same(t, "no model", v1.CodeOf(err), v1.CodeModelMissing)
	for _, way := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "Ollama"} {
		contains(t, "the remedy", err.Error(), way)
	}
}

func TestDepthZeroAllowsNoCalls(t *testing.T) {
	d := newDesk(t, block("llm_query('x')"), block("FINAL(1)"))
	d.opts.Limits.Depth = new(0)
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "output", d.seen(), "the depth limit is 0")
	if strings.Contains(d.root.asked[0].Messages[0].Content, "llm_query") {
		t.Error("the prompt offers calls that are not allowed")
	}
	same(t, "sub-calls", d.sub.calls, 0)
}

func TestAReplyWithAThousandBlocks(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "```repl\nprint(%d)\n```\n", i)
	}
	d := newDesk(t, b.String(), block("FINAL(1)"))
	d.opts.Blocks = AllBlocks
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "cells", res.Cells, int64(maxBlocks+1))
	contains(t, "output", d.seen(), "968 more blocks of your reply were not run")
}

func TestAnEndlessReplyIsCut(t *testing.T) {
	d := newDesk(t, "```repl\nx = '"+strings.Repeat("a", 1<<20), block("FINAL(1)"))
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "the next prompt", d.seen(), "cut off in the middle of a block")
}

func TestALostInterpreterIsToldAndACodeErrorIsShown(t *testing.T) {
	d := newDesk(t,
		block("x = 1\nraise ValueError('mine')"),
		block("print(x)\nimport os\nos._exit(1)"),
		block("print('x' in globals(), context)"),
		block("FINAL(llm_query('hi'))"),
	)
	res := d.answered(Question{Inputs: []Input{Text("the data")}})
	same(t, "answer", res.Answer, "read: hi")
	contains(t, "turn 1", d.root.asked[1].Messages[3].Content, "ValueError: mine")
	contains(t, "turn 2", d.root.asked[2].Messages[5].Content, "your variables are gone, the context was loaded again")
	contains(t, "turn 3", d.root.asked[3].Messages[7].Content, "False the data")
}

func TestABrokenSandboxEndsTheRunAndInventsNothing(t *testing.T) {
	d := newDesk(t, block("print(1)"))
	r, err := d.engine().Start(t.Context(), Question{Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range r.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == v1.KindSandbox {
			var s v1.SandboxReady
			if err := e.Decode(&s); err != nil {
				t.Fatal(err)
			}
			if err := boxes.Stop(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	res, err := r.Wait()
	same(t, "reason", res.Reason, v1.ReasonSandbox)
	same(t, "partial", res.Partial, true)
	if err == nil {
		t.Error("no error")
	}
}

func TestOutputIsCutWithItsTrueLength(t *testing.T) {
	d := newDesk(t, block("print('the head' + 'é' * 300000 + 'the tail')"), block("print('another head' + 'é' * 3000 + 'another tail')"), block("FINAL(1)"))
	d.opts.Limits.Output = new(1000)
	d.answered(Question{Inputs: []Input{Text("x")}})
	for _, c := range []struct {
		turn             int
		head, said, tail string
	}{
		{1, "the headéé", "the output had 600017 bytes, only its beginning and end are shown; its first 600017 bytes are in /", "ééthe tail\n[left: "},
		{2, "another headéé", "[… 2025 of 3025 characters cut …]", "ééanother tail\n[left: "},
	} {
		seen := d.root.asked[c.turn].Messages[1+2*c.turn].Content
		if !strings.HasPrefix(seen, c.head) {
			t.Errorf("turn %d begins with %q", c.turn, firstRunes(seen, 20))
		}
		contains(t, "what is said", seen, c.said)
		contains(t, "the end", seen, c.tail)
		if n := utf8.RuneCountInString(seen); n < 1000 || n > 1400 {
			t.Errorf("turn %d: %d characters are shown", c.turn, n)
		}
	}
}

func TestWeakRepliesAreCorrectedAndTheRunGoesOn(t *testing.T) {
	d := newDesk(t,
		"", "I would look at the data first.", block("x = 41"), // two empty replies, then the count starts again
		"```\nx plus one\n```", "FINAL_VAR(y)", block("x += 1"), "  \n", "FINAL_VAR(x)",
	)
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "42")
	same(t, "turns", res.Turns, 8)
	for turn, want := range map[int]string{
		1: "There was nothing to run in your reply. ", 2: "There was nothing to run in your reply. ", 4: "the block needs the word repl after its opening fence",
		5: "variable 'y' not found", 7: "There was nothing to run in your reply. ",
	} {
		m := d.root.asked[turn].Messages
		contains(t, fmt.Sprintf("what the model hears behind turn %d", turn), m[len(m)-1].Content, want)
	}
	same(t, "an empty reply in the conversation", d.root.asked[1].Messages[2].Content, "(empty)")
}

func TestEveryPromptCanBeReplaced(t *testing.T) {
	own := Prompts{
		System: "SYSTEM {{.Output}}", First: "FIRST {{.Query}} {{len .Contexts}}", Nothing: "NOTHING", Last: "LAST {{.Query}}", Summary: "SUMMARY", Plain: "PLAIN {{.Query}}: {{.Text}}",
	}
	d := newDesk(t)
	d.opts.Prompts, d.opts.Limits.Turns, d.root.window = own, new(8), 6000
	d.root.answer = func(_ context.Context, n int, req llm.Request) (string, error) {
		switch {
		case n == 1:
			return "no code", nil
		case req.Tags["call"] == v1.CallTurn:
			return block("print('x' * 4000)"), nil
		}
		return "something", nil
	}
	res, err := d.run(Question{Query: "why?", Inputs: []Input{Text("some text")}})
	if err == nil || res.Reason != v1.ReasonTurns {
		t.Fatalf("%+v %v", res, err)
	}
	first := d.root.asked[0].Messages
	same(t, "system", first[0].Content, "SYSTEM 20000")
	same(t, "first", first[1].Content, "FIRST why? 1")
	same(t, "nothing", d.root.asked[1].Messages[3].Content, "NOTHING")
	said := map[string]string{}
	for _, req := range d.root.asked {
		said[req.Tags["call"]] = req.Messages[len(req.Messages)-1].Content
	}
	same(t, "last", said[v1.CallLast], "LAST why?")
	same(t, "summary", said[v1.CallSummary], "SUMMARY")
	d.opts.PlainBelow = 0
	d.answered(Question{Query: "why?", Inputs: []Input{Text("some text")}})
	same(t, "plain", d.seen(), "PLAIN why?: some text")
	d.opts.Prompts.Last = "{{.Nonsense"
	if _, err := New(d.opts); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("an invalid template: %v", err)
	}
}

func TestAModelThatGoesInCirclesIsTold(t *testing.T) {
	d := newDesk(t, block("print(1)"), block("print(1)"), block("FINAL(1)"))
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "turn 2", d.seen(), "the same code with the same output, 2 times now")
}
