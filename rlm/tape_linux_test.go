//go:build linux

package rlm

import (
	"context"
	"errors"
	"testing"
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
