//go:build linux

package rlm

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
)

func TestRunsAtOnceDoNotMix(t *testing.T) {
	const runs = 32
	l := unlimited()
	l.Depth, l.Turns = new(2), new(10)
	// One engine and one pair of models serve all runs, so that a mix-up between runs shows.
	root := &fake{answer: func(_ context.Context, _ int, req llm.Request) (string, error) {
		if len(req.Messages) == 2 {
			return block("me = context.split()[0]\nrs = llm_query_batched([me + ' ' + str(i) for i in range(20)])\nprint(me, len(rs))"), nil
		}
		seen := req.Messages[len(req.Messages)-1].Content
		me := strings.Fields(seen)[0]
		return block(fmt.Sprintf("assert me == %q\nFINAL(me + ':' + str(all(r == '<' + me + ' ' + str(i) + '>' for i, r in enumerate(rs))))", me)), nil
	}}
	sub := &fake{name: "fake/sub", answer: func(_ context.Context, _ int, req llm.Request) (string, error) {
		return "<" + req.Messages[0].Content + ">", nil
	}}
	e, err := New(Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return root, nil
			}
			return sub, nil
		},
		Sandboxes: sandboxes(t), Limits: l, Dir: t.TempDir(), PlainBelow: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			me := fmt.Sprintf("run%d", i)
			res, err := e.Run(t.Context(), Question{Query: me, Inputs: []Input{Text(me + " is the owner of this text")}})
			if err != nil {
				t.Error(err)
				return
			}
			same(t, "answer", res.Answer, me+":True")
			same(t, "calls", res.Usage.Calls, 22)
		})
	}
	wg.Wait()
}

func TestThousandsOfSubCallsAreAllAccountedForAndLeaveNothingInMemory(t *testing.T) {
	testneed.Alone(t) // the test measures the memory of the whole program
	const turns = 10
	calls := 3_000
	if testneed.AllTests() {
		calls = 10_000
	}
	var early, late runtime.MemStats
	d := newDesk(t)
	d.root.answer = func(_ context.Context, n int, _ llm.Request) (string, error) {
		d.sub.mu.Lock()
		d.sub.asked = nil // memory of the test's model must not count
		d.sub.mu.Unlock()
		switch n {
		case 1:
			return block(fmt.Sprintf(`
total = 0
def some(turn):
    global total
    n = %d
    rs = llm_query_batched([str(turn * n + i) + ' ' + 'x' * 4000 for i in range(n)])
    total += len(set(rs))
some(0)`, calls/turns)), nil
		case 3:
			memory(&early)
		case turns + 1:
			memory(&late)
			return block("FINAL(total)"), nil
		}
		return block(fmt.Sprintf("some(%d)", n-1)), nil
	}
	d.opts.Limits.Parallel = new(64)
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		return strings.Fields(req.Messages[0].Content)[0] + "!", nil
	}
	d.opts.Limits.Tokens = new(int64(v1.NoLimit))
	e := d.engine()
	res, err := e.Run(t.Context(), Question{Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	// Each prompt has 4 KB. A call that does not free its prompt is noticed.
	between := calls / turns * (turns - 2)
	if grown := int64(late.HeapAlloc) - int64(early.HeapAlloc); grown > int64(between)*2000 {
		t.Errorf("memory grew by %[2]d bytes in %[1]d calls", between, grown)
	}
	same(t, "answer", res.Answer, fmt.Sprint(calls))
	same(t, "calls", res.Usage.Calls, int64(calls+turns+1))
	var want llm.Usage
	want = want.Add(d.root.total).Add(d.sub.total)
	same(t, "tokens, as the models count them", res.Usage.Tokens(), want.Tokens())
	kinds := map[v1.RunEventKind]int{}
	seq := int64(0)
	for ev, err := range e.Events(res.Run) {
		if err != nil {
			t.Fatal(err)
		}
		if seq++; ev.Seq != seq {
			t.Fatalf("event %d has number %d", seq, ev.Seq)
		}
		kinds[ev.Kind]++
	}
	same(t, "beginnings", kinds[v1.KindCallStarted], calls+turns+1)
	same(t, "ends", kinds[v1.KindCallEnded], calls+turns+1)
}

// memory returns the size of the live heap.
func memory(m *runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(m)
}
