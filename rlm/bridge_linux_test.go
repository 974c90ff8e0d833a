//go:build linux

package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func TestBatchesKeepTheirOrderAndBoundTheTree(t *testing.T) {
	d := newDesk(t, block(`
from concurrent.futures import ThreadPoolExecutor
prompts = ["number %d" % i for i in range(200)]
with ThreadPoolExecutor(2) as pool:
    a, b = pool.map(llm_query_batched, (prompts[:100], prompts[100:]))
FINAL(all(r == "<" + p + ">" for r, p in zip(a + b, prompts)))`))
	d.opts.Limits.Parallel = new(7)
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		time.Sleep(time.Millisecond) // so that calls overlap
		return "<" + req.Messages[0].Content + ">", nil
	}
	res := d.answered(Question{Query: "?", Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "true")
	same(t, "calls", res.Usage.Calls, 201)
	if d.sub.most > 7 {
		t.Errorf("%d concurrent calls", d.sub.most)
	}
}

func TestOneBoundHoldsForARunAndItsChildren(t *testing.T) {
	// Each of the three children has two prompts. Therefore three concurrent calls are from several children.
	d := newDesk(t, block("FINAL(rlm_query_batched(['one', 'two', 'three']))"))
	d.opts.Limits.Parallel = new(3)
	together := rounds{of: 3}
	var mu sync.Mutex
	nodes := map[string]bool{}
	d.sub.answer = func(ctx context.Context, _ int, req llm.Request) (string, error) {
		if req.Tags["call"] != v1.CallSub {
			return block("FINAL(' '.join(llm_query_batched([context + ' a', context + ' b'])))"), nil
		}
		mu.Lock()
		nodes[req.Tags["node"]] = true
		mu.Unlock()
		return "<" + req.Messages[0].Content + ">", together.meet(ctx)
	}
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, `["<one a> <one b>", "<two a> <two b>", "<three a> <three b>"]`)
	same(t, "calls at once", d.sub.most, 3)
	same(t, "children that asked", len(nodes), 3)
}

func TestQueriesInTheTextAreAskedAtOnceAndInOrder(t *testing.T) {
	d := newDesk(t, `QUERY_LLM_BATCHED(["p0", "p1", "p2", "p3", "p4", "p5"])`, block("FINAL(1)"))
	d.opts.Limits.Parallel, d.opts.Dialect = new(3), true
	together := rounds{of: 3}
	d.sub.answer = func(ctx context.Context, _ int, req llm.Request) (string, error) {
		if err := together.meet(ctx); err != nil {
			return "", err
		}
		if text := req.Messages[0].Content; text != "p4" {
			return "<" + text + ">", nil
		}
		return "", errors.New("no such luck")
	}
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "what the model sees", d.seen(), "[0] <p0>\n[1] <p1>\n[2] <p2>\n[3] <p3>\n[4] [failed: ask fake/sub: no such luck]\n[5] <p5>\n")
	same(t, "calls at once", d.sub.most, 3)
}

func TestAFailedItemDoesNotSpoilTheRest(t *testing.T) {
	failing := func(_ context.Context, _ int, req llm.Request) (string, error) {
		if strings.Contains(req.Messages[0].Content, "bad") {
			return "", errors.New("no such luck")
		}
		return "fine", nil
	}
	code := `
rs = llm_query_batched(["good", "bad", "ok"])
print([type(r).__name__ for r in rs], [bool(r) for r in rs], str(rs[1]))
try:
    llm_query("bad")
except QueryError as e:
    print("raised", e.code)
else:
    print("not raised", llm_query("bad2"))
`
	t.Run("with exceptions", func(t *testing.T) {
		d := newDesk(t, block(code), block("FINAL(1)"))
		d.sub.answer = failing
		d.answered(Question{Inputs: []Input{Text("x")}})
		contains(t, "output", d.seen(), "['str', 'Failure', 'str'] [True, False, True] Error: ask fake/sub: no such luck")
		contains(t, "output", d.seen(), "raised model_failed")
		contains(t, "output", d.seen(), "1 of 3 calls failed")
	})
	t.Run("with error strings", func(t *testing.T) {
		d := newDesk(t, block(code), block("FINAL(1)"))
		d.opts.ErrorStrings = true
		d.sub.answer = failing
		d.answered(Question{Inputs: []Input{Text("x")}})
		contains(t, "output", d.seen(), "['str', 'str', 'str'] [True, True, True] Error: ask fake/sub: no such luck")
		contains(t, "output", d.seen(), "not raised Error: ")
	})
}

