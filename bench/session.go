//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// runner is whatever runs a cell: a sandbox, a session, or one over HTTP.
type runner interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
}

// want runs a cell and checks its result.
func want(ctx context.Context, r runner, code, result string) error {
	v, err := r.Cell(ctx, sandbox.Cell{Code: code})
	if err != nil {
		return err
	}
	if got := v.Result.Text(); got != result {
		return fmt.Errorf("%s is %q, not %q: %v", code, got, result, v)
	}
	return nil
}

// overHTTP compares cells over HTTP with cells through the library: one after the other, and in many sessions at once.
func overHTTP(ctx context.Context, b *bench) (_ []row, err error) {
	s, err := b.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	many := b.times(32, 8)
	boxes := make([]*sandbox.Sandbox, many)
	defer func() { err = errors.Join(err, closeAll(boxes)) }()
	library, local, remote, socket := make([]runner, many), make([]runner, many), make([]runner, many), make([]runner, many)
	err = each(many, 4, func(i int) error {
		var err error
		if boxes[i], err = sandbox.Open(ctx, b.backend, sandbox.Spec{}); err != nil {
			return err
		}
		name := fmt.Sprint("s", i)
		opened, _, err := s.manager.Open(ctx, session.Key{Name: name}, session.OpenOptions{})
		if err != nil {
			return err
		}
		library[i], local[i], remote[i], socket[i] = boxes[i], opened, s.tcp.Session(name), s.socket.Session(name)
		return errors.Join(want(ctx, boxes[i], "1+1", "2"), want(ctx, opened, "1+1", "2"))
	})
	if err != nil {
		return nil, err
	}
	rows, err := oneByOne(ctx, b, []runner{library[0], local[0], remote[0], socket[0]})
	if err != nil {
		return rows, err
	}
	var rates, costs [4][]float64
	for n := range b.times(21, 4) { // many short rounds, because a busy machine is not equally busy for long
		for i, all := range [][]runner{library, local, remote, socket} {
			rate, cost, err := throughput(ctx, all, 500*time.Millisecond)
			if err != nil {
				return rows, err
			}
			if n > 0 { // the first round makes the connections
				rates[i], costs[i] = append(rates[i], rate), append(costs[i], cost)
			}
		}
	}
	base, over := middle(rates[0]), middle(rates[2])
	return append(rows, row{
		Name: "http_throughput", What: fmt.Sprintf("small cells in %d sessions at once, over HTTP", many), Measured: over, Unit: "/s", Baseline: base, Against: "the library's sandboxes",
		Target: "≥ 0.7 ×", Reached: reached(over >= 0.7*base),
		Note: fmt.Sprintf("sessions within the program %.0f /s, over the UNIX socket %.0f /s; processor time of client and server together for each cell %.3f ms, of the library %.3f ms; they share %d processors with the sandboxes",
			middle(rates[1]), middle(rates[3]), middle(costs[2]), middle(costs[0]), processors()),
	}), nil
}

// oneByOne times warm cells of the library, of a session, over TCP and over the socket, in turn.
func oneByOne(ctx context.Context, b *bench, ways []runner) ([]row, error) {
	took := make([]samples, len(ways))
	for i := range b.times(3000, 500) + warmCells {
		for w, r := range ways {
			began := time.Now()
			if err := want(ctx, r, "1+1", "2"); err != nil {
				return nil, err
			}
			if i >= warmCells {
				took[w] = append(took[w], time.Since(began))
			}
		}
	}
	library, tcp := took[0].median(), took[2].median()
	return []row{{
		Name: "http_cell", What: "warm cell over HTTP on loopback, p50", Measured: tcp, Unit: "ms", Baseline: library, Against: "the library",
		Target: "≤ 0.5 ms more", Reached: reached(tcp <= library+0.5),
		Note: fmt.Sprintf("%.3f ms more; a session within the program %.3f ms, over the UNIX socket %.3f ms; p99 %.3f against %.3f ms",
			tcp-library, took[1].median(), took[3].median(), took[2].at(99), took[0].at(99)),
	}}, nil
}

