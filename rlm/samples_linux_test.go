//go:build linux

package rlm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// byNode answers each candidate with its own texts, one for each turn.
func byNode(texts map[string][]string) func(context.Context, int, llm.Request) (string, error) {
	var mu sync.Mutex
	turns := map[string]int{}
	return func(_ context.Context, _ int, req llm.Request) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		node := req.Tags["node"]
		all := texts[node]
		if len(all) == 0 {
			return "", errors.New("the model is away")
		}
		turns[node]++
		return all[min(turns[node], len(all))-1], nil
	}
}

func TestSamplesAgreeOnAnAnswer(t *testing.T) {
	d := newDesk(t)
	// Each candidate has variables of its own, and the context of the prepared sandbox.
	own := block("x = globals().get('x', 0) + len(context)\nnote = llm_query('read ' + context[:1000])")
	d.root.answer = byNode(map[string][]string{
		"0/s1": {own, block("FINAL('Bert')")},
		"0/s2": {own, block("FINAL(x)")},
		"0/s3": {own, block("FINAL(f'{x}.0')")},
		"0/s4": {block("print('y' * 8000)")}, // spends all it can
		"0/s5": nil,
	})
	d.opts.Limits.Tokens = new(int64(100_000))
	d.opts.Limits.Children = new(2)
	var text strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&text, "line %04d\n", i)
	}
	res := d.answered(Question{Query: "How long is it?", Inputs: []Input{Text(text.String())}, Samples: 5})
	same(t, "answer", res.Answer, "40000")
	s := res.Samples
	if s == nil || s.Count != 5 || s.Answered != 3 || s.Agreement != 2 || !s.Candidates[1].Agrees || s.Candidates[0].Agrees {
		t.Fatalf("%+v", s)
	}
	same(t, "turns", res.Turns, 2)
	same(t, "a greedy candidate", s.Candidates[3].Reason, v1.ReasonTokens)
	same(t, "a candidate whose model fails", s.Candidates[4].Reason, v1.ReasonModel)
	var sum llm.Usage
	for _, c := range s.Candidates {
		if c.Usage.Tokens() > 20_000 {
			t.Errorf("%s has used %d tokens", c.Node, c.Usage.Tokens())
		}
		sum = sum.Add(c.Usage)
	}
	if want := d.root.total.Add(d.sub.total); sum != want || res.Usage != want {
		t.Errorf("candidates %+v, run %+v, models %+v", sum, res.Usage, want)
	}
	same(t, "equal sub-calls", d.sub.calls, 1)
	if read := res.Coverage.Read; read < 1300 || read > 1301 { // of the call, and the end of the text in the prompt
		t.Errorf("coverage: %d bytes", read)
	}
	var snapshots, loads int
	for e, err := range d.engine().Events(res.Run) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == v1.KindSnapshot {
			snapshots++
		}
		if e.Kind == v1.KindSandbox && e.Node == "0" {
			loads++
		}
	}
	same(t, "warm snapshots", snapshots, 1)
	same(t, "sandboxes into which the context was loaded", loads, 1)
	if left, err := boxes.Snapshots(t.Context()); err != nil || slices.ContainsFunc(left, func(s *sandbox.Snapshot) bool { return s.Labels[LabelRun] == res.Run }) {
		t.Errorf("the snapshot is left: %v", err)
	}
	again, err := d.engine().Replay(t.Context(), res.Run)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := again.Wait(); err != nil || r.Answer != res.Answer || r.Samples.Agreement != 2 || r.Usage != res.Usage {
		t.Errorf("the replay: %+v %v", r, err)
	}
	if _, err := d.engine().Fork(t.Context(), res.Run, 0, ContinueOptions{}); v1.CodeOf(err) != v1.CodeInvalidRequest {
		t.Errorf("a fork: %v", err)
	}
}

func TestSamplesOfASmallContext(t *testing.T) {
	d := newDesk(t)
	d.opts.PlainBelow = 0
	d.root.answer = byNode(map[string][]string{
		"0/s1": {`{"who": "Bert"}`}, "0/s2": {`{"who": "Anna"}`}, "0/s3": {"not JSON", "```json\n{\"who\":\"anna\"}\n```"},
	})
	res := d.answered(Question{
		Query: "Who?", Inputs: []Input{Text("Anna did it.")}, Samples: 3, Schema: []byte(`{"type":"object","required":["who"]}`),
	})
	if !res.Plain || string(res.Value) != `{"who": "Anna"}` || res.Samples.Agreement != 2 || res.Usage.Calls != 4 {
		t.Errorf("%+v %+v", res, res.Samples)
	}
}

func TestResumedSamplesAreNotPaidAgain(t *testing.T) {
	d := newDesk(t)
	first := byNode(map[string][]string{"0/s1": {block("FINAL('a')")}, "0/s3": {block("FINAL('b')")}})
	waits := make(chan struct{})
	d.root.answer = func(ctx context.Context, n int, req llm.Request) (string, error) {
		if req.Tags["node"] != "0/s2" {
			return first(ctx, n, req)
		}
		if req.Tags["turn"] == "1" {
			return block("x = 'A'"), nil
		}
		close(waits)
		<-ctx.Done()
		return "", ctx.Err()
	}
	r, err := d.engine().Start(t.Context(), Question{Query: "Which?", Inputs: []Input{Text("text")}, Samples: 3})
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for e, err := range r.Events(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == v1.KindChildEnded {
			if ended++; ended == 2 {
				if err := await(t.Context(), waits); err != nil {
					t.Fatal(err)
				}
				r.Cancel()
			}
		}
	}
	res, err := r.Wait()
	if err == nil || res.Reason != v1.ReasonCancelled || !res.Partial || res.Answer != "a" || res.Samples.Answered != 2 {
		t.Fatalf("%+v %+v %v", res, res.Samples, err)
	}
	paid := d.root.calls
	d.root.answer = byNode(map[string][]string{"0/s2": {block("FINAL(x)")}})
	res, err = d.resumed(res.Run, v1.RunLimits{})
	if err != nil || res.Answer != "a" || res.How != v1.HowCode || res.Samples.Agreement != 2 || res.Samples.Answered != 3 {
		t.Fatalf("%+v %v", res, err)
	}
	same(t, "calls of the resumed run", d.root.calls-paid, 1)
	if c := res.Samples.Candidates; c[0].Usage.Calls != 1 || c[1].Usage.Calls != 2 {
		t.Errorf("%+v", c)
	}
}

func TestInvalidSamples(t *testing.T) {
	d := newDesk(t)
	for name, q := range map[string]Question{
		"too many":   {Query: "q", Samples: v1.MaxSamples + 1},
		"negative":   {Query: "q", Samples: -1},
		"in session": {Query: "q", Samples: 2, Sandbox: session{}},
	} {
		if _, err := d.engine().Start(t.Context(), q); v1.CodeOf(err) != v1.CodeInvalidRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// session stands for the sandbox of a session.
type session struct{ Sandbox }