func TestNamesAreRestoredAndVariablesStay(t *testing.T) {
	d := newDesk(t,
		block("mine = [1, 2, 3]\nllm_query = None\ndel FINAL\ncontext = 'gone'\nimport json\nprint(SHOW_VARS())"),
		block("print(context, len(mine), llm_query('hello'), SHOW_VARS())"),
		block("FINAL_VAR('nothing_here')"),
		block("FINAL_VAR('mine')"),
	)
	res := d.answered(Question{Inputs: []Input{Text("the data")}})
	same(t, "answer", res.Answer, "[1, 2, 3]")
	same(t, "value", string(res.Value), "[1, 2, 3]")
	m := d.root.asked
	contains(t, "turn 1", m[1].Messages[3].Content, "these names are reserved, and were restored: llm_query, FINAL, context")
	contains(t, "turn 2", m[2].Messages[5].Content, "the data 3 read: hello mine: list of 3")
	contains(t, "turn 3", m[3].Messages[7].Content, "NameError: FINAL_VAR: variable 'nothing_here' not found; variables: mine")
}

func TestTheWaysToAnswer(t *testing.T) {
	for _, c := range []struct{ name, reply, answer, value string }{
		{"FINAL", block("FINAL('a')\nprint('never')"), "a", ""},
		{"FINAL of a number", block("FINAL(41 + 1)"), "42", "42"},
		{"FINAL within a try", block("try:\n    FINAL('a')\nexcept Exception:\n    pass"), "a", ""},
		{"SUBMIT", block("SUBMIT('a')"), "a", ""},
		{"SUBMIT with fields", block("SUBMIT(name='x', n=1)"), `{"name": "x", "n": 1}`, `{"name": "x", "n": 1}`},
		{"the answer dictionary", block("answer['content'] = 'a'\nanswer['ready'] = True"), "a", ""},
		{"ready before content", block("answer['ready'] = True\nanswer['content'] = 'late'"), "late", ""},
		{"an empty answer", block("answer['ready'] = True"), "", ""},
		{"a new dictionary", block("answer = {'content': 'a', 'ready': True}"), "a", ""},
		{"ready, and then a failure", block("answer['content'] = 'a'\nanswer['ready'] = True\n1/0"), "a", ""},
		{"ready, and then the death of the interpreter", block("answer['content'] = 'a'\nanswer['ready'] = True\nimport os\nos._exit(3)"), "a", ""},
		{"in the text", "FINAL(it's (really) 42)", "it's (really) 42", ""},
		{"a command word", "CODE(FINAL('from a word'))", "from a word", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, c.reply)
			d.opts.Dialect = true
			res := d.answered(Question{Inputs: []Input{Text("x")}})
			same(t, "answer", res.Answer, c.answer)
			same(t, "value", string(res.Value), c.value)
			same(t, "turns", res.Turns, 1)
		})
	}
}

func TestATextualAnswerBesideCodeIsRefusedOnce(t *testing.T) {
	d := newDesk(t, block("x = 7")+"FINAL(8)\n", "FINAL_VAR(y)", "FINAL_VAR(x)")
	d.opts.Blocks = AllBlocks
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "7")
	contains(t, "turn 1", d.root.asked[1].Messages[3].Content, "the answer in your text was not accepted")
	contains(t, "turn 2", d.root.asked[2].Messages[5].Content, "variable 'y' not found")
}

