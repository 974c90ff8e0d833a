//go:build linux

package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// commands compares true through the library with a fork and exec of true by a program in the same sandbox.
func commands(ctx context.Context, b *bench) {
	sb := b.open(ctx)
	defer closing(sb.Close)
	const spawner = v1.DefaultHome + "/floor"
	program := must(os.Open(b.floor.Path))
	defer program.Close()
	must(sb.Files().Write(ctx, spawner, program, sandbox.WriteOptions{Mode: 0o755}))
	ours, inside := samples{}, samples{}
	const each = 20
	for i := range b.times(40, 5) + 1 {
		for range each {
			began := time.Now()
			v := must(sb.Run(ctx, sandbox.Command{Args: []string{"/usr/bin/true"}}))
			took := time.Since(began)
			checkf(v.OK(), "true: %v", v)
			if i > 0 {
				ours = append(ours, took)
			}
		}
		v := must(sb.Run(ctx, sandbox.Command{Args: []string{spawner, "spawn", strconv.Itoa(each), "/usr/bin/true"}}))
		for _, line := range strings.Fields(v.Stdout.String()) {
			ns, err := strconv.ParseInt(line, 10, 64)
			checkf(err == nil, "spawner: %v", v)
			if i > 0 {
				inside = append(inside, time.Duration(ns))
			}
		}
	}
	b.report([]row{
		{
			Name:     "command_p50",
			What:     "warm command true, p50",
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: inside.median(),
			Against:  "fork and exec inside",
			Target:   "≤ 1.3 ×",
			Reached:  reached(ours.median() <= 1.3*inside.median()),
		},
		{
			Name:     "command_p99",
			What:     "warm command true, p99",
			Measured: ours.at(99),
			Unit:     "ms",
			Baseline: inside.at(99),
			Against:  "fork and exec inside",
		},
	})
}
