//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// newEngine returns an engine without limits. Its models are scripted and take only the time that their script sets, so
// the rest is our own time. The root model answers its n-th call, counted from 1, with the code that root returns. sub
// answers all other calls.
func (b *bench) newEngine(
	root func(n int, req llm.Request) string, sub llm.Model, change func(*rlm.Options),
) (*rlm.Engine, *usageCounter) {
	calls := 0
	respond := func(_ context.Context, req llm.Request) (string, error) {
		calls++
		return "```repl\n" + root(calls, req) + "\n```\n", nil
	}
	model := &usageCounter{Model: llm.NewScripted("scripted/root", llm.Rule{Respond: respond})}
	dir := must(os.MkdirTemp(b.dir, "runs-"))
	o := rlm.Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return model, nil
			}
			return sub, nil
		},
		Sandboxes:  rlm.FromBackend(b.backend),
		Dir:        dir,
		PlainBelow: -1,
		Limits: v1.RunLimits{
			Tokens: new(int64(v1.NoLimit)), Time: new(v1.Duration(v1.NoLimit)), Turns: new(v1.NoLimit), Errors: new(1),
		},
	}
	if change != nil {
		change(&o)
	}
	return must(rlm.New(o)), model
}

// usageCounter adds up the usage that a model reports.
type usageCounter struct {
	llm.Model

	mu    sync.Mutex
	total llm.Usage // guarded by mu
}

// Complete implements llm.Model.
func (t *usageCounter) Complete(ctx context.Context, req llm.Request) (*llm.Reply, error) {
	r, err := t.Model.Complete(ctx, req)
	if r != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.total = t.total.Add(r.Usage)
	}
	return r, err
}

// turns measures our own time in a turn: from the model's reply to its next call, including a cell that prints a line.
func turns(ctx context.Context, b *bench) {
	const history = 30
	sb := b.open(ctx)
	defer closing(sb.Close)
	code := func(n int) string { return fmt.Sprintf("x%d = %d\nprint('a turn that says a little', x%d)", n, n, n) }
	all, early, late, bare := samples{}, samples{}, samples{}, samples{}
	for range b.times(12, 3) {
		var last time.Time
		e, _ := b.newEngine(func(n int, _ llm.Request) string {
			gap := time.Since(last)
			switch {
			case n <= 2: // the first turn starts the interpreter
			case n <= 5:
				early, all = append(early, gap), append(all, gap)
			case n > history-2:
				late, all = append(late, gap), append(all, gap)
			default:
				all = append(all, gap)
			}
			// The time of the scripted model itself does not count.
			defer func() { last = time.Now() }()
			if n > history {
				return "FINAL(1)"
			}
			return code(n)
		}, nil, nil)
		must(e.Run(ctx, rlm.Question{Query: "count", Inputs: []rlm.Input{rlm.Text("x")}}))
		for n := range history {
			began := time.Now()
			must(sb.Cell(ctx, sandbox.Cell{Code: code(n)}))
			bare = append(bare, time.Since(began))
		}
	}
	b.report([]row{
		{
			Name:     "turn",
			What:     fmt.Sprintf("our own time per turn over %d turns, p50", history),
			Measured: all.median(),
			Unit:     "ms",
			Baseline: bare.median(),
			Against:  "the same cells alone",
			Target:   "≤ 5 ms",
			Reached:  reached(all.median() <= 5),
			Note:     fmt.Sprintf("p99 %.3f ms", all.at(99)),
		},
		{
			Name:     "turn_late",
			What:     fmt.Sprintf("turns %d to %d of these, p50", history-2, history),
			Measured: late.median(),
			Unit:     "ms",
			Baseline: early.median(),
			Against:  "turns 2 to 4",
			Target:   "≤ 1.2 ×",
			Reached:  reached(late.median() <= 1.2*early.median()),
		},
	})
}

// The batch: number of prompts, number of concurrent calls, and latency of the model.
const (
	batchPrompts = 1000
	batchAtOnce  = 100
	batchLatency = 50 * time.Millisecond
)

