//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/synthetic"
)

// bigContext measures a run over a large file, from the question to the length of its text, alternating with python3
// that reads the same file.
func bigContext(ctx context.Context, b *bench) {
	size := int64(b.times(1<<30, 64<<20))
	dir := b.contextDir()
	defer closing(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "context.txt")
	writeText(path, size)
	ours, python, most := samples{}, samples{}, int64(0)
	for i := range b.times(3, 2) + 1 {
		began := time.Now()
		out, err := exec.CommandContext(ctx, "python3", "-c", "import sys; print(len(open(sys.argv[1], encoding='utf-8').read()))", path).
			CombinedOutput()
		plain := time.Since(began)
		checkf(err == nil && strings.TrimSpace(string(out)) == fmt.Sprint(size), "python3 printed %s: %w", out, err)
		e, _ := b.newEngine(func(int, llm.Request) string { return "FINAL(len(context))" }, nil, nil)
		var res *rlm.Result
		grown := peakGrowth(func() {
			began = time.Now()
			res = must(e.Run(ctx, rlm.Question{Query: "how long?", Inputs: []rlm.Input{rlm.File(path)}}))
		})
		took := time.Since(began)
		checkf(res.Answer == fmt.Sprint(size), "len(context) is %s, not %d", res.Answer, size)
		if i > 0 { // the first round reads the file from disk, and makes a template
			ours, python, most = append(ours, took), append(python, plain), max(most, grown)
		}
	}
	b.report([]row{
		{
			Name:     "context",
			What:     fmt.Sprintf("text of %d MiB, from file to len(context), p50", size>>20),
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: python.median(),
			Against:  "python3, no sandbox",
			Target:   "≤ 2 ×",
			Reached:  reached(ours.median() <= 2*python.median()),
			Note:     "the whole run, including start and end of its sandbox",
		},
		{
			Name:     "context_memory",
			What:     "our own memory during it, above idle",
			Measured: float64(most) / 1e6,
			Unit:     "MB",
			Target:   "< 64 MB",
			Reached:  reached(most < 64_000_000),
		},
	})
}

// subCalls makes thousands of calls in one run, and checks that the memory does not grow and that every event and every
// token is recorded.
func subCalls(ctx context.Context, b *bench) {
	const batch, rounds = 1000, 10
	per := b.times(batch, batch/10)
	sub := &usageCounter{
		Model: llm.NewScripted("scripted/sub", llm.Rule{Respond: func(_ context.Context, req llm.Request) (string, error) {
			return req.Messages[0].Content + "!", nil
		}}),
	}
	var heap []float64 // live heap in MB before each round and after the last
	e, root := b.newEngine(func(n int, _ llm.Request) string {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap = append(heap, float64(m.HeapAlloc)/1e6)
		if n > rounds {
			return "FINAL(str(total))"
		}
		return fmt.Sprintf(
			"ps = ['number %%d' %% i for i in range(%d, %d)]\nassert llm_query_batched(ps) == [p + '!' for p in ps]\ntotal = %d + len(ps)",
			(n-1)*per,
			n*per,
			(n-1)*per,
		)
	}, sub, func(o *rlm.Options) { o.Limits.Parallel = new(64) })
	res := must(e.Run(ctx, rlm.Question{Query: "count", Inputs: []rlm.Input{rlm.Text("x")}}))
	calls := rounds * per
	checkf(res.Answer == fmt.Sprint(calls), "got %s replies, want %d", res.Answer, calls)
	begun, ended, seq, whole := 0, 0, int64(0), true
	for ev, err := range e.Events(res.Run) {
		check(err)
		seq++
		whole = whole && ev.Seq == seq
		switch ev.Kind {
		case v1.KindCallStarted:
			begun++
		case v1.KindCallEnded:
			ended++
		default: // other events do not matter here
		}
	}
	all := calls + rounds + 1
	spent := root.total.Add(sub.total)
	whole = whole && begun == all && ended == all && res.Usage.Calls == int64(all) && res.Usage.Tokens() == spent.Tokens()
	grown := heap[rounds] - heap[1]
	b.report([]row{
		{
			Name:     "subcalls",
			What:     fmt.Sprintf("%d sub-calls in one run, total", calls),
			Measured: res.Wall.Seconds() * 1e3,
			Unit:     "ms",
			Target:   "all accounted for",
			Reached:  reached(whole),
			Note: fmt.Sprintf("%d calls started, %d ended, %d accounted for; "+
				"%d tokens, %d reported by the models; %d events",
				begun, ended, res.Usage.Calls, res.Usage.Tokens(), spent.Tokens(), seq),
		},
		{
			Name:     "subcalls_memory",
			What:     "live heap after the last of them",
			Measured: heap[rounds],
			Unit:     "MB",
			Baseline: heap[1],
			Against:  "after the first tenth",
			Target:   "≤ 8 MB more",
			Reached:  reached(grown <= 8),
		},
	})
}