func TestTheBudgetIsVisible(t *testing.T) {
	d := newDesk(t, block("llm_query('one')\nimport json\nprint('budget', json.dumps(budget()))"), block("FINAL(1)"))
	d.root.price, d.sub.price = &llm.Price{Input: 3, Output: 15}, &llm.Price{Input: 1, Output: 5}
	d.opts.Limits = v1.RunLimits{Tokens: new(int64(50_000)), Cost: new(2.0), Time: new(v1.Duration(2 * time.Minute)), Calls: new(int64(40)), CPU: new(v1.Duration(time.Minute))}
	texts := d.root.answer
	var spent llm.Usage
	d.root.answer = func(ctx context.Context, n int, req llm.Request) (string, error) {
		if n == 2 {
			spent = d.root.total.Add(d.sub.total) // no other call is in progress now
		}
		return texts(ctx, n, req)
	}
	d.answered(Question{Inputs: []Input{Text("x")}})
	line := regexp.MustCompile(`budget (\{.*\})`).FindStringSubmatch(d.seen())
	if line == nil {
		t.Fatal(d.seen())
	}
	var got map[string]float64
	if err := json.Unmarshal([]byte(line[1]), &got); err != nil {
		t.Fatal(err)
	}
	same(t, "names", strings.Join(slices.Sorted(maps.Keys(got)), " "), "calls cell_cpu_seconds cost_usd depth seconds tokens turns")
	same(t, "turns", got["turns"], 29)
	same(t, "depth", got["depth"], 2)
	same(t, "calls", got["calls"], 38)
	same(t, "tokens", got["tokens"], float64(50_000-spent.Tokens()))
	same(t, "dollars", fmt.Sprintf("%.9f", got["cost_usd"]), fmt.Sprintf("%.9f", 2-spent.Cost))
	if spent.Calls != 2 || spent.Cost <= 0 {
		t.Errorf("spent: %+v", spent)
	}
	if s := got["seconds"]; s <= 0 || s >= 120 {
		t.Errorf("%v seconds left of 120", s)
	}
	same(t, "seconds of CPU", got["cell_cpu_seconds"], 60) // no cell had ended yet
	told := fmt.Sprintf(`\n\[left: 29 turns, %d tokens, \$%.4f, \d+ s, 38 model calls, (\d+\.\d) s of CPU time for code\]$`, 50_000-spent.Tokens(), 2-spent.Cost)
	if !regexp.MustCompile(told).MatchString(d.seen()) {
		t.Errorf("the model saw %q, want %s", d.seen(), told)
	}
}

func TestWhatIsNotLimitedIsNotToldAsNothingLeft(t *testing.T) {
	d := newDesk(t, block("print(sorted(budget()), llm_query('still'))"), block("FINAL(1)"))
	d.opts.Limits = unlimited()
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "the first prompt", d.root.asked[0].Messages[1].Content, "You have all you need, nothing is limited. ")
	contains(t, "output", d.seen(), "[] read: still\n[left: all you need, nothing is limited]")
}

func TestPromptsAndRepliesOfManyMegabytes(t *testing.T) {
	d := newDesk(t, block(`
big = "ä" * (3 << 20)
r = llm_query(big + "!")
FINAL([len(r), r[:10], r.count("ü"), r[-1]])`))
	d.sub.window, d.sub.output, d.opts.Limits.Reply = 10<<20, 4<<20, new(int64(4<<20))
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		return fmt.Sprintf("%010d", len(req.Messages[0].Content)) + strings.Repeat("ü", 3<<20) + "?", nil
	}
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, fmt.Sprintf(`[%d, "%010d", %d, "?"]`, 3<<20+11, 6<<20+1, 3<<20))
	same(t, "tokens that were paid", res.Usage.Tokens(), d.root.total.Add(d.sub.total).Tokens())
}

func TestCodeChoosesTheModelOfACall(t *testing.T) {
	d := newDesk(t, block(`
got = [llm_query("a"), llm_query("a", model="fake/other"), *llm_query_batched(["b", "c"], model="fake/other"), rlm_query("d", model="fake/other")]
try:
    llm_query("e", model="fake/nobody")
except QueryError as e:
    got.append(e.code)
FINAL(got)`))
	other := &fake{name: "fake/other", answer: func(_ context.Context, _ int, req llm.Request) (string, error) {
		if req.Tags["call"] == v1.CallTurn {
			return block("FINAL('a run of the other on ' + context)"), nil
		}
		return "other: " + req.Messages[0].Content, nil
	}}
	usual := d.opts.Models
	d.opts.Models = func(depth int, name string) (llm.Model, error) {
		if name == "fake/other" {
			return other, nil
		}
		return usual(depth, name)
	}
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, `["read: a", "other: a", "other: b", "other: c", "a run of the other on d", "`+string(v1.CodeModelMissing)+`"]`)
	var by []string
	for _, s := range res.By {
		by = append(by, fmt.Sprintf("%d %s %d", s.Depth, s.Model, s.Calls))
	}
	same(t, "who was paid", strings.Join(by, ", "), "0 fake/root 1, 1 fake/other 4, 1 fake/sub 1")
}

func TestAPromptBeyondTheWindowIsRefusedByName(t *testing.T) {
	d := newDesk(t, block("llm_query('x' * 100000)"), block("FINAL(1)"))
	d.sub.window = 1000
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "output", d.seen(), "the prompt has about 25004 tokens (100000 bytes), and the model's window is 1000 tokens")
	same(t, "calls", res.Usage.Calls, 2)
}

