//go:build linux

package main

import "testing"

func TestAMissIsTheMedianOfItsRounds(t *testing.T) {
	round := func(ratio, other float64) []row {
		return []row{
			{Name: "create", Ratio: ratio, Reached: reached(ratio <= 1.5)},
			{Name: "left", Measured: other},
		}
	}
	got := median([][]row{round(2.09, 0), round(1.32, 3), round(1.18, 1)})
	want := []row{
		{Name: "create", Ratio: 1.32, Rounds: 3, Lowest: 1.18, Highest: 2.09},
		{Name: "left", Measured: 1, Rounds: 3, Lowest: 0, Highest: 3},
	}
	for i, w := range want {
		g := got[i]
		if g.missed() {
			t.Errorf("%s: missed, though two of three rounds reached the target", g.Name)
		}
		if g.Reached = nil; g != w {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
	if one := median([][]row{round(2, 0)}); one[0].Rounds != 0 || !one[0].missed() {
		t.Errorf("a single round: %+v", one)
	}
}
