//go:build linux

package rlm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func TestOnlyWhatReachedAModelCountsAsRead(t *testing.T) {
	text := prose(40_000, 1)
	for _, c := range []struct {
		name, code string
		want       float64 // percent
	}{
		{"calls that fail", "r = llm_query_batched(chunks(context, 1000))\nFINAL(len(r))", 21.5},
		{"a child that reads a tenth", "FINAL(rlm_query(context[:20000]))", 6.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block(c.code))
			d.opts.Limits.Depth = new(3)
			d.sub.answer = func(_ context.Context, n int, req llm.Request) (string, error) {
				if strings.Contains(req.Messages[0].Content, "You answer a question") { // the child
					if n == 1 {
						return block("print(context[:2000])"), nil
					}
					return block("FINAL('read')"), nil
				}
				if n%5 != 0 {
					return "", errors.New("it fails")
				}
				return "ok", nil
			}
			d.opts.Limits.Parallel = new(1)
			res := d.answered(Question{Inputs: []Input{Text(text)}})
			if got := res.Coverage.Percent; got < c.want-1 || got > c.want+1 {
				t.Errorf("%.1f %% counted as read, want %.1f: %+v", got, c.want, res.Coverage)
			}
		})
	}
	t.Run("a plain call", func(t *testing.T) {
		d := newDesk(t, "the answer")
		d.opts.PlainBelow = 1 << 20
		if res := d.answered(Question{Query: "Q?", Inputs: []Input{Text(text)}}); res.Coverage.Percent < 99 {
			t.Errorf("%+v", res.Coverage)
		}
	})
	t.Run("a plain call that fails", func(t *testing.T) {
		d := newDesk(t)
		d.opts.PlainBelow = 1 << 20
		d.root.answer = func(context.Context, int, llm.Request) (string, error) { return "", errors.New("it fails") }
		if res, _ := d.run(Question{Query: "Q?", Inputs: []Input{Text(text)}}); res.Coverage.Percent != 0 {
			t.Errorf("%+v", res.Coverage)
		}
	})
}

func TestAnAnswerInTheTextIsEvaluatedIfItIsCode(t *testing.T) {
	for _, c := range []struct{ final, want string }{
		{"FINAL(result)", "forty-two"},
		{"FINAL(len(hits))", "3"},
		{`FINAL(f"{len(hits)} hits")`, "3 hits"},
		{"FINAL([h.upper() for h in hits])", `["A", "B", "C"]`},
		{"FINAL(Paris)", "Paris"},
		{"FINAL(10-12)", "10-12"},
		{"FINAL(1,000)", "1,000"},
		{"FINAL(f(1))", "f(1)"},
		{"FINAL(all)", "all"},
		{"FINAL(result of the search)", "result of the search"},
		{"FINAL(The options are: a) Anna, b) Bert)", "The options are: a) Anna, b) Bert"},
		{"FINAL(\n```json\n{\"a\": 1}\n```\n)", `{"a": 1}`},
	} {
		t.Run(c.final, func(t *testing.T) {
			d := newDesk(t, block("result = 'forty-two'\nhits = ['a', 'b', 'c']\nprint(context[:9])"), c.final)
			if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != c.want {
				t.Errorf("%q, want %q", res.Answer, c.want)
			}
		})
	}
	t.Run("an expression that fails", func(t *testing.T) {
		d := newDesk(t, block("hits = []"), `FINAL(f"{hits[0]}")`, block("FINAL('none')"))
		if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != "none" {
			t.Errorf("%q", res.Answer)
		}
		contains(t, "what the model sees", d.seen(), "IndexError")
	})
}

func TestReasoningIsNeitherRunNorAnAnswer(t *testing.T) {
	draft := block("print('draft')")
	for name, first := range map[string]string{
		"think":       "<think>\n" + draft + "FINAL(wrong)\n</think>\n" + block("print('ran')"),
		"only closed": draft + "FINAL(wrong)\n</think>\n" + block("print('ran')"),
		"unclosed":    "<think>\n" + draft,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, first, block("FINAL('right')"))
			res := d.answered(Question{Inputs: []Input{Text("a short context")}})
			if res.Answer != "right" || strings.Contains(d.seen(), "draft") || name != "unclosed" && !strings.Contains(d.seen(), "ran") {
				t.Errorf("%q; the model sees %q", res.Answer, d.seen())
			}
		})
	}
	t.Run("in a plain call and a sub-call", func(t *testing.T) {
		d := newDesk(t, block("FINAL(llm_query('x'))"))
		d.sub.answer = script("<thinking>hm</thinking>\nyes")
		if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != "yes" {
			t.Errorf("%q", res.Answer)
		}
		d = newDesk(t, "hm</think>\nyes")
		d.opts.PlainBelow = 1 << 20
		if res := d.answered(Question{Query: "Q?", Inputs: []Input{Text("a short context")}}); res.Answer != "yes" {
			t.Errorf("%q", res.Answer)
		}
	})
}

