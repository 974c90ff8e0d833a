package main

import (
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

func TestTheFiguresOfARunSayWhatIsKnown(t *testing.T) {
	for want, u := range map[string]llm.Usage{
		"0 -":         {Unpriced: true},
		"0 $0.0000":   {},
		"9 $0.5000":   {Input: 9, Cost: 0.5, Unpriced: true},
		"≈9 ≈$0.5000": {Input: 9, Cost: 0.5, Estimated: true},
	} {
		if got := strings.Join(runRows([]*rlm.Info{{Usage: u}})[1][4:6], " "); got != want {
			t.Errorf("%+v: %q, want %q", u, got, want)
		}
	}
}
