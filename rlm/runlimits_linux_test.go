//go:build linux

package rlm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// TestDefaultsReadALargeContextOnce reads 600,000 characters in sub-calls, within the default limits. The text is
// ordinary English, counted like the tokens of an unknown model.
func TestDefaultsReadALargeContextOnce(t *testing.T) {
	d := newDesk(t,
		block("pieces = chunks(context, 50000)\nprint(len(pieces))"),
		block("notes = llm_query_batched(['Summarize the following text.\\n' + p for p in pieces])\nprint(sum(len(n) for n in notes))"),
		block("FINAL(len(notes))"))
	d.opts.Limits = v1.RunLimits{}
	d.sub.answer = func(context.Context, int, llm.Request) (string, error) {
		return strings.Repeat("This part of the text is about sandboxes. ", 40), nil
	}
	d.opts.Models = func(depth int, _ string) (llm.Model, error) {
		return counted{[]*fake{d.root, d.sub}[min(depth, 1)]}, nil
	}
	var text strings.Builder
	for i := 0; text.Len() < 600_000; i++ {
		fmt.Fprintf(&text, "Line %d: the engine starts a sandbox, runs the code in it, and reports how the code ended.\n", i)
	}
	res := d.answered(Question{Query: "What is it about?", Inputs: []Input{Text(text.String()[:600_000])}})
	t.Logf("%d of %d tokens", res.Usage.Tokens(), *res.Limits.Tokens)
	if res.Answer != "13" || res.Coverage.ByCalls != 600_000 || res.Usage.Tokens() < 130_000 {
		t.Errorf("%s: %+v %+v", res.Answer, res.Usage, res.Coverage)
	}
}

// counted is a model whose tokens are counted like those of an unknown model.
type counted struct{ *fake }

func (counted) Count(text string) int64 { return llm.Count(text) }

func TestRunWithToolsHasAnInterpreter(t *testing.T) {
	d := newDesk(t, block("FINAL(price('tea'))"))
	d.opts.PlainBelow = 0
	d.opts.Tools = []Tool{{Name: "price", Doc: "price(item): the price of an item", Call: func(context.Context, ToolCall) (any, error) {
		return "tea: 30 cents", nil
	}}}
	if res := d.answered(Question{Query: "What does tea cost?", Inputs: []Input{Text("a small context")}}); res.Plain || res.Answer != "tea: 30 cents" {
		t.Errorf("%+v", res)
	}
}

func TestRemediesNameOnlyFlagsThatExist(t *testing.T) {
	for reason, want := range map[Reason]string{
		v1.ReasonTokens: "resume the run with a higher limit (--max-tokens)",
		v1.ReasonCPU:    "resume the run with a higher limit (--max-cpu)",
		v1.ReasonFormat: "",
	} {
		if e, ok := errors.AsType[*v1.Error](exhausted(reason, "x")); !ok || e.Remedy != want {
			t.Errorf("%s: %q", reason, e.Remedy)
		}
	}
}