func TestAReplyThatIsCutIsNoAnswer(t *testing.T) {
	long := strings.Repeat("word ", 400)
	t.Run("plain", func(t *testing.T) {
		d := newDesk(t, long)
		d.opts.PlainBelow, d.root.output = 1<<20, 100
		res, err := d.run(Question{Query: "Q?", Inputs: []Input{Text("a short context")}})
		if err == nil || res.Reason != v1.ReasonLength || !res.Partial || !strings.HasPrefix(res.Answer, "word word") {
			t.Errorf("%v %+v", err, res)
		}
	})
	t.Run("in a turn", func(t *testing.T) {
		d := newDesk(t, block("print(1)"), "FINAL("+long, block("FINAL('whole')"))
		d.root.output = 100
		if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != "whole" {
			t.Errorf("%q", res.Answer)
		}
	})
}

func TestCodeIsNoPartialAnswer(t *testing.T) {
	d := newDesk(t, block("print(1)"))
	d.opts.Limits.Calls = new(int64(2))
	res, err := d.run(Question{Inputs: []Input{Text("a short context")}})
	if err == nil || res.Answer != "" || !res.Partial {
		t.Errorf("%v %+v", err, res)
	}
	d = newDesk(t, "It looks like 42.\n"+block("print(1)"))
	d.opts.Limits.Calls = new(int64(2))
	if res, err := d.run(Question{Inputs: []Input{Text("a short context")}}); err == nil || res.Answer != "It looks like 42." {
		t.Errorf("%v %+v", err, res)
	}
	d = newDesk(t, block("print(1)"))
	d.opts.Limits.Turns = new(1)
	if res, err := d.run(Question{Inputs: []Input{Text("a short context")}}); err == nil || res.Answer != "" {
		t.Errorf("code as the reply to the last call: %v %+v", err, res)
	}
}

// reasoner is a model with 1000 tokens of reasoning per reply, which it reports only at the end of a reply.
type reasoner struct{ *fake }

func (r reasoner) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	reply, err := r.fake.Complete(ctx, req)
	if err == nil && reply.Finish == llm.FinishCut {
		reply.Usage.Estimated = true
	} else if err == nil {
		reply.Usage.Output += 1000
	}
	return reply, err
}

func TestTokensThatACutReplyHidesAreEstimated(t *testing.T) {
	endless := strings.Repeat("and so on ", 1000)
	d := newDesk(t, block("print(1)"), block("print(2)")+endless, block("print(3)")+"a short end", block("FINAL('done')"))
	root := reasoner{d.root}
	d.opts.Models = func(depth int, _ string) (llm.Model, error) { return root, nil }
	res := d.answered(Question{Inputs: []Input{Text("a short context")}})
	if res.Usage.Output < 4000 || res.Usage.Output > 4600 || !res.Usage.Estimated {
		t.Errorf("%+v", res.Usage)
	}
	// A reply that ends soon after its block has a usage, and what follows the block is not part of it.
	for _, m := range res.Conversation {
		if strings.Contains(m.Content, "a short end") || strings.Contains(m.Content, "and so on") {
			t.Errorf("kept what followed the first block: %.100q", m.Content)
		}
	}
}

func TestOnlyAValueIsAnAnswer(t *testing.T) {
	for code, want := range map[string]string{
		"FINAL(float('nan'))":        "nan",
		"FINAL([1.5, float('inf')])": "[1.5, inf]",
		"FINAL({'a': 1})":            `{"a": 1}`,
		"FINAL(0)":                   "0",
		"FINAL('')":                  "",
		"answer['content'] = None; FINAL(answer['content'])": "second",
		"FINAL(x for x in 'ab')":                             "second",
	} {
		t.Run(code, func(t *testing.T) {
			d := newDesk(t, block(code), block("FINAL('second')"))
			if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != want {
				t.Errorf("%q, want %q", res.Answer, want)
			}
			if want == "second" {
				contains(t, "what the model sees", d.seen(), "not accepted")
			}
		})
	}
}

