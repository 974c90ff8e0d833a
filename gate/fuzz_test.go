package gate

import (
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/terms"
)

// FuzzJudge checks that a decision is complete, whatever is judged. The parsers have fuzz tests of their own.
func FuzzJudge(f *testing.F) {
	c := defaultChecker(f, Options{Graphs: map[string]*terms.Graph{"": kitchenGraph(f, terms.GraphOptions{Strictness: terms.Strict})}})
	for _, s := range []string{"", "rm -rf /", "onion", "eval \"$x\" onion", "ONION\xff", "sudo pan-pan_pan"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, code string) {
		d := judge(t, c, Request{Language: Bash, Code: code})
		if d.Action != v1.GateAllow && (d.Reason == "" || len(d.Findings) == 0) {
			t.Errorf("not allowed, but without a reason: %+v", d)
		}
		for _, f := range d.Findings {
			if f.Line < 1 || f.Message == "" || f.Rule == "" {
				t.Errorf("incomplete finding: %+v", f)
			}
		}
	})
}