// batches measures llm_query_batched with a model in this program, and with one over HTTP.
func batches(ctx context.Context, b *bench) {
	within := llm.NewScripted("scripted/sub", llm.Rule{Reply: "ok", Delay: batchLatency})
	remote, stop := remoteModel()
	defer stop()
	ideal := float64(batchPrompts/batchAtOnce) * float64(batchLatency.Milliseconds())
	for _, w := range []struct {
		name, what string
		model      llm.Model
		most       float64
	}{
		{"batch", "within the program", within, 1.15},
		{"batch_http", "over HTTP", remote, 1.3},
	} {
		ours, bare := samples{}, samples{}
		for i := range b.times(7, 2) + 1 {
			took := b.batch(ctx, w.model)
			began := time.Now()
			each(batchPrompts, batchAtOnce, func(n int) {
				must(w.model.Complete(ctx, llm.Request{Messages: []llm.Message{{Role: llm.User, Content: fmt.Sprint("p", n)}}}))
			})
			if i > 0 { // the first round makes the connections
				ours, bare = append(ours, took), append(bare, time.Since(began))
			}
		}
		b.report([]row{{
			Name:     w.name,
			What:     fmt.Sprintf("llm_query_batched of %d prompts, a model %s, p50", batchPrompts, w.what),
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: ideal,
			Against:  "ideal",
			Target:   fmt.Sprintf("≤ %v ×", w.most),
			Reached:  reached(ours.median() <= w.most*ideal),
			Note: fmt.Sprintf("%d at a time, %v each; the same calls from Go, without a sandbox: %.0f ms",
				batchAtOnce, batchLatency, bare.median()),
		}})
	}
}

// batch returns the duration of one batch, measured by the code inside.
func (b *bench) batch(ctx context.Context, sub llm.Model) time.Duration {
	e, _ := b.newEngine(func(int, llm.Request) string {
		return fmt.Sprintf(
			"import time\nt = time.perf_counter()\nr = llm_query_batched(['p%%d' %% i for i in range(%d)])\nt = time.perf_counter() - t\nassert r == ['ok'] * %d, r[:3]\nFINAL(str(t))",
			batchPrompts,
			batchPrompts,
		)
	}, sub, func(o *rlm.Options) { o.Limits.Parallel = new(batchAtOnce) })
	res := must(e.Run(ctx, rlm.Question{Query: "ask", Inputs: []rlm.Input{rlm.Text("x")}}))
	return must(v1.ParseDuration(res.Answer)).Std() // the answer is in seconds
}

// remoteModel returns a model behind HTTP on loopback that replies ok after the latency, in the format of an
// OpenAI-compatible server.
func remoteModel() (_ llm.Model, stop func()) {
	const reply = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}` + "\n\n" +
		`data: {"id":"1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}` + "\n\ndata: [DONE]\n\n"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(batchLatency)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, reply)
	}))
	set := must(llm.Open(llm.Config{
		Providers: map[string]llm.Provider{
			"here": {Type: llm.TypeOpenAI, BaseURL: srv.URL + "/v1", Concurrency: batchAtOnce, Local: true},
		},
		Env: func(string) string { return "" },
	}))
	return must(set.Model("here/model")), func() {
		set.Close()
		srv.Close()
	}
}

// writeText writes a file of size bytes with lines of text.
func writeText(path string, size int64) {
	f := must(os.Create(path))
	defer closing(f.Close)
	lines := strings.Repeat(strings.Repeat("all work and no play makes a dull day; ", 4)+"\n", 1<<13)
	for size > 0 {
		size -= int64(must(io.WriteString(f, lines[:min(size, int64(len(lines)))])))
	}
	check(f.Chmod(0o644))
}

// contextDir makes a directory for contexts below the temporary directory.
func (b *bench) contextDir() string { return must(os.MkdirTemp(b.dir, "contexts-")) }
