//go:build linux

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// runner runs cells: a sandbox, a session, or a session over HTTP.
type runner interface {
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
}

// want runs a cell and checks its result.
func want(ctx context.Context, r runner, code, result string) {
	v := must(r.Cell(ctx, sandbox.Cell{Code: code}))
	checkf(v.Result.Text() == result, "%s is %q, not %q: %v", code, v.Result.Text(), result, v)
}

// overHTTP compares cells over HTTP with cells through the library: one after the other, and in many sessions at once.
func overHTTP(ctx context.Context, b *bench) {
	s := b.serve(ctx)
	defer closing(s.close)
	many := b.times(32, 8)
	boxes := make([]*sandbox.Sandbox, many)
	defer closing(func() error { return closeAll(boxes) })
	library, local, remote, socket := make(
		[]runner,
		many,
	), make(
		[]runner,
		many,
	), make(
		[]runner,
		many,
	), make(
		[]runner,
		many,
	)
	each(many, 4, func(i int) {
		boxes[i] = b.open(ctx)
		name := fmt.Sprint("s", i)
		opened, _ := must2(s.manager.Open(ctx, session.Key{Name: name}, session.OpenOptions{}))
		library[i], local[i], remote[i], socket[i] = boxes[i], opened, s.tcp.Session(name), s.socket.Session(name)
		want(ctx, boxes[i], "1+1", "2")
		want(ctx, opened, "1+1", "2")
	})
	oneByOne(ctx, b, []runner{library[0], local[0], remote[0], socket[0]})
	var rates, costs [4][]float64
	for n := range b.times(21, 4) { // many short rounds, because the load of a busy machine changes
		for i, all := range [][]runner{library, local, remote, socket} {
			rate, cost := throughput(ctx, all, 500*time.Millisecond)
			if n > 0 { // the first round makes the connections
				rates[i], costs[i] = append(rates[i], rate), append(costs[i], cost)
			}
		}
	}
	base, over := medianOf(rates[0]), medianOf(rates[2])
	b.report([]row{{
		Name:     "http_throughput",
		What:     fmt.Sprintf("small cells in %d sessions at once, over HTTP", many),
		Measured: over,
		Unit:     "/s",
		Baseline: base,
		Against:  "the library's sandboxes",
		Target:   "≥ 0.9 ×",
		Reached:  reached(over >= 0.9*base),
		Note: fmt.Sprintf("sessions within the program %.0f /s, over the UNIX socket %.0f /s; "+
			"processor time of client and server together for each cell %.3f ms, of the library %.3f ms; "+
			"they share %d processors with the sandboxes",
			medianOf(rates[1]), medianOf(rates[3]), medianOf(costs[2]), medianOf(costs[0]), processors()),
	}})
}

// oneByOne measures warm cells of the library, of a session, over TCP and over the socket, alternately.
func oneByOne(ctx context.Context, b *bench, ways []runner) {
	took := make([]samples, len(ways))
	for i := range b.times(3000, 500) + warmCells {
		for w, r := range ways {
			began := time.Now()
			want(ctx, r, "1+1", "2")
			if i >= warmCells {
				took[w] = append(took[w], time.Since(began))
			}
		}
	}
	library, tcp := took[0].median(), took[2].median()
	b.report([]row{{
		Name:     "http_cell",
		What:     "warm cell over HTTP on loopback, p50",
		Measured: tcp,
		Unit:     "ms",
		Baseline: library,
		Against:  "the library",
		Target:   "≤ 0.5 ms more",
		Reached:  reached(tcp <= library+0.5),
		Note: fmt.Sprintf("%.3f ms more; a session within the program %.3f ms, over the UNIX socket %.3f ms; "+
			"p99 %.3f against %.3f ms",
			tcp-library, took[1].median(), took[3].median(), took[2].at(99), took[0].at(99)),
	}})
}

