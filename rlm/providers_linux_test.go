//go:build linux

package rlm

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// A stream of a root turn that is dropped is requested again, from the same model or from the next one of a fallback
// list, within the limits of the run.
func TestADroppedStreamOfATurnIsRequestedAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		drops   map[string]int // how often the replies of a model are dropped
		model   string
		by      string // usage by model
		reason  Reason
		limit   int64 // calls
		refuses string
	}{
		{"by the same model", map[string]int{"a": 2}, "p/a", "p/a: 3", v1.ReasonAnswered, -1, ""},
		{"by the next model", map[string]int{"a": 9}, "p/a,p/b", "p/a: 3, p/b: 1", v1.ReasonAnswered, -1, ""},
		{"by the next model, after a refusal", nil, "p/a,p/b", "p/b: 1", v1.ReasonAnswered, -1, "a"},
		{"by no model", map[string]int{"a": 9}, "p/a", "p/a: 3", v1.ReasonModel, -1, ""},
		{"not beyond the limit", map[string]int{"a": 9}, "p/a,p/b", "p/a: 2", v1.ReasonCalls, 2, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			var mu sync.Mutex
			dropped := map[string]int{}
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				name := "b"
				if strings.Contains(string(body), `"model":"a"`) {
					name = "a"
				}
				if name == c.refuses {
					http.Error(rw, `{"error": {"message": "no such model"}}`, http.StatusNotFound)
					return
				}
				mu.Lock()
				dropped[name]++
				drop := dropped[name] <= c.drops[name]
				mu.Unlock()
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, `data: {"choices": [{"index": 0, "delta": {"content": "`+"```repl\\nFINAL("+`"}}]}`+"\n\n")
				rw.(http.Flusher).Flush()
				if drop {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(rw, `data: {"choices": [{"index": 0, "delta": {"content": "42)\n`+"```\\n"+`"}, "finish_reason": "stop"}], `+
					`"usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}}`+"\n\ndata: [DONE]\n\n")
			}))
			t.Cleanup(srv.Close)
			set, err := llm.Open(llm.Config{
				Env:       func(string) string { return "" },
				Retry:     llm.Retry{Attempts: 3, Backoff: v1.Duration(time.Millisecond)},
				Providers: map[string]llm.Provider{"p": {Type: llm.TypeOpenAI, BaseURL: srv.URL}},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(set.Close)
			d.opts.Models = func(int, string) (llm.Model, error) { return set.Model(c.model) }
			d.opts.Limits.Calls = new(c.limit)
			res, err := d.run(Question{Inputs: []Input{Text("a short context")}})
			if (err == nil) != (c.reason == v1.ReasonAnswered) || res.Reason != c.reason || err == nil && res.Answer != "42" {
				t.Errorf("%v %+v", err, res)
			}
			var by []string
			for _, s := range res.By {
				by = append(by, fmt.Sprintf("%s: %d", s.Model, s.Calls))
				if name := strings.TrimPrefix(s.Model, "p/"); s.Estimated != (c.drops[name] > 0) {
					t.Errorf("%+v", s)
				}
			}
			if got := strings.Join(by, ", "); got != c.by {
				t.Errorf("calls by model: %s, want %s", got, c.by)
			}
		})
	}
}

// accountant is a model that sums up what its calls in flight may use and what was used before.
type accountant struct {
	*fake

	mu   sync.Mutex
	used int64 // guarded by mu
	most int64 // guarded by mu
}

func (a *accountant) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	var most int64
	for _, m := range req.Messages {
		most += a.Count(m.Content)
	}
	most += req.MaxTokens
	a.mu.Lock()
	a.used += most
	a.most = max(a.most, a.used)
	a.mu.Unlock()
	reply, err := a.fake.Complete(ctx, req)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used -= most; err == nil {
		a.used += reply.Usage.Tokens()
	}
	return reply, err
}

func TestTheMaximumLengthOfAReplyIsWithinTheBudget(t *testing.T) {
	const limit = 12_000
	d := newDesk(t)
	d.opts.Limits.Tokens = new(int64(limit))
	a := &accountant{fake: d.root}
	waits := &rounds{of: 2}
	d.root.answer = func(ctx context.Context, n int, req llm.Request) (string, error) {
		if req.Tags["call"] != v1.CallSub {
			return block("r = llm_query_batched(['word ' * 100 + str(i) for i in range(8)])\nFINAL(len(r))"), nil
		}
		return "ok", waits.meet(ctx)
	}
	d.opts.Models = func(int, string) (llm.Model, error) { return a, nil }
	d.answered(Question{Inputs: []Input{Text("a short context")}})
	if a.most > limit || a.most < limit/2 {
		t.Errorf("the calls in flight may use %d of %d tokens", a.most, limit)
	}
}

// censored is a model whose provider refuses from the given call on.
type censored struct {
	*fake
	from int
}

func (m censored) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	reply, err := m.fake.Complete(ctx, req)
	if err == nil && m.fake.calls >= m.from {
		reply.Finish = llm.FinishFilter
	}
	return reply, err
}

func TestARefusalIsNoAnswer(t *testing.T) {
	for _, c := range []struct {
		name, text string
		plain      int64
		from       int
	}{
		{"plain", "I cannot help with that.", 1 << 20, 1},
		{"in a turn", "FINAL(I cannot help with that.)", -1, 1},
		{"in the second turn", "FINAL(I cannot help with that.)", -1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block("print(1)"), c.text)
			if c.from == 1 {
				d.root.answer = script(c.text)
			}
			d.opts.PlainBelow = c.plain
			d.opts.Models = func(int, string) (llm.Model, error) { return censored{d.root, c.from}, nil }
			res, err := d.run(Question{Query: "Q?", Inputs: []Input{Text("a short context")}})
			if err == nil || res.Reason != v1.ReasonRefused || !res.Partial || !strings.Contains(err.Error(), "refused to answer") {
				t.Errorf("%v %+v", err, res)
			}
		})
	}
}

func TestASmallContextWithToolsIsNotAnsweredByAPlainCall(t *testing.T) {
	d := newDesk(t, block("FINAL(twice(21))"))
	d.opts.PlainBelow = 0 // the default
	d.opts.Tools = []Tool{{Name: "twice", Doc: "doubles", Call: func(context.Context, ToolCall) (any, error) { return 42, nil }}}
	if res := d.answered(Question{Query: "Q?", Inputs: []Input{Text("a short context")}}); res.Plain || res.Answer != "42" {
		t.Errorf("%+v", res)
	}
}
