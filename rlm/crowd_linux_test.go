//go:build linux

package rlm

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/llm"
)

func TestRunsAtOnceDoNotMix(t *testing.T) {
	const runs = 8
	l := unlimited()
	l.Depth, l.Turns = 2, 10
	// One engine and one pair of models serve all: whoever mixes something up mixes it here.
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
		Sandboxes: FromBackend(boxes), Limits: &l, Dir: t.TempDir(), PlainBelow: -1,
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

func TestThousandsOfSubCallsAreAllAccountedFor(t *testing.T) {
	const calls = 3000
	d := newDesk(t, block(fmt.Sprintf("rs = llm_query_batched(['number %%d' %% i for i in range(%d)])\nFINAL(len(set(rs)))", calls)))
	d.opts.Parallel = 64
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		return req.Messages[0].Content + "!", nil
	}
	e := d.engine()
	res, err := e.Run(t.Context(), Question{Inputs: []Input{Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, fmt.Sprint(calls))
	same(t, "calls", res.Usage.Calls, int64(calls+1))
	var want llm.Usage
	want = want.Add(d.root.total).Add(d.sub.total)
	same(t, "tokens, as the models count them", res.Usage.Tokens(), want.Tokens())
	kinds := map[Kind]int{}
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
	same(t, "beginnings", kinds[KindCallStarted], calls+1)
	same(t, "ends", kinds[KindCallEnded], calls+1)
}
