//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// firstCell makes a sandbox and waits for the result of its first cell.
func firstCell(ctx context.Context, open func() (*sandbox.Sandbox, error)) (*sandbox.Sandbox, time.Duration) {
	began := time.Now()
	sb := must(open())
	if err := attempt(func() { want(ctx, sb, "1+1", "2") }); err != nil {
		check(errors.Join(err, sb.Close()))
	}
	return sb, time.Since(began)
}

// creates compares a new sandbox, from its template to the first result, with runsc run of true.
func creates(ctx context.Context, b *bench) {
	open := func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, b.backend, sandbox.Spec{}) }
	began := time.Now()
	sb, _ := firstCell(ctx, open)
	template := time.Since(began)
	check(sb.Close())
	plain := b.runsc(ctx)
	ours, bare, tuned, opened, closed := samples{}, samples{}, samples{}, samples{}, samples{}
	for i := range b.times(25, 8) + 1 {
		took := b.run(ctx, plain, "/bin/true")
		alone := b.run(ctx, b.tuned(), "/bin/true")
		var open1 time.Duration
		sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) {
			began := time.Now()
			defer func() { open1 = time.Since(began) }()
			return open()
		})
		began := time.Now()
		check(sb.Close())
		if i > 0 { // the first round warms the page cache
			ours, bare, tuned = append(ours, first), append(bare, took), append(tuned, alone)
			opened, closed = append(opened, open1), append(closed, time.Since(began))
		}
	}
	b.report([]row{
		{
			Name:     "create",
			What:     "create to first cell, from the template, p50",
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: bare.median(),
			Against:  "runsc run true",
			Target:   "≤ 1.5 ×",
			Reached:  reached(ours.median() <= 1.5*bare.median()),
			Note: fmt.Sprintf("our engine's run of true with the backend's flags %.1f ms; open alone %.1f ms; "+
				"making the template took %.1f s",
				tuned.median(), opened.median(), template.Seconds()),
		},
		{Name: "close", What: "close, p50", Measured: closed.median(), Unit: "ms"},
	})
}

// pooled measures sandboxes from a warm pool: one after the other, and many at once.
func pooled(ctx context.Context, b *bench) {
	ours := fromPool(ctx, b, b.backend)
	b.report([]row{{
		Name:     "pool",
		What:     "pool to first cell, p50",
		Measured: ours.median(),
		Unit:     "ms",
		Target:   "≤ 5 ms",
		Reached:  reached(ours.median() <= 5),
		Note: fmt.Sprintf("p90 %.1f ms, worst %.1f ms, the pool refilling itself meanwhile",
			ours.at(90), ours.at(100)),
	}})
	const many = 50
	all := burst(ctx, b, pool.Options{Min: many, Target: many, Max: many}, many)[0]
	b.report([]row{{
		Name:     "burst",
		What:     "burst of 50 on a pool of 50, p99",
		Measured: all.at(99),
		Unit:     "ms",
		Target:   "≤ 1 s",
		Reached:  reached(all.at(99) <= 1000),
		Note:     fmt.Sprintf("p50 %.1f ms", all.median()),
	}})
	if b.quick {
		return
	}
	bursts := burst(ctx, b, pool.Options{}, many, many)
	b.report([]row{{
		Name:     "burst_first",
		What:     "first burst of 50 on a pool of default size, p99",
		Measured: bursts[0].at(99),
		Unit:     "ms",
		Note: fmt.Sprintf("p50 %.1f ms; all but 4 are made cold, on %d processors",
			bursts[0].median(), processors()),
	}, {
		Name:     "burst_default",
		What:     "burst of 50 on a pool that has grown by the previous burst, p99",
		Measured: bursts[1].at(99),
		Unit:     "ms",
		Target:   "≤ 2.5 s",
		Reached:  reached(bursts[1].at(99) <= 2500),
		Note:     fmt.Sprintf("p50 %.1f ms", bursts[1].median()),
	}})
}

// fromPool takes sandboxes from a full pool.
func fromPool(ctx context.Context, b *bench, of sandbox.Backend) (took samples) {
	p := pool.New(of, pool.Options{})
	defer p.Close()
	check(p.Warm(ctx, sandbox.Spec{}))
	for range b.times(15, 6) {
		awaitFull(ctx, p)
		sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) { return p.Get(ctx, sandbox.Spec{}) })
		took = append(took, first)
		check(sb.Close())
	}
	return took
}

// awaitFull waits until a pool has reached its target.
func awaitFull(ctx context.Context, p *pool.Pool) {
	for s := p.Stats(); s.Making > 0 || s.Ready < pool.DefaultTarget; s = p.Stats() {
		pause(ctx, 10*time.Millisecond)
	}
}

// burst takes many sandboxes from a pool at once, for each of the sizes. Before each burst it waits until the pool is
// full.
func burst(ctx context.Context, b *bench, opts pool.Options, sizes ...int) (all []samples) {
	p := pool.New(b.backend, opts)
	defer p.Close()
	check(p.Warm(ctx, sandbox.Spec{}))
	for _, many := range sizes {
		awaitFull(ctx, p)
		boxes, took := make([]*sandbox.Sandbox, many), make(samples, many)
		each(many, many, func(i int) {
			boxes[i], took[i] = firstCell(ctx, func() (*sandbox.Sandbox, error) { return p.Get(ctx, sandbox.Spec{}) })
		})
		check(closeAll(boxes))
		all = append(all, took)
	}
	return all
}

// closeAll ends sandboxes, some at a time.
func closeAll(boxes []*sandbox.Sandbox) error {
	errs := make([]error, len(boxes))
	each(len(boxes), 4, func(i int) {
		if boxes[i] != nil {
			errs[i] = boxes[i].Close()
		}
	})
	return errors.Join(errs...)
}
