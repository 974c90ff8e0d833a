package main

import (
	"testing"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

func TestARunWithoutAPriceShowsNone(t *testing.T) {
	for want, u := range map[string]llm.Usage{
		"-":       {Unpriced: true},
		"$0.0000": {},
		"$0.5000": {Cost: 0.5, Unpriced: true},
	} {
		if got := runRows([]*rlm.Info{{Usage: u}})[1][5]; got != want {
			t.Errorf("%+v: %q, want %q", u, got, want)
		}
	}
}

func TestEstimatedTokensAreMarked(t *testing.T) {
	for want, u := range map[string]llm.Usage{"12": {Input: 5, Output: 7}, "~12": {Input: 5, Output: 7, Estimated: true}} {
		if got := runRows([]*rlm.Info{{Usage: u}})[1][4]; got != want {
			t.Errorf("%+v: %q, want %q", u, got, want)
		}
	}
}
