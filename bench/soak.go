//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/session"
)

// drainWait is how long ended sessions may take to disappear: descriptors and goroutines end a moment later, and ended
// sandboxes are removed in the background.
const drainWait = 30 * time.Second

// soak makes, uses and ends many sessions, many at a time, and counts what is left.
func soak(ctx context.Context, b *bench) {
	m := b.manager(ctx)
	defer closing(m.Close)
	many, atOnce := b.times(1000, 60), b.times(50, 10)
	var mu sync.Mutex
	var ids []string // of sandboxes; guarded by mu
	var took samples // guarded by mu
	life := func(i int) {
		began := time.Now()
		s, opened := must2(m.Open(ctx, session.Key{Name: fmt.Sprint("s", i)}, session.OpenOptions{}))
		checkf(opened.New, "session %d already exists", i)
		mu.Lock()
		ids = append(ids, s.Info().Sandbox)
		mu.Unlock()
		err := attempt(func() { want(ctx, s, fmt.Sprintf("x = %d; x + 1", i), fmt.Sprint(i+1)) })
		check(errors.Join(err, s.End(ctx, "")))
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(began))
	}
	// The first round allocates what is allocated once and kept: connections of the store, threads, the size of the
	// heap.
	each(atOnce, atOnce, life)
	before := b.awaitHolding(ctx, ids, holding{})
	ids, took = nil, nil
	failures := 0
	began := time.Now()
	var failed error
	each(many, atOnce, func(i int) {
		if err := attempt(func() { life(i) }); err != nil { // the others continue
			mu.Lock()
			defer mu.Unlock()
			failures++
			failed = err
		}
		check(ctx.Err())
	})
	all := time.Since(began)
	after := b.awaitHolding(ctx, ids, before)
	note := fmt.Sprintf("%.1f s in all, each %.0f ms (p50), %.0f ms (p99)", all.Seconds(), took.median(), took.at(99))
	if failed != nil {
		note += fmt.Sprintf("; one failure: %v", failed)
	}
	grown := after.memory - before.memory
	b.report([]row{
		{
			Name:     "soak_failures",
			What:     fmt.Sprintf("failures of %d sessions, %d at a time", many, atOnce),
			Measured: float64(failures),
			Target:   "none",
			Reached:  reached(failures == 0),
			Note:     note,
		},
		{
			Name:     "soak_left",
			What:     "left after their end",
			Measured: float64(max(0, after.sum()-before.sum())),
			Target:   "nothing",
			Reached:  reached(!after.exceeds(before)),
			Note:     fmt.Sprintf("before: %v; after: %v", before, after),
		},
		{
			Name:     "soak_memory",
			What:     "our own memory after their end",
			Measured: float64(after.memory) / 1e6,
			Unit:     "MB",
			Baseline: float64(before.memory) / 1e6,
			Against:  "after the first round",
			Target:   "≤ 16 MB more",
			Reached:  reached(grown <= 16<<20),
		},
	})
}

// holding counts what sessions may leave behind, in the system and in this program.
type holding struct {
	leftovers
	descriptors, goroutines int
	memory                  int64
}

func (h holding) sum() int { return h.leftovers.sum() + h.descriptors + h.goroutines }

func (h holding) String() string {
	return fmt.Sprintf("%v, %d descriptors, %d goroutines", h.leftovers, h.descriptors, h.goroutines)
}

// exceeds reports whether any count is higher than in o.
func (h holding) exceeds(o holding) bool {
	return h.processes > o.processes || h.mounts > o.mounts || h.cgroups > o.cgroups || h.files > o.files ||
		h.descriptors > o.descriptors || h.goroutines > o.goroutines
}

// awaitHolding returns the counts as soon as they do not exceed limit, or after drainWait. With a zero limit it waits
// only for the end of the sandboxes.
func (b *bench) awaitHolding(ctx context.Context, ids []string, limit holding) holding {
	for end := time.Now().Add(drainWait); ; {
		h := b.holding(ids)
		calm := !h.exceeds(limit)
		if limit == (holding{}) {
			live := must(b.backend.List(ctx))
			calm = len(live) == 0 && h.processes == 0
		}
		if calm || time.Now().After(end) {
			return h
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (b *bench) holding(ids []string) holding {
	fds := must(os.ReadDir("/proc/self/fd"))
	h := holding{leftovers: b.leftovers(ids), goroutines: runtime.NumGoroutine()}
	for _, fd := range fds {
		// The store opens its connections as needed, up to a maximum, so they do not count.
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.Contains(to, ".db") {
			h.descriptors++
		}
	}
	debug.FreeOSMemory()
	h.memory = resident()
	return h
}

// asleep hibernates many sessions, counts what they use, and wakes some of them.
func asleep(ctx context.Context, b *bench) {
	m := b.manager(ctx)
	defer closing(m.Close)
	many := b.times(500, 20)
	// The first session allocates what is allocated once.
	all := make([]*session.Session, many)
	hibernate := func(i int) {
		all[i], _ = must2(m.Open(ctx, session.Key{Name: fmt.Sprint("s", i)}, session.OpenOptions{}))
		want(ctx, all[i], fmt.Sprintf("x = %d; x", i), fmt.Sprint(i))
		check(all[i].Hibernate(ctx))
	}
	hibernate(0)
	before := b.awaitHolding(ctx, nil, holding{})
	each(many-1, 4, func(i int) { hibernate(i + 1) })
	after := b.awaitHolding(ctx, nil, holding{})
	live := must(b.backend.List(ctx))
	grown := float64(max(0, after.memory-before.memory)) / float64(many-1)
	// The first, the last and some between.
	step := max(1, many/b.times(40, 5))
	took, tried := samples{}, 0
	for i := many - 1; i >= 0; i -= step {
		tried++
		began := time.Now()
		if err := attempt(func() { want(ctx, all[i], "x + 1", fmt.Sprint(i+1)) }); err != nil {
			b.log("session: hibernated session %d: %v", i, err)
			continue
		}
		took = append(took, time.Since(began))
		check(all[i].Hibernate(ctx))
	}
	b.report([]row{
		{
			Name:     "asleep_processes",
			What:     fmt.Sprintf("processes and sandboxes of %d hibernated sessions", many),
			Measured: float64(after.processes + len(live)),
			Target:   "none",
			Reached:  reached(after.processes+len(live) == 0),
			Note:     fmt.Sprintf("%.1f MB on disk for each", b.snapshotSize(ctx)/1e6),
		},
		{Name: "asleep_memory", What: "our own memory for each of them", Measured: grown / 1e3, Unit: "kB"},
		{
			Name:     "asleep_back",
			What:     fmt.Sprintf("of %d woken sessions, those with their Python variables", tried),
			Measured: float64(len(took)),
			Target:   "all",
			Reached:  reached(tried == len(took)),
			Note:     fmt.Sprintf("first cell after %.0f ms (p50), %.0f ms (worst)", took.median(), took.at(100)),
		},
	})
}

// snapshotSize returns the mean size of the existing snapshots.
func (b *bench) snapshotSize(ctx context.Context) float64 {
	all, err := b.backend.Snapshots(ctx)
	if err != nil || len(all) == 0 {
		return 0
	}
	var sum int64
	for _, s := range all {
		sum += s.Size
	}
	return float64(sum) / float64(len(all))
}

// medianOf returns the median of rates.
func medianOf(rates []float64) float64 {
	if len(rates) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(rates))[len(rates)/2]
}
