//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/recluse-dev/recluse/sandbox"
)

// forks compares a fork of a session with 100 MB of data that cannot be compressed or left out with one that has none.
func forks(ctx context.Context, b *bench) (_ []row, err error) {
	var parents [2]*sandbox.Sandbox
	defer func() { err = errors.Join(err, closeAll(parents[:])) }()
	for i, code := range []string{"data = b''", "import os; data = os.urandom(100_000_000)"} {
		if parents[i], err = sandbox.Open(ctx, b.backend, sandbox.Spec{}); err != nil {
			return nil, err
		}
		v, err := parents[i].Cell(ctx, sandbox.Cell{Code: code})
		if err != nil || !v.OK() {
			return nil, errors.Join(fmt.Errorf("fill: %v", v), err)
		}
	}
	var took [2]samples
	for n := range b.times(8, 3) + 1 {
		for i, parent := range parents {
			sb, first, err := firstCell(ctx, func() (*sandbox.Sandbox, error) {
				copies, err := parent.Fork(ctx, 1)
				if err != nil {
					return nil, errors.Join(err, closeAll(copies))
				}
				return copies[0], nil
			})
			if err != nil {
				return nil, err
			}
			v, err := sb.Cell(ctx, sandbox.Cell{Code: "len(data)"})
			if err == nil && v.Result.Text() != []string{"0", "100000000"}[i] {
				err = fmt.Errorf("the copy holds %s bytes", v.Result.Text())
			}
			if err := errors.Join(err, sb.Close()); err != nil {
				return nil, err
			}
			if n > 0 {
				took[i] = append(took[i], first)
			}
		}
	}
	return []row{{
		Name: "fork", What: "fork with 100 MB of data to first cell, p50", Measured: took[1].median(), Unit: "ms", Baseline: took[0].median(), Against: "empty fork",
		Target: "≤ 3 ×", Reached: reached(took[1].median() <= 3*took[0].median()),
	}}, nil
}