// throughput gives the cells per second that all runners reach together, and our own processor time for each in milliseconds.
func throughput(ctx context.Context, all []runner, during time.Duration) (rate, cost float64, err error) {
	var cells atomic.Int64
	began, spent := time.Now(), processorTime()
	err = each(len(all), len(all), func(i int) error {
		for time.Since(began) < during {
			if err := want(ctx, all[i], "1+1", "2"); err != nil {
				return err
			}
			cells.Add(1)
		}
		return nil
	})
	n := float64(max(1, cells.Load()))
	return n / time.Since(began).Seconds(), (processorTime() - spent).Seconds() * 1e3 / n, err
}

// processorTime is what this program has used, without the sandboxes.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// restart kills a server with many live sessions, and waits until all of them answer again.
func restart(ctx context.Context, b *bench) (_ []row, err error) {
	dir := b.dir + "/restart"
	p, err := b.launch(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	many := b.times(100, 10)
	name := func(i int) string { return fmt.Sprint("s", i) }
	err = each(many, 4, func(i int) error {
		s, _, err := c.Open(ctx, name(i), session.OpenOptions{})
		if err != nil {
			return err
		}
		return want(ctx, s, fmt.Sprintf("x = %d; x", i), fmt.Sprint(i))
	})
	if err != nil {
		return nil, err
	}
	all := func() error {
		return each(many, many, func(i int) error { return want(ctx, c.Session(name(i)), "x + 1", fmt.Sprint(i+1)) })
	}
	again, live := samples{}, samples{}
	for range b.times(5, 2) {
		began := time.Now()
		if err := all(); err != nil {
			return nil, err
		}
		live = append(live, time.Since(began))
		began = time.Now()
		p.kill()
		next, err := b.launch(ctx, dir)
		if err != nil {
			return nil, err
		}
		p = next
		if err := all(); err != nil {
			return nil, err
		}
		again = append(again, time.Since(began))
	}
	return []row{{
		Name: "restart", What: fmt.Sprintf("kill -9 of the server with %d live sessions to all answering, p50", many), Measured: again.median(), Unit: "ms",
		Baseline: live.median(), Against: "the same cells, no kill", Target: "≤ 2 s", Reached: reached(again.median() <= 2000),
		Note: fmt.Sprintf("worst %.0f ms; every session had its variables", again.at(100)),
	}}, nil
}

// wake compares the first cell of a hibernated session with a bare restore and the same cell.
func wake(ctx context.Context, b *bench) (_ []row, err error) {
	m, err := b.manager(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, _, err := m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{})
	if err != nil {
		return nil, err
	}
	sb, err := sandbox.Open(ctx, b.backend, sandbox.Spec{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	if err := errors.Join(want(ctx, s, "x = 41; x", "41"), want(ctx, sb, "x = 41; x", "41")); err != nil {
		return nil, err
	}
	ours, bare := samples{}, samples{}
	for i := range b.times(20, 5) + 1 {
		if err := s.Hibernate(ctx); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := want(ctx, s, "x + 1", "42"); err != nil {
			return nil, err
		}
		woken := time.Since(began)
		restored, err := b.restore(ctx, sb)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			ours, bare = append(ours, woken), append(bare, restored)
		}
	}
	return []row{{
		Name: "wake", What: "hibernated session to first cell, p50", Measured: ours.median(), Unit: "ms", Baseline: bare.median(), Against: "bare restore and cell",
		Target: "≤ 1.3 ×", Reached: reached(ours.median() <= 1.3*bare.median()),
	}}, nil
}

// restore times a bare restore of a fresh snapshot, up to the first cell.
func (b *bench) restore(ctx context.Context, of *sandbox.Sandbox) (_ time.Duration, err error) {
	snap, err := of.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.backend.DeleteSnapshot(ctx, snap.ID)) }()
	began := time.Now()
	sb, err := sandbox.Restore(ctx, b.backend, snap, sandbox.RestoreOptions{})
	if err != nil {
		return 0, err
	}
	err = want(ctx, sb, "x + 1", "42")
	return time.Since(began), errors.Join(err, sb.Close())
}

// each does something for every number below n, some at a time. After an error no more are begun.
func each(n, atOnce int, do func(i int) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error // guarded by mu
	next := make(chan int)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%d of %d: %w", i+1, n, err))
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		mu.Lock()
		failed := len(errs) > 0
		mu.Unlock()
		if failed {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}
