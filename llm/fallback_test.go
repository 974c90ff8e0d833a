package llm

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// unpriced is a model whose price is unknown.
type unpriced struct{ Model }

func (unpriced) Info() Info { return Info{Name: "unpriced", Window: 1000, Output: 100} }

func TestFallback(t *testing.T) {
	busy := &v1.Error{Code: v1.CodeModelOverloaded, Op: "ask a", Message: "busy", Retry: true}
	unknown := &v1.Error{Code: v1.CodeModelUnknown, Message: "who?", Remedy: "name another"}
	invalid := &v1.Error{Code: v1.CodeInvalidRequest, Message: "nonsense"}
	good := NewScripted("good", Rule{Reply: "fine"})
	for _, tc := range []struct {
		name string
		list []Model
		want string
		code v1.Code
	}{
		{"the first answers", []Model{good, NewScripted("never")}, "fine", ""},
		{"the second answers", []Model{NewScripted("a", Rule{Error: busy}), good}, "fine", ""},
		{"an unknown model is passed over", []Model{NewScripted("a", Rule{Error: unknown}), good}, "fine", ""},
		{"a wrong request is not tried again", []Model{NewScripted("a", Rule{Error: invalid}), good}, "", v1.CodeInvalidRequest},
		{"all fail", []Model{NewScripted("a", Rule{Error: unknown}), NewScripted("b", Rule{Error: busy})}, "", v1.CodeModelUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Fallback(tc.list[0], tc.list[1:]...).Complete(t.Context(), ask("hi"))
			if tc.code != "" {
				wantCode(t, err, tc.code)
				return
			}
			if err != nil || r.Text != tc.want || r.Model != "scripted/good" {
				t.Fatalf("%+v, %v", r, err)
			}
		})
	}
	t.Run("every failure is told", func(t *testing.T) {
		_, err := Fallback(NewScripted("a", Rule{Error: unknown}), NewScripted("b", Rule{Error: busy})).Complete(t.Context(), ask("hi"))
		e := wantCode(t, err, v1.CodeModelUnknown)
		if !strings.Contains(e.Message, "who?") || !strings.Contains(e.Message, "busy") || !e.Retry {
			t.Errorf("%+v", e)
		}
	})
	t.Run("what was heard is not said again", func(t *testing.T) {
		heard := ""
		req := ask("hi")
		req.Delta = func(s string) bool { heard += s; return true }
		r, err := Fallback(NewScripted("a", Rule{Reply: "half", Error: busy}), good).Complete(t.Context(), req)
		wantCode(t, err, v1.CodeModelOverloaded)
		if heard != "half" || r == nil || r.Text != "half" {
			t.Errorf("heard %q, reply %+v", heard, r)
		}
	})
	t.Run("what was paid is counted", func(t *testing.T) {
		half := NewScripted("a", Rule{Reply: "half", Error: busy, Usage: &Usage{Input: 10, Output: 5}})
		r, err := Fallback(half, NewScripted("b", Rule{Reply: "whole", Usage: &Usage{Input: 10, Output: 5}})).Complete(t.Context(), ask("hi"))
		if err != nil || r.Usage.Tokens() != 30 || r.Usage.Calls != 2 || r.By["scripted/a"].Tokens() != 15 || r.By["scripted/b"].Tokens() != 15 {
			t.Errorf("%+v, %v", r, err)
		}
		third := Fallback(NewScripted("c", Rule{Reply: "half", Error: busy, Usage: &Usage{Input: 1}}), Fallback(half, NewScripted("b", Rule{Reply: "whole"})))
		if r, err = third.Complete(t.Context(), ask("hi")); err != nil || len(r.By) != 3 || r.By["scripted/a"].Tokens() != 15 || r.By["scripted/c"].Tokens() != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		r, err = Fallback(half, half).Complete(t.Context(), ask("hi"))
		wantCode(t, err, v1.CodeModelOverloaded)
		if r == nil || r.Usage.Tokens() != 30 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("the highest prices hold", func(t *testing.T) {
		cheap := NewScripted("cheap").WithInfo(Info{Price: &Price{Input: 1, CachedInput: 0.1, Output: 9}})
		long := NewScripted("long").WithInfo(Info{Price: &Price{Input: 2, CachedInput: 0.2, Output: 3, Long: &LongPrice{Above: 5, Input: 4, CachedInput: 0.4, Output: 6}}})
		unknown := unpriced{good}
		want := Price{Input: 2, CachedInput: 0.2, Output: 9, Long: &LongPrice{Above: 5, Input: 4, CachedInput: 0.4, Output: 9}}
		for _, m := range []Model{Fallback(cheap, long), Fallback(long, good, cheap), Fallback(good, cheap, long)} {
			if i := m.Info(); i.Local || i.Price == nil || jsonText(i.Price) != jsonText(want) {
				t.Errorf("%s", jsonText(i))
			}
		}
		for _, m := range []Model{Fallback(cheap, unknown), Fallback(unknown, good, cheap)} {
			if i := m.Info(); i.Local || i.Price != nil {
				t.Errorf("%s", jsonText(i))
			}
		}
	})
	t.Run("a model is asked only if the caller can pay", func(t *testing.T) {
		var paid []Usage
		req := ask("hi")
		req.Repeat = func(u Usage) bool { paid = append(paid, u); return len(paid) < 2 }
		half := func(name string) Model {
			return NewScripted(name, Rule{Reply: "half", Error: busy, Usage: &Usage{Calls: 1, Input: 10}})
		}
		r, err := Fallback(half("a"), half("b"), good).Complete(t.Context(), req)
		wantCode(t, err, v1.CodeModelOverloaded)
		if len(paid) != 2 || paid[0].Input != 10 || paid[1].Input != 20 || r.Usage.Input != 20 {
			t.Errorf("%+v %+v", paid, r)
		}
	})
	t.Run("all who may answer are named", func(t *testing.T) {
		inner := Fallback(NewScripted("b"), NewScripted("c"))
		if names := strings.Join(Names(Fallback(good, inner)), " "); names != "scripted/good scripted/b scripted/c" {
			t.Errorf("%s", names)
		}
	})
	t.Run("the smallest window holds", func(t *testing.T) {
		if w := Fallback(good, NewScripted("small").WithInfo(Info{Window: 100})).Info().Window; w != 100 {
			t.Errorf("window %d", w)
		}
	})
}