func TestARunThatRunsOutStillAnswersFromWhatItHas(t *testing.T) {
	const spend = "r = [llm_query('x' * 4000 + str(i)) for i in range(100)]"
	for _, c := range []struct {
		name, code string
		limit      func(d *desk, l *v1.RunLimits)
		reason     Reason
	}{
		{"tokens", spend, func(_ *desk, l *v1.RunLimits) { l.Tokens = new(int64(40_000)) }, v1.ReasonTokens},
		{"calls", spend, func(_ *desk, l *v1.RunLimits) { l.Calls = new(int64(8)) }, v1.ReasonCalls},
		{"cost", spend, func(d *desk, l *v1.RunLimits) {
			d.root.price, d.sub.price = &llm.Price{Input: 10, Output: 10}, &llm.Price{Input: 10, Output: 10}
			l.Cost = new(0.4)
		}, v1.ReasonCost},
		{"tokens in children", "rlm_query_batched(['x' * 9000, 'y' * 9000])", func(d *desk, l *v1.RunLimits) {
			l.Tokens, l.Depth = new(int64(60_000)), new(3)
			d.sub.answer = script(block("print('z' * 15000)"))
		}, v1.ReasonTokens},
		{"calls in children", "rlm_query_batched(['x' * 9000, 'y' * 9000])", func(d *desk, l *v1.RunLimits) {
			l.Calls, l.Depth = new(int64(12)), new(3)
			d.sub.answer = script(block("print(len(context))"))
		}, v1.ReasonCalls},
		{"cost in children", "rlm_query_batched(['x' * 9000, 'y' * 9000])", func(d *desk, l *v1.RunLimits) {
			d.root.price, d.sub.price = &llm.Price{Input: 10, Output: 10}, &llm.Price{Input: 10, Output: 10}
			l.Cost, l.Depth = new(0.6), new(3)
			d.sub.answer = script(block("print('z' * 15000)"))
		}, v1.ReasonCost},
		{"time in a child", "rlm_query('x' * 9000)", func(d *desk, l *v1.RunLimits) {
			l.Time, l.Depth = new(v1.Duration(5*time.Second)), new(3)
			d.sub.answer = script(block("import time\nwhile True: time.sleep(0.01)"))
		}, v1.ReasonTime},
		{"time", "import time\nwhile True: time.sleep(0.01)", func(_ *desk, l *v1.RunLimits) { l.Time = new(v1.Duration(5 * time.Second)) }, v1.ReasonTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			d.root.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
				if strings.Contains(req.Messages[len(req.Messages)-1].Content, "must end here") {
					return "It is probably 5.", nil
				}
				return block(c.code), nil
			}
			c.limit(d, &d.opts.Limits)
			res, err := d.run(Question{Inputs: []Input{Text("a short context")}})
			if err == nil || res.Reason != c.reason || !res.Partial || res.Answer != "It is probably 5." {
				t.Errorf("%v, %s %q", err, res.Reason, res.Answer)
			}
			if most := *d.opts.Limits.Tokens; most >= 0 && res.Usage.Tokens() > most {
				t.Errorf("%d of %d tokens", res.Usage.Tokens(), most)
			}
		})
	}
}

// slowThinker is a model that closes its reasoning without having opened it, and then thinks longer than a cut stream is
// drained.
type slowThinker struct{ *fake }

func (m slowThinker) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	if m.calls > 0 {
		return m.fake.Complete(ctx, req)
	}
	m.calls++
	text := block("print('draft')") + "</think>\n"
	req.Delta(text)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(drainTime + 200*time.Millisecond):
	}
	end := block("FINAL('right')")
	req.Delta(end)
	return &llm.Reply{Text: text + end, Finish: llm.FinishStop, Usage: llm.Usage{Calls: 1, Input: 1, Output: 1}}, nil
}

func TestAReplyAfterReasoningHasItsTime(t *testing.T) {
	d := newDesk(t, block("FINAL('second')"))
	d.opts.Models = func(int, string) (llm.Model, error) { return slowThinker{d.root}, nil }
	if res := d.answered(Question{Inputs: []Input{Text("a short context")}}); res.Answer != "right" {
		t.Errorf("%q", res.Answer)
	}
}