func TestACellThatIsOverTakesItsCallsAlong(t *testing.T) {
	for _, c := range []struct{ name, end, state string }{
		{"it ends by itself", "pass", "[]"},
		{"it fails", "1/0", "[]"},
		{"it is interrupted", "import signal\nsignal.raise_signal(signal.SIGINT)", "[]"},
		{"its interpreter dies", "import os\nos._exit(1)", "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t,
				block("import threading\ngot = []\nthreading.Thread(target=lambda: got.append(llm_query('slow')), daemon=True).start()\nasked()\n"+c.end),
				block("print('heard:', llm_query('fast'), globals().get('got', 'gone'))"), block("FINAL(1)"),
			)
			asked, over, fast, late := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
			d.opts.Tools = []Tool{{Name: "asked", Doc: "asked(): waits until the slow model is asked", Call: func(ctx context.Context, _ ToolCall) (any, error) {
				return nil, await(ctx, asked)
			}}}
			d.sub.answer = func(ctx context.Context, _ int, req llm.Request) (string, error) {
				if req.Messages[0].Content == "fast" {
					close(fast)
					return "fast reply", await(ctx, late)
				}
				close(asked)
				if err := await(t.Context(), ctx.Done()); err != nil {
					t.Error("the call outlived its cell")
				}
				close(over)
				// A provider may still answer. Its reply arrives while the next cell waits for its own reply.
				defer close(late)
				return "late reply", await(t.Context(), fast)
			}
			res := d.answered(Question{Inputs: []Input{Text("x")}})
			same(t, "answer", res.Answer, "1")
			contains(t, "what the next cell has", d.seen(), "heard: fast reply "+c.state+"\n")
			select {
			case <-over:
			default:
				t.Error("the slow call was not cancelled")
			}
			for e, err := range d.engine().Events(res.Run) {
				if err != nil {
					t.Fatal(err)
				}
				var end v1.CallEnded
				if e.Kind != v1.KindCallEnded || e.Decode(&end) != nil || end.Call != v1.CallSub {
					continue
				}
				same(t, "the turn of "+end.Text, e.Turn, map[bool]int{true: 2, false: 1}[end.Text == "fast reply"])
			}
		})
	}
}

func TestACellThatWorksTooLongIsStoppedButNotOneThatWaits(t *testing.T) {
	const limit = 3 * time.Second // long enough for cells that are slow because the host is busy
	t.Run("works", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t, block("kept = 'kept'"), block("while True: pass"), block("FINAL(kept)"))
		d.opts.Limits.CellTime = new(v1.Duration(limit))
		same(t, "answer", d.answered(Question{Inputs: []Input{Text("x")}}).Answer, "kept")
		contains(t, "turn 2", d.seen(), "stopped: it ran for more than 3s")
	})
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t, block("FINAL(llm_query('slow'))"))
		d.opts.Limits.CellTime = new(v1.Duration(limit))
		d.sub.answer = func(context.Context, int, llm.Request) (string, error) {
			time.Sleep(limit + time.Second) // longer than the limit
			return "worth the wait", nil
		}
		same(t, "answer", d.answered(Question{Inputs: []Input{Text("x")}}).Answer, "worth the wait")
	})
}

func TestChildrenHaveMachinesOfTheirOwn(t *testing.T) {
	d := newDesk(t,
		block("secret = 1\nr = rlm_query_batched(['first ' + context[:10], 'second'])\nprint(r)"),
		block("FINAL(r)"))
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		if req.Tags["call"] == v1.CallSub {
			return "plain:" + req.Messages[0].Content, nil
		}
		// A child run: it inspects its context, calls its own sub-model with rlm_query, which is a plain call at this depth,
		// and answers.
		if len(req.Messages) == 2 {
			return block("r = rlm_query('grandchild')\ntry:\n    secret\nexcept NameError:\n    FINAL(context + '|' + r)"), nil
		}
		return "", errors.New("the child went on")
	}
	res := d.answered(Question{Inputs: []Input{Text("0123456789abc")}})
	same(t, "answer", res.Answer, `["first 0123456789|plain:grandchild", "second|plain:grandchild"]`)
	same(t, "children", res.Children, 2)
	same(t, "from the cache", res.Cached, 1)
	var depths []int
	for _, s := range res.By {
		depths = append(depths, s.Depth)
	}
	same(t, "depths", fmt.Sprint(depths), "[0 1 2]")
}

func TestEqualCallsArePaidOnce(t *testing.T) {
	d := newDesk(t, block("rs = [llm_query('same') for _ in range(3)] + llm_query_batched(['same', 'other'] * 10)\nFINAL(len(set(rs)))"))
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "2")
	same(t, "calls of the sub-model", d.sub.calls, 2)
	same(t, "from the cache", res.Cached, 21)
}

