//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// firstCell makes a sandbox and waits for the result of its first cell.
func firstCell(ctx context.Context, open func() (*sandbox.Sandbox, error)) (*sandbox.Sandbox, time.Duration, error) {
	began := time.Now()
	sb, err := open()
	if err != nil {
		return nil, 0, err
	}
	v, err := sb.Cell(ctx, sandbox.Cell{Code: "1+1"})
	took := time.Since(began)
	if err == nil && v.Result.Text() != "2" {
		err = fmt.Errorf("first cell: %v", v)
	}
	if err != nil {
		return nil, 0, errors.Join(err, sb.Close())
	}
	return sb, took, nil
}

// creates compares a new sandbox, from its template to the first result, with runsc's run of true.
func creates(ctx context.Context, b *bench) ([]row, error) {
	open := func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, b.backend, sandbox.Spec{}) }
	began := time.Now()
	sb, _, err := firstCell(ctx, open)
	if err != nil {
		return nil, err
	}
	template := time.Since(began)
	if err := sb.Close(); err != nil {
		return nil, err
	}
	plain, err := b.runsc(ctx)
	if err != nil {
		return nil, err
	}
	ours, bare, tuned, opened, closed := samples{}, samples{}, samples{}, samples{}, samples{}
	for i := range b.times(25, 8) + 1 {
		took, err := b.run(ctx, plain, "/bin/true")
		if err != nil {
			return nil, err
		}
		alone, err := b.run(ctx, b.tuned(), "/bin/true")
		if err != nil {
			return nil, err
		}
		var open1 time.Duration
		sb, first, err := firstCell(ctx, func() (*sandbox.Sandbox, error) {
			began := time.Now()
			defer func() { open1 = time.Since(began) }()
			return open()
		})
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := sb.Close(); err != nil {
			return nil, err
		}
		if i > 0 { // the first of each warms the page cache
			ours, bare, tuned = append(ours, first), append(bare, took), append(tuned, alone)
			opened, closed = append(opened, open1), append(closed, time.Since(began))
		}
	}
	return []row{
		{
			Name: "create", What: "create to first cell, from the template, p50", Measured: ours.median(), Unit: "ms", Baseline: bare.median(), Against: "runsc run true",
			Target: "≤ 1.5 ×", Reached: reached(ours.median() <= 1.5*bare.median()),
			Note: fmt.Sprintf("our engine's run of true with the backend's flags %.1f ms; open alone %.1f ms; making the template took %.1f s", tuned.median(), opened.median(), template.Seconds()),
		},
		{Name: "close", What: "close, p50", Measured: closed.median(), Unit: "ms"},
	}, nil
}

// pooled measures sandboxes from a warm pool: one after the other, and many at once.
func pooled(ctx context.Context, b *bench) ([]row, error) {
	ours, err := fromPool(ctx, b)
	if err != nil {
		return nil, err
	}
	rows := []row{{
		Name: "pool", What: "pool to first cell, p50", Measured: ours.median(), Unit: "ms", Target: "≤ 5 ms", Reached: reached(ours.median() <= 5),
		Note: fmt.Sprintf("p90 %.1f ms, worst %.1f ms, the pool refilling itself meanwhile", ours.at(90), ours.at(100)),
	}}
	const many = 50
	all, err := burst(ctx, b, pool.Options{Min: many, Target: many, Max: many}, many)
	if err != nil {
		return rows, err
	}
	rows = append(rows, row{
		Name: "burst", What: "burst of 50 on a pool of 50, p99", Measured: all.at(99), Unit: "ms", Target: "≤ 1 s", Reached: reached(all.at(99) <= 1000),
		Note: fmt.Sprintf("p50 %.1f ms", all.median()),
	})
	if b.quick {
		return rows, nil
	}
	all, err = burst(ctx, b, pool.Options{}, many)
	if err != nil {
		return rows, err
	}
	return append(rows, row{
		Name: "burst_default", What: "burst of 50 on a pool of default size, p99", Measured: all.at(99), Unit: "ms",
		Note: fmt.Sprintf("p50 %.1f ms; all but 4 are made cold, on %d processors", all.median(), processors()),
	}), nil
}

// fromPool takes sandboxes from a pool that has had the time to be full.
func fromPool(ctx context.Context, b *bench) (samples, error) {
	p := pool.New(b.backend, pool.Options{})
	defer p.Close()
	if err := p.Warm(ctx, sandbox.Spec{}); err != nil {
		return nil, err
	}
	var took samples
	for range b.times(15, 6) {
		if err := full(ctx, p, pool.DefaultTarget); err != nil {
			return nil, err
		}
		sb, first, err := firstCell(ctx, func() (*sandbox.Sandbox, error) { return p.Get(ctx, sandbox.Spec{}) })
		if err != nil {
			return nil, err
		}
		took = append(took, first)
		if err := sb.Close(); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// full waits until a pool has what it wants.
func full(ctx context.Context, p *pool.Pool, want int) error {
	for p.Stats().Ready < want {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// burst asks a full pool for many sandboxes at once.
func burst(ctx context.Context, b *bench, opts pool.Options, many int) (samples, error) {
	p := pool.New(b.backend, opts)
	defer p.Close()
	if err := p.Warm(ctx, sandbox.Spec{}); err != nil {
		return nil, err
	}
	if opts.Target == 0 {
		opts.Target = pool.DefaultTarget
	}
	if err := full(ctx, p, opts.Target); err != nil {
		return nil, err
	}
	boxes, took, errs := make([]*sandbox.Sandbox, many), make(samples, many), make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			boxes[i], took[i], errs[i] = firstCell(ctx, func() (*sandbox.Sandbox, error) { return p.Get(ctx, sandbox.Spec{}) })
		})
	}
	wg.Wait()
	return took, errors.Join(append(errs, closeAll(boxes))...)
}

// closeAll ends sandboxes, some at a time.
func closeAll(boxes []*sandbox.Sandbox) error {
	errs := make([]error, len(boxes))
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i, sb := range boxes {
		if sb == nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = sb.Close()
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
