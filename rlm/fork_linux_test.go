//go:build linux

package rlm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func TestTheLogOfAForkIsItsOwn(t *testing.T) {
	d := newDesk(t, block("a = llm_query('first')"), block("FINAL(a)"))
	e := d.engine()
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	d.root.answer = func(context.Context, int, llm.Request) (string, error) { return "", errors.New("503 overloaded") }
	r, err := e.Fork(t.Context(), first.Run, 1, ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(); err == nil {
		t.Fatal("the model failed, and the fork did not")
	}
	info, err := e.Show(r.ID())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "tokens of the fork", info.Usage.Tokens(), 0)
	same(t, "turns that had begun", info.Turns, 2)
	d.root.answer = script(block("FINAL(a + '!')"))
	if r, err = e.Resume(t.Context(), r.ID(), ContinueOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "read: first!")
	same(t, "calls that the fork paid", res.Usage.Calls, 1)
}

func TestAForkIsReplayedWithTheModelsOfTheSharedTurns(t *testing.T) {
	d := newDesk(t, block("a = llm_query('first')"), block("FINAL(a)"))
	e := d.engine()
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	r, err := e.Fork(t.Context(), first.Run, 1, ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(); err != nil {
		t.Fatal(err)
	}
	if r, err = e.Replay(t.Context(), r.ID()); err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "read: first")
	asked := map[string]int{}
	for ev, err := range e.Events(r.ID()) {
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
		asked[c.Call+" "+c.Model]++
	}
	same(t, "sub-calls", asked["sub fake/sub"], 1)
}

func TestAForkBehindTheAnswerWhoseProgramDiedHasNone(t *testing.T) {
	d := newDesk(t, block("FINAL('first')"))
	e := d.engine()
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	p, err := e.readRun(first.Run, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(e.dir, "fork")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := copyRun(p, dir, "fork", 1); err != nil {
		t.Fatal(err)
	}
	f, err := e.readRun("fork", -1, false)
	if err != nil {
		t.Fatal(err)
	}
	if f.answer != nil || f.sandbox.ID != "" || len(f.spent) > 0 || f.worked != 0 {
		t.Errorf("a fork before its first turn: %+v", f)
	}
}

func TestAForkOfAPlainCallAsksAgain(t *testing.T) {
	d := newDesk(t, "one", "two")
	d.opts.PlainBelow = 0
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	r, err := d.engine().Fork(t.Context(), first.Run, 0, ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "two")
}

func TestAForkThatCannotBeginLeavesNothing(t *testing.T) {
	d := newDesk(t, "one")
	d.opts.PlainBelow = 0
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	d.opts.Models = func(int, string) (llm.Model, error) { return nil, NoModel() }
	e := d.engine()
	_, err := e.Fork(t.Context(), first.Run, 0, ContinueOptions{})
	same(t, "code", v1.CodeOf(err), v1.CodeModelMissing)
	left, err := os.ReadDir(e.dir)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "runs that are kept", len(left), 1)
}

func TestARunThatIsWorkedOnIsNotReadToBeResumed(t *testing.T) {
	d := newDesk(t, "one")
	d.opts.PlainBelow = 0
	first := d.answered(Question{Inputs: []Input{Text("x")}})
	unlock, err := lockRun(first.Dir)
	if err != nil {
		t.Fatal(err)
	}
	e := d.engine()
	_, err = e.Resume(t.Context(), first.Run, ContinueOptions{})
	same(t, "code while another works on it", v1.CodeOf(err), v1.CodeBusy)
	unlock()
	for range 2 { // a refused fork releases the lock
		_, err = e.Resume(t.Context(), first.Run, ContinueOptions{})
		same(t, "code", v1.CodeOf(err), v1.CodeRunEnded)
	}
}
