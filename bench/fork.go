//go:build linux

package main

import (
	"context"
	"errors"

	"github.com/recluse-dev/recluse/sandbox"
)

// forks compares a fork of a sandbox that has 100 MB of data, which can be neither compressed nor skipped, with a fork
// of one without data.
func forks(ctx context.Context, b *bench) {
	var parents [2]*sandbox.Sandbox
	defer closing(func() error { return closeAll(parents[:]) })
	for i, code := range []string{"data = b''", "import os; data = os.urandom(100_000_000)"} {
		parents[i] = b.open(ctx)
		v := must(parents[i].Cell(ctx, sandbox.Cell{Code: code}))
		checkf(v.OK(), "fill: %v", v)
	}
	var took [2]samples
	for n := range b.times(8, 3) + 1 {
		for i, parent := range parents {
			sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) {
				copies, err := parent.Fork(ctx, 1)
				if err != nil {
					return nil, errors.Join(err, closeAll(copies))
				}
				return copies[0], nil
			})
			err := attempt(func() { want(ctx, sb, "len(data)", []string{"0", "100000000"}[i]) })
			check(errors.Join(err, sb.Close()))
			if n > 0 {
				took[i] = append(took[i], first)
			}
		}
	}
	b.report([]row{{
		Name:     "fork",
		What:     "fork with 100 MB of data to first cell, p50",
		Measured: took[1].median(),
		Unit:     "ms",
		Baseline: took[0].median(),
		Against:  "empty fork",
		Target:   "≤ 3 ×",
		Reached:  reached(took[1].median() <= 3*took[0].median()),
	}})
}