func TestRunsShareWhatIsCachedIfAsked(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []int64{0, 1} {
		d := newDesk(t, block("FINAL(llm_query('same'))"))
		c, err := OpenCache(dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		d.opts.Cache = c
		res := d.answered(Question{Inputs: []Input{Text("x")}})
		same(t, "answer", res.Answer, "read: same")
		same(t, fmt.Sprintf("from the cache in run %d", i+1), res.Cached, want)
		same(t, fmt.Sprintf("calls of the sub-model in run %d", i+1), int64(d.sub.calls), 1-want)
	}
}

func TestAReplyThatWasCutIsNotKeptForTheNext(t *testing.T) {
	d := newDesk(t, block("for _ in range(2):\n    llm_query('tell all')"), block("FINAL(llm_query('tell all') == llm_query('tell all'))"))
	d.sub.answer = func(_ context.Context, n int, _ llm.Request) (string, error) {
		if n < 3 {
			return strings.Repeat("long ", 200), nil
		}
		return "short", nil
	}
	d.opts.Limits.Reply = new(int64(64))
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "calls of the sub-model", d.sub.calls, 3)
	same(t, "from the cache", res.Cached, 1)
}

func TestTools(t *testing.T) {
	d := newDesk(t, block("print(weather('Bern', unit='C'), twice(21), scope('all', exec=1))\ntry:\n    weather('nowhere')\nexcept Exception as e:\n    print(type(e).__name__, e)"), block("FINAL(1)"))
	d.opts.Tools = []Tool{
		{Name: "weather", Doc: "weather(city): how it is", Call: func(_ context.Context, c ToolCall) (any, error) {
			var city string
			if err := json.Unmarshal(c.Args[0], &city); err != nil || city == "nowhere" {
				return nil, errors.New("unknown city")
			}
			return map[string]any{"city": city, "unit": string(c.Kwargs["unit"])}, nil
		}},
		{Name: "twice", Doc: "twice(x): 2x", Source: "def twice(x):\n    return 2 * x"},
		{Name: "scope", Params: []Param{{Name: "locals"}, {Name: "exec", Optional: true}, {Name: "globals", Optional: true}}, Call: func(_ context.Context, c ToolCall) (any, error) {
			return fmt.Sprintf("%s %s %d", c.Kwargs["locals"], c.Kwargs["exec"], len(c.Kwargs)), nil
		}},
	}
	d.answered(Question{Inputs: []Input{Text("x")}})
	contains(t, "output", d.seen(), `{'city': 'Bern', 'unit': '"C"'} 42 "all" 1 2`)
	contains(t, "output", d.seen(), "ToolError unknown city")
	contains(t, "the system prompt", d.root.asked[0].Messages[0].Content, "- weather: weather(city): how it is")
}

func TestHelpersForPiecesAndTerms(t *testing.T) {
	d := newDesk(t, block(`
parts = chunks(context, 1000)
assert "".join(parts) == context and max(map(len, parts)) <= 1000
hits = search("NEEDLE", window=5)
print(len(parts), len(hits), hits[0][1])
FINAL("ok")`))
	res := d.answered(Question{Inputs: []Input{Text(haystack(t, 50_000, "a needle here"))}})
	same(t, "answer", res.Answer, "ok")
}

func TestWhatACellLeavesIsToldAtItsEndWhateverCodeDoes(t *testing.T) {
	for _, c := range []struct{ name, code string }{
		{"as part of the cell", "pass"},
		{"the hook was taken away", "import recluse\nrecluse.at_cell_end(None)"},
		{"the hook was replaced by one that fails", "import recluse\nrecluse.at_cell_end(lambda: 1/0)"},
		{"the bridge was broken", "import recluse_rlm\nrecluse_rlm._variables = None"},
		{"the bridge was hidden", "import sys, recluse\nrecluse.at_cell_end(None)\nsys.modules.pop('recluse_rlm')"},
		{"the cell failed", "1/0"},
		{"the cell left", "raise SystemExit(3)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block("llm_query = budget = None\nkept = 7\n"+c.code), block("FINAL([kept, llm_query('hi'), budget()['turns'] > 0])"))
			res := d.answered(Question{Inputs: []Input{Text("x")}})
			same(t, "answer", res.Answer, `[7, "read: hi", true]`)
		})
	}
}

func TestAnAnswerThatIsReadyIsTakenThoughTheHookIsGone(t *testing.T) {
	d := newDesk(t, block("import recluse\nrecluse.at_cell_end(None)\nanswer = {'content': 'mine', 'ready': True}"))
	same(t, "answer", d.answered(Question{Inputs: []Input{Text("x")}}).Answer, "mine")
}
