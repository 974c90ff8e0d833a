package rlm

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// resumed resumes a run and returns its result.
func (d *desk) resumed(id string, limits v1.RunLimits) (*Result, error) {
	d.t.Helper()
	r, err := d.engine().Resume(d.t.Context(), id, ContinueOptions{Limits: limits})
	if err != nil {
		d.t.Fatal(err)
	}
	return r.Wait()
}

// replayed replays a run with an engine that has no model and no shared cache.
func (d *desk) replayed(id string) *Result {
	d.t.Helper()
	o := d.opts
	o.Models = func(int, string) (llm.Model, error) { return nil, NoModel() }
	o.Cache = nil
	e, err := New(o)
	if err != nil {
		d.t.Fatal(err)
	}
	r, err := e.Replay(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	res, err := r.Wait()
	if err != nil {
		d.t.Errorf("replayed: %v", err)
	}
	return res
}

func TestAReplayGoesOnWhereTheRunWasResumed(t *testing.T) {
	down := errors.New("503 overloaded")
	t.Run("behind a model that failed, twice", func(t *testing.T) {
		d := newDesk(t)
		fails := map[int]bool{2: true, 3: true}
		d.root.answer = func(_ context.Context, n int, req llm.Request) (string, error) {
			switch {
			case fails[n]:
				return "", down
			case req.Tags["turn"] == "1":
				return block("a = llm_query('one')"), nil
			}
			return block("FINAL(a + llm_query('two'))"), nil
		}
		res, err := d.run(Question{Inputs: []Input{Text("x")}})
		if err == nil || res.Reason != v1.ReasonModel {
			t.Fatalf("%+v %v", res, err)
		}
		if res, err = d.resumed(res.Run, v1.RunLimits{}); err == nil {
			t.Fatal("the model failed, and the run did not")
		}
		if res, err = d.resumed(res.Run, v1.RunLimits{}); err != nil {
			t.Fatal(err)
		}
		again := d.replayed(res.Run)
		same(t, "answer", again.Answer, "read: oneread: two")
		same(t, "turns", again.Turns, res.Turns)
	})
	t.Run("behind a sub-call that failed in a cell that was stopped", func(t *testing.T) {
		d := newDesk(t, block("try:\n    a = llm_query('caught')\nexcept QueryError as e:\n    a = 'lost'\nb = llm_query('stop here')\nFINAL(a + b)"))
		ok := d.sub.answer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d.sub.answer = func(call context.Context, n int, req llm.Request) (string, error) {
			if req.Messages[0].Content == "caught" {
				return "", down
			}
			cancel()
			<-call.Done()
			return "", call.Err()
		}
		e := d.engine()
		r, err := e.Start(ctx, Question{Inputs: []Input{Text("x")}})
		if err != nil {
			t.Fatal(err)
		}
		res, _ := r.Wait()
		same(t, "reason", res.Reason, v1.ReasonCancelled)
		d.sub.answer = ok
		if res, err = d.resumed(res.Run, v1.RunLimits{}); err != nil {
			t.Fatal(err)
		}
		same(t, "answer", res.Answer, "read: caughtread: stop here")
		same(t, "replayed answer", d.replayed(res.Run).Answer, res.Answer)
	})
	t.Run("a failure that the run went on with stays one", func(t *testing.T) {
		d := newDesk(t, block("try:\n    a = llm_query('caught')\nexcept QueryError as e:\n    a = 'lost'"), block("FINAL(a)"))
		d.sub.answer = func(context.Context, int, llm.Request) (string, error) { return "", down }
		res := d.answered(Question{Inputs: []Input{Text("x")}})
		same(t, "answer", res.Answer, "lost")
		same(t, "replayed answer", d.replayed(res.Run).Answer, "lost")
	})
	t.Run("behind the last turn", func(t *testing.T) {
		d := newDesk(t, block("a = 1"), "I do not know.", block("FINAL(a + 1)"))
		d.opts.Limits.Turns = new(1)
		res, err := d.run(Question{Inputs: []Input{Text("x")}})
		same(t, "code", v1.CodeOf(err), v1.CodeBudget)
		more := d.opts.Limits
		more.Turns = new(5)
		if res, err = d.resumed(res.Run, more); err != nil {
			t.Fatal(err)
		}
		same(t, "replayed answer", d.replayed(res.Run).Answer, "2")
	})
	t.Run("behind too many cells that failed", func(t *testing.T) {
		d := newDesk(t, block("1/0"), block("2/0"), block("FINAL('at last')"))
		d.opts.Limits.Errors = new(1)
		res, err := d.run(Question{Inputs: []Input{Text("x")}})
		if err == nil || res.Reason != v1.ReasonErrors {
			t.Fatalf("%+v %v", res, err)
		}
		if res, err = d.resumed(res.Run, v1.RunLimits{}); err != nil {
			t.Fatal(err)
		}
		same(t, "replayed answer", d.replayed(res.Run).Answer, "at last")
	})
}

func TestAReplayAsksDirectlyWhatWasAskedDirectly(t *testing.T) {
	d := newDesk(t, "one")
	d.opts.PlainBelow = 0
	res := d.answered(Question{Inputs: []Input{Text(strings.Repeat("x", 100))}})
	if !res.Plain {
		t.Fatal("the run was not answered by a plain call")
	}
	for name, below := range map[string]int64{"never now": -1, "only for less bytes now": 1, "only for less tokens now": 20} {
		d.opts.PlainBelow = below
		again := d.replayed(res.Run)
		same(t, "answer, "+name, again.Answer, "one")
		same(t, "answered by a plain call, "+name, again.Plain, true)
	}
}

func TestAReplayNeedsNoCacheOfOthers(t *testing.T) {
	code := block("FINAL([llm_query('same'), llm_query('same')] + llm_query_batched(['same', 'new', 'new']))")
	d := newDesk(t, code)
	d.opts.Cache = NewCache(0)
	d.answered(Question{Inputs: []Input{Text("x")}})
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "from the cache", res.Cached, 5)
	again := d.replayed(res.Run)
	same(t, "answer", again.Answer, res.Answer)
	same(t, "from the cache, replayed", again.Cached, 5)
	same(t, "calls, replayed", again.Usage.Calls, res.Usage.Calls)
	same(t, "calls of the sub-model", d.sub.calls, 2)
}

func TestARunIsLeftToTheNextProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		code, how string
	}{
		"while the model is asked": {"b = a + '!'", HowAttached},
		"while a cell runs":        {"b = a + llm_query('hang') + '!'", HowRebuilt},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.opts.Durable = true
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			reached := make(chan struct{}, 1)
			hang := func(call context.Context) error {
				if suspended(ctx) {
					return nil // the next program makes the call
				}
				reached <- struct{}{}
				<-call.Done()
				return call.Err()
			}
			d.root.answer = func(call context.Context, _ int, req llm.Request) (string, error) {
				switch req.Tags["turn"] {
				case "1":
					return block("a = llm_query('once')"), nil
				case "2":
					return block(tt.code), nil
				}
				return block("FINAL(b)"), hang(call)
			}
			ok := d.sub.answer
			d.sub.answer = func(call context.Context, n int, req llm.Request) (string, error) {
				if req.Messages[0].Content == "hang" {
					if err := hang(call); err != nil {
						return "", err
					}
				}
				return ok(call, n, req)
			}
			e := d.engine()
			r, err := e.Start(ctx, Question{Inputs: []Input{Text("x")}})
			if err != nil {
				t.Fatal(err)
			}
			<-reached
			leave(ErrSuspended)
			if res, err := r.Wait(); !errors.Is(err, context.Canceled) || res.Reason != v1.ReasonCancelled {
				t.Fatalf("%+v %v", res, err)
			}
			if info, err := e.Show(r.ID()); err != nil || info.Running || info.Result != nil {
				t.Errorf("%+v %v", info, err)
			}
			again, err := e.Resume(t.Context(), r.ID(), ContinueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			res, err := again.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(res.Answer, "read: once") || !strings.HasSuffix(res.Answer, "!") {
				t.Errorf("answer %q", res.Answer)
			}
			for ev, err := range e.Events(r.ID()) {
				var how v1.Resumed
				if err == nil && ev.Kind == v1.KindResumed {
					err = ev.Decode(&how)
					same(t, "how", how.How, tt.how)
				}
				if err != nil {
					t.Error(err)
				}
			}
			once := 0
			for _, req := range d.sub.asked {
				if req.Messages[0].Content == "once" {
					once++
				}
			}
			same(t, "what had its answer was asked", once, 1)
		})
	}
}