// throughput returns the cells per second that all runners reach together, and the processor time of this program for
// each cell in milliseconds.
func throughput(ctx context.Context, all []runner, during time.Duration) (rate, cost float64) {
	var cells atomic.Int64
	began, spent := time.Now(), processorTime()
	each(len(all), len(all), func(i int) {
		for time.Since(began) < during {
			want(ctx, all[i], "1+1", "2")
			cells.Add(1)
		}
	})
	n := float64(max(1, cells.Load()))
	return n / time.Since(began).Seconds(), (processorTime() - spent).Seconds() * 1e3 / n
}

// processorTime returns the processor time that this program has used, without the sandboxes.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// restart kills a server with many live sessions, and waits until all of them answer again.
func restart(ctx context.Context, b *bench) {
	dir := b.dir + "/restart"
	p := b.launch(ctx, dir)
	defer closing(func() error { return p.end() }) // ends the server that runs then
	c := p.client()
	defer c.Close()
	many := b.times(100, 10)
	name := func(i int) string { return fmt.Sprint("s", i) }
	each(many, 4, func(i int) {
		s, _ := must2(c.Open(ctx, name(i), session.OpenOptions{}))
		want(ctx, s, fmt.Sprintf("x = %d; x", i), fmt.Sprint(i))
	})
	all := func() {
		each(many, many, func(i int) { want(ctx, c.Session(name(i)), "x + 1", fmt.Sprint(i+1)) })
	}
	again, live := samples{}, samples{}
	for range b.times(5, 2) {
		began := time.Now()
		all()
		live = append(live, time.Since(began))
		began = time.Now()
		p.kill()
		p = b.launch(ctx, dir)
		all()
		again = append(again, time.Since(began))
	}
	b.report([]row{{
		Name:     "restart",
		What:     fmt.Sprintf("kill -9 of the server with %d live sessions to all answering, p50", many),
		Measured: again.median(),
		Unit:     "ms",
		Baseline: live.median(),
		Against:  "the same cells, no kill",
		Target:   "≤ 2 s",
		Reached:  reached(again.median() <= 2000),
		Note:     fmt.Sprintf("worst %.0f ms; every session had its Python variables", again.at(100)),
	}})
}

// wake compares the first cell of a hibernated session with a bare restore and the same cell.
func wake(ctx context.Context, b *bench) {
	m := b.manager(ctx)
	defer closing(m.Close)
	s, _ := must2(m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{}))
	sb := b.open(ctx)
	defer closing(sb.Close)
	want(ctx, s, "x = 41; x", "41")
	want(ctx, sb, "x = 41; x", "41")
	ours, bare := samples{}, samples{}
	for i := range b.times(20, 5) + 1 {
		check(s.Hibernate(ctx))
		began := time.Now()
		want(ctx, s, "x + 1", "42")
		woken := time.Since(began)
		restored := b.restore(ctx, sb)
		if i > 0 {
			ours, bare = append(ours, woken), append(bare, restored)
		}
	}
	b.report([]row{{
		Name:     "wake",
		What:     "hibernated session to first cell, p50",
		Measured: ours.median(),
		Unit:     "ms",
		Baseline: bare.median(),
		Against:  "bare restore and cell",
		Target:   "≤ 1.3 ×",
		Reached:  reached(ours.median() <= 1.3*bare.median()),
	}})
}

// restore returns the duration of a bare restore of a new snapshot, up to the first cell.
func (b *bench) restore(ctx context.Context, of *sandbox.Sandbox) time.Duration {
	snap := must(of.Snapshot(ctx, sandbox.SnapshotOptions{}))
	defer closing(func() error { return b.backend.DeleteSnapshot(ctx, snap.ID) })
	began := time.Now()
	sb := must(sandbox.Restore(ctx, b.backend, snap, sandbox.RestoreOptions{}))
	defer closing(sb.Close)
	want(ctx, sb, "x + 1", "42")
	return time.Since(began)
}

// each calls do for every number below n, at most atOnce at a time. After an error it starts no more calls.
func each(n, atOnce int, do func(i int)) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	var failed atomic.Bool
	for i := range n {
		if failed.Load() {
			break
		}
		g.Go(func() error {
			err := attempt(func() { do(i) })
			if err != nil {
				failed.Store(true)
				err = fmt.Errorf("%d of %d: %w", i+1, n, err)
			}
			return err
		})
	}
	check(g.Wait())
}
