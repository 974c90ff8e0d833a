//go:build linux

package rlm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// withOther adds a root model with a price, called fake/other.
func (d *desk) withOther(texts ...string) *fake {
	other := &fake{name: "fake/other", price: &llm.Price{Input: 1, Output: 1}, answer: script(texts...)}
	models := d.opts.Models
	d.opts.Models = func(depth int, name string) (llm.Model, error) {
		switch name {
		case "fake/other":
			return other, nil
		case "fake/root":
			return d.root, nil
		}
		return models(depth, name)
	}
	return other
}

// rootModels returns the models of the root node by turn, from the log of a run.
func rootModels(t *testing.T, e *Engine, id string) map[int]string {
	t.Helper()
	asked := map[int]string{}
	for ev, err := range e.Events(id) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind != v1.KindCallStarted {
			continue
		}
		var c v1.CallStarted
		if err := ev.Decode(&c); err != nil {
			t.Fatal(err)
		}
		if c.Call != v1.CallSub {
			asked[ev.Turn] = c.Model
		}
	}
	return asked
}

// sameModel checks the model of a run in Runs and in Show.
func sameModel(t *testing.T, e *Engine, id, want string) {
	t.Helper()
	info, err := e.Show(id)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "model of the run", info.Model, want)
	for i, err := range e.Runs() {
		if err != nil {
			t.Fatal(err)
		}
		if i.ID == id {
			same(t, "model in the list", i.Model, want)
		}
	}
}

func waited(t *testing.T, r *Run, err error) *Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestAForkWithAnotherModel(t *testing.T) {
	d := newDesk(t, block("a = llm_query('first')"), block("FINAL(a)"))
	other := d.withOther(block("FINAL('other: ' + a)"))
	e := d.engine()
	first := d.answered(Question{Inputs: []Input{Text("x")}, Model: "fake/root"})
	before, err := os.ReadDir(d.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Fork(t.Context(), first.Run, 1, ContinueOptions{Model: "fake/none"}); v1.CodeOf(err) != v1.CodeModelMissing {
		t.Errorf("an unknown model: %v", err)
	}
	if after, err := os.ReadDir(d.opts.Dir); err != nil || len(after) != len(before) {
		t.Errorf("a directory was left: %v %v", after, err)
	}
	r, err := e.Fork(t.Context(), first.Run, 1, ContinueOptions{Model: "fake/other"})
	res := waited(t, r, err)
	same(t, "answer", res.Answer, "other: read: first")
	same(t, "calls of the first model", d.root.calls, 2)
	if len(res.By) != 1 || res.By[0].Model != "fake/other" || res.By[0].Usage.Cost != other.total.Cost || res.Usage.Cost == 0 {
		t.Errorf("usage of the fork: %+v, want %+v", res.By, other.total)
	}
	sameModel(t, e, r.ID(), "fake/other")
	sameModel(t, e, first.Run, "fake/root")
	replay, err := e.Replay(t.Context(), r.ID())
	waited(t, replay, err)
	want := map[int]string{1: "fake/root", 2: "fake/other"}
	for _, id := range []string{r.ID(), replay.ID()} {
		if got := rootModels(t, e, id); !maps.Equal(got, want) {
			t.Errorf("the log of %s has %v, want %v", id, got, want)
		}
	}
	// A fork of the fork has its model.
	r, err = e.Fork(t.Context(), r.ID(), 1, ContinueOptions{})
	waited(t, r, err)
	same(t, "calls of the other model", other.calls, 2)
	sameModel(t, e, r.ID(), "fake/other")
}

func TestAResumeWithAnotherModel(t *testing.T) {
	d := newDesk(t, block("a = llm_query('first')"))
	other := d.withOther(block("b = a + '!'"), block("FINAL(b)"))
	d.opts.SnapshotEvery = -1 // all cells run again
	e := d.engine()
	limit := func(n int) v1.RunLimits { return v1.RunLimits{Turns: &n} }
	res, err := d.run(Question{Inputs: []Input{Text("x")}, Model: "fake/root", Limits: limit(1)})
	same(t, "code", v1.CodeOf(err), v1.CodeBudget)
	same(t, "code", v1.CodeOf(second(e.Resume(t.Context(), res.Run, ContinueOptions{Model: "fake/none"}))), v1.CodeModelMissing)
	r, err := e.Resume(t.Context(), res.Run, ContinueOptions{Model: "fake/other", Limits: limit(2)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = r.Wait(); v1.CodeOf(err) != v1.CodeBudget {
		t.Fatal(err)
	}
	sameModel(t, e, res.Run, "fake/other")
	// The next program finds the model in the log.
	e = d.engine()
	r, err = e.Resume(context.WithoutCancel(t.Context()), res.Run, ContinueOptions{Limits: limit(5)})
	res = waited(t, r, err)
	same(t, "answer", res.Answer, "read: first!")
	same(t, "calls of the sub-model", d.sub.calls, 1)
	same(t, "cost", fmt.Sprintf("%.9f", res.Usage.Cost), fmt.Sprintf("%.9f", other.total.Cost))
	var by []string
	for _, s := range res.By {
		by = append(by, fmt.Sprint(s.Model, " ", s.Usage.Calls))
	}
	slices.Sort(by)
	same(t, "who was paid", fmt.Sprint(by), fmt.Sprint([]string{
		fmt.Sprint("fake/other ", other.calls), fmt.Sprint("fake/root ", d.root.calls), "fake/sub 1",
	}))
	sameModel(t, e, res.Run, "fake/other")
	replay, err := e.Replay(t.Context(), res.Run)
	waited(t, replay, err)
	sameModel(t, e, replay.ID(), "fake/other")
	if got, want := rootModels(t, e, replay.ID()), map[int]string{1: "fake/root", 2: "fake/other", 3: "fake/other"}; got[1] != want[1] || got[3] != want[3] {
		t.Errorf("the log of the replay has %v, want %v", got, want)
	}
}

func second[T any](_ T, err error) error { return err }
