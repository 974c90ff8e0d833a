package rlm

import (
	"encoding/json"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestEqualAnswers(t *testing.T) {
	text := func(s string) *v1.RunAnswer { return &v1.RunAnswer{Content: s} }
	value := func(s string) *v1.RunAnswer { return &v1.RunAnswer{Content: s, Value: json.RawMessage(s)} }
	for name, tt := range map[string]struct {
		a, b  *v1.RunAnswer
		equal bool
	}{
		"case and white space":  {text(" The  Answer\n"), text("the answer"), true},
		"other words":           {text("the answer"), text("an answer"), false},
		"forms of a number":     {text("42"), text("4.20e1"), true},
		"a number and its JSON": {text("42"), value("42.0"), true},
		"long numbers":          {text("9007199254740993"), text("9007199254740992"), false},
		"a huge exponent":       {text("1e999999999"), text("1e999999998"), false},
		"order of keys":         {value(`{"a":1,"b":["X"]}`), value(`{"b":["x "],"a":1.0}`), true},
		"order of a list":       {value(`[1,2]`), value(`[2,1]`), false},
	} {
		if got := answerKey(tt.a) == answerKey(tt.b); got != tt.equal {
			t.Errorf("%s: equal %v", name, got)
		}
	}
}

func TestMostAgreed(t *testing.T) {
	for answers, want := range map[string]int{"abb": 1, "aab": 0, "abc": 0, "abcb": 1, "baab": 0} {
		var all []*candidate
		for _, a := range answers {
			all = append(all, &candidate{answer: &v1.RunAnswer{Content: string(a)}})
		}
		if best, _ := mostAgreed(all); best != all[want] {
			t.Errorf("%s: %s", answers, best.answer.Content)
		}
	}
	if best, _ := mostAgreed(nil); best != nil {
		t.Error("there is no candidate")
	}
}
