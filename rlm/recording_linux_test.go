//go:build linux

package rlm

import (
	"context"
	"errors"
	"testing"

	"github.com/recluse-dev/recluse/llm"
)

func TestAReplayUsesNoTool(t *testing.T) {
	d := newDesk(t, block("seen = [shop('a <b> & c', [1, 2], deep={'x': 'ü\u2028'})]\ntry:\n    shop('shut')\nexcept Exception as e:\n    seen.append(str(e))\nFINAL(seen)"))
	used := 0
	d.opts.Tools = []Tool{{Name: "shop", Doc: "shop(what): buys it", Call: func(_ context.Context, c ToolCall) (any, error) {
		used++
		if string(c.Args[0]) == `"shut"` {
			return nil, errors.New("nobody is there")
		}
		return used, nil
	}}}
	e := d.engine()
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	r, err := e.Replay(t.Context(), first.Run)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", again.Answer, first.Answer)
	same(t, "uses of the tool", used, 2)
}

func TestWhatCameFromACacheIsNotPaidWhenTheRunGoesOn(t *testing.T) {
	d := newDesk(t, block("FINAL(llm_query('same'))"))
	d.opts.Cache = NewCache(0)
	d.answered(Question{Inputs: []Input{Text("x")}})
	d.root.answer = func(_ context.Context, n int, _ llm.Request) (string, error) {
		if n == 2 {
			return block("a = llm_query('same')"), nil
		}
		return "", errors.New("503 overloaded")
	}
	res, err := d.run(Question{Inputs: []Input{Text("x")}})
	if err == nil {
		t.Fatal("the model failed, and the run did not")
	}
	same(t, "from the cache", res.Cached, 1)
	// Another program has its own cache.
	d.opts.Cache = nil
	d.root.answer = script(block("FINAL(a)"))
	r, err := d.engine().Resume(t.Context(), res.Run, ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", again.Answer, "read: same")
	same(t, "calls of the sub-model", d.sub.calls, 1)
}