// owner matches the mark of everything that belongs to a run.
var owner = regexp.MustCompile(`owner-\d+-`)

// runsAtOnce runs many questions in one engine at once, and searches each run for traces of another run.
func runsAtOnce(ctx context.Context, b *bench) {
	many, calls := b.times(32, 8), 20
	sub := llm.NewScripted("scripted/sub", llm.Rule{Respond: func(_ context.Context, req llm.Request) (string, error) {
		return "<" + req.Messages[0].Content + ">", nil
	}})
	mine := func(me string) string {
		return fmt.Sprintf(
			"me = context.split()[0]\nassert me == %q\nps = [me + ' ' + str(i) for i in range(%d)]\nprint(me, llm_query_batched(ps) == ['<' + p + '>' for p in ps])",
			me,
			calls,
		)
	}
	model := llm.NewScripted("scripted/root", llm.Rule{Respond: func(_ context.Context, req llm.Request) (string, error) {
		me := owner.FindString(req.Messages[1].Content)
		said := req.Messages[len(req.Messages)-1].Content
		if len(req.Messages) == 2 {
			return "```repl\n" + mine(me) + "\n```\n", nil
		}
		return "```repl\nFINAL(" + fmt.Sprintf(
			"%q + me",
			fmt.Sprint(strings.Contains(said, me+" True"), " "),
		) + ")\n```\n", nil
	}})
	e, _ := b.newEngine(nil, sub, func(o *rlm.Options) {
		o.Models = func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return model, nil
			}
			return sub, nil
		}
	})
	var separate, foreign atomic.Int64
	ask := func(i int) {
		me := fmt.Sprintf("owner-%d-", i)
		res := must(
			e.Run(ctx, rlm.Question{Query: "Whose is it? Of " + me, Inputs: []rlm.Input{rlm.Text(me + " owns this text")}}),
		)
		own := res.Answer == "true "+me && res.Usage.Calls == int64(calls+2)
		for ev, err := range e.Events(res.Run) {
			check(err)
			for _, name := range owner.FindAllString(string(ev.Data), -1) {
				if name != me {
					foreign.Add(1)
					own = false
				}
			}
		}
		if own {
			separate.Add(1)
		} else {
			b.log("rlm: run of %s: %q, %d calls", me, res.Answer, res.Usage.Calls)
		}
	}
	ask(many) // one run alone, which also warms
	began := time.Now()
	ask(many + 1)
	alone := time.Since(began)
	separate.Store(0)
	began = time.Now()
	each(many, many, ask)
	took := time.Since(began)
	b.report([]row{{
		Name:     "runs",
		What:     fmt.Sprintf("of %d concurrent runs, those without traces of another run", many),
		Measured: float64(separate.Load()),
		Target:   "all",
		Reached:  reached(separate.Load() == int64(many)),
		Note: fmt.Sprintf("answers, calls and events compared by content, %d foreign marks; "+
			"%.1f s in total, one run alone %.2f s",
			foreign.Load(), took.Seconds(), alone.Seconds()),
	}})
}

// tasks answers questions with known answers, at several sizes, through the real engine and sandbox.
func tasks(ctx context.Context, b *bench) {
	sizes := []int64{1_000_000, 10_000_000, 100_000_000}
	if b.quick {
		sizes = []int64{100_000, 1_000_000}
	}
	var errs []error
	for _, size := range sizes {
		for _, task := range synthetic.All(size, 1) {
			if err := attempt(func() { b.solve(ctx, task) }); err != nil { // the others still run
				errs = append(errs, fmt.Errorf("%d characters: %w", size, err))
			}
		}
	}
	check(errors.Join(errs...))
}

func (b *bench) solve(ctx context.Context, task *synthetic.Task) {
	dir := b.contextDir()
	defer closing(func() error { return os.RemoveAll(dir) })
	began := time.Now()
	r := must(task.Solve(ctx, rlm.Options{Sandboxes: rlm.FromBackend(b.backend), Dir: dir}, dir))
	b.log("rlm: %s of %d characters: %.1f s including the writing of its context",
		task.Name, task.Size, time.Since(began).Seconds())
	right := r.Correct && (!task.ReadsAll || r.Coverage >= 99)
	if !r.Correct {
		b.log("rlm: %s of %d: answer %.200s, want %.200s", task.Name, task.Size, r.Answer, task.Answer)
	}
	target := "the known answer"
	if task.ReadsAll {
		target += ", all read"
	}
	b.report([]row{{
		Name:     fmt.Sprintf("task_%s_%d", task.Name, task.Size),
		What:     fmt.Sprintf("%s over %g M characters", task.Name, float64(task.Size)/1e6),
		Measured: r.Wall.Seconds() * 1e3,
		Unit:     "ms",
		Target:   target,
		Reached:  reached(right),
		Note: fmt.Sprintf("%d calls, %d turns, %.2f %% of the context read by models",
			r.Calls, r.Turns, r.Coverage),
	}})
}
