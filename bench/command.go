//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// commands compares true through the library with a fork and exec of it by a program inside the same sandbox.
func commands(ctx context.Context, b *bench) (_ []row, err error) {
	sb, err := sandbox.Open(ctx, b.backend, sandbox.Spec{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	const spawner = v1.DefaultHome + "/floor"
	program, err := os.Open(b.floor.Path)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	if _, err := sb.Files().Write(ctx, spawner, program, sandbox.WriteOptions{Mode: 0o755}); err != nil {
		return nil, err
	}
	ours, inside := samples{}, samples{}
	const each = 20
	for i := range b.times(40, 5) + 1 {
		for range each {
			began := time.Now()
			v, err := sb.Run(ctx, sandbox.Command{Args: []string{"/usr/bin/true"}})
			took := time.Since(began)
			if err != nil {
				return nil, err
			}
			if !v.OK() {
				return nil, fmt.Errorf("true: %v", v)
			}
			if i > 0 {
				ours = append(ours, took)
			}
		}
		v, err := sb.Run(ctx, sandbox.Command{Args: []string{spawner, "spawn", strconv.Itoa(each), "/usr/bin/true"}})
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Fields(v.Stdout.String()) {
			ns, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("spawner: %v", v)
			}
			if i > 0 {
				inside = append(inside, time.Duration(ns))
			}
		}
	}
	return []row{
		{
			Name: "command_p50", What: "warm command true, p50", Measured: ours.median(), Unit: "ms", Baseline: inside.median(), Against: "fork and exec inside",
			Target: "≤ 1.3 ×", Reached: reached(ours.median() <= 1.3*inside.median()),
		},
		{Name: "command_p99", What: "warm command true, p99", Measured: ours.at(99), Unit: "ms", Baseline: inside.at(99), Against: "fork and exec inside"},
	}, nil
}
