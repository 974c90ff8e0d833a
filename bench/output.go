//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// outputs compares a gigabyte of output through the library with a run of the same command by the engine into a pipe.
// Like the baseline, the sandbox has all processors.
func outputs(ctx context.Context, b *bench) {
	sb := must(sandbox.Open(ctx, b.backend, sandbox.Spec{Limits: sandbox.Limits{CPUs: float64(processors())}}))
	defer closing(sb.Close)
	plain := b.runsc(ctx)
	// The start does not count for the rate.
	ways, start := []bare{plain, b.tuned()}, [2]samples{}
	for range 3 {
		for i, w := range ways {
			start[i] = append(start[i], b.run(ctx, w, "/bin/true"))
		}
	}
	count := int64(16384)
	if b.quick {
		count = 4096
	}
	peak := int64(0)
	for _, c := range []struct {
		name   string
		size   int64
		target float64
		argv   []string
	}{
		{"dd", count * 64 << 10, 0.75, []string{
			"/usr/bin/dd", "if=/dev/zero", "bs=64k", "count=" + strconv.FormatInt(count, 10), "status=none",
		}},
		// In pieces of 8 KiB, where the command itself is the bottleneck. A smaller size is enough.
		{"head", count * 8 << 10, 0.5, []string{"/usr/bin/head", "-c", strconv.FormatInt(count*8<<10, 10), "/dev/zero"}},
	} {
		size := c.size
		ours, bares := samples{}, [2]samples{}
		for range b.times(5, 2) {
			for i, w := range ways {
				took := b.piped(ctx, w, c.argv...)
				bares[i] = append(bares[i], max(took-time.Duration(start[i].median()*float64(time.Millisecond)), time.Millisecond))
			}
			took, grown := runCounted(ctx, sb, c.argv, size)
			ours, peak = append(ours, took), max(peak, grown)
		}
		rate := func(s samples) float64 { return float64(size) / 1e6 / (s.median() / 1e3) }
		b.report([]row{{
			Name:     "output_" + c.name,
			What:     fmt.Sprintf("output of %.2g GB by %s", float64(size)/1e9, c.name),
			Measured: rate(ours),
			Unit:     "MB/s",
			Baseline: rate(bares[0]),
			Against:  "runsc run | cat",
			Target:   fmt.Sprintf("≥ %g ×", c.target),
			Reached:  reached(rate(ours) >= c.target*rate(bares[0])),
			Note:     fmt.Sprintf("our engine with the backend's flags into cat %.0f MB/s", rate(bares[1])),
		}})
	}
	b.report([]row{{
		Name:     "output_memory",
		What:     "our own memory during it, above idle",
		Measured: float64(peak) / 1e6,
		Unit:     "MB",
		Target:   "< 64 MB",
		Reached:  reached(peak < 64<<20),
	}})
}

// runCounted runs a command through the library, and returns its duration and how much the memory of this program grew.
func runCounted(ctx context.Context, sb *sandbox.Sandbox, argv []string, size int64) (took time.Duration, grown int64) {
	n := &counter{}
	var v *sandbox.Verdict
	grown = peakGrowth(func() {
		began := time.Now()
		v = must(
			sb.Run(ctx, sandbox.Command{Args: argv, RunOptions: sandbox.RunOptions{Stdout: n, Timeout: 5 * time.Minute}}),
		)
		took = time.Since(began)
	})
	checkf(v.OK() && n.n == size && v.Stdout.Produced == size, "%v: %v, %d of %d bytes", argv, v, n.n, size)
	return took, grown
}

// peakGrowth calls do and returns how much the memory of this program grew meanwhile, at most.
func peakGrowth(do func()) (grown int64) {
	debug.FreeOSMemory()
	before := resident()
	done, most := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		for {
			select {
			case <-done:
				most <- max(peak, resident())
				return
			case <-time.After(20 * time.Millisecond):
				peak = max(peak, resident())
			}
		}
	}()
	defer func() { // also when do fails
		close(done)
		grown = max(0, <-most-before)
	}()
	do()
	return 0
}

// counter counts and discards what is written to it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return io.Discard.Write(p)
}

// resident returns the memory of this program.
func resident() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if f := strings.Fields(string(data)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}
