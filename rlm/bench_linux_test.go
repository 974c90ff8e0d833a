//go:build linux

package rlm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// benchDesk is a desk for benchmarks.
func benchEngine(b *testing.B, root, sub *fake, change func(*Options)) *Engine {
	b.Helper()
	l := unlimited()
	l.Depth = new(2)
	o := Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return root, nil
			}
			return sub, nil
		},
		Sandboxes: sandboxes(b), Limits: l, Dir: b.TempDir(), PlainBelow: -1,
	}
	if change != nil {
		change(&o)
	}
	e, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// BenchmarkTurn measures our own time in a turn: from the model's reply to the next request, without the time of the
// code.
func BenchmarkTurn(b *testing.B) {
	for b.Loop() {
		var last time.Time
		var gaps []time.Duration
		root := &fake{answer: func(_ context.Context, n int, _ llm.Request) (string, error) {
			if n > 1 {
				gaps = append(gaps, time.Since(last))
			}
			last = time.Now()
			if n == 32 {
				return block("FINAL(1)"), nil
			}
			return block(fmt.Sprintf("x%d = %d\nprint('some output of a turn that says a little', x%d)", n, n, n)), nil
		}}
		e := benchEngine(b, root, root, nil)
		if _, err := e.Run(b.Context(), Question{Inputs: []Input{Text("x")}}); err != nil {
			b.Fatal(err)
		}
		early, late := slices.Clone(gaps[1:6]), slices.Clone(gaps[25:30])
		slices.Sort(gaps)
		slices.Sort(early)
		slices.Sort(late)
		b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds()), "p50-µs/turn")
		b.ReportMetric(float64(late[2])/float64(early[2]), "late/early")
	}
}

// BenchmarkBatch measures a thousand prompts, a hundred at a time, to a model that takes 50 ms; the ideal is half a
// second.
func BenchmarkBatch(b *testing.B) {
	for b.Loop() {
		sub := &fake{name: "fake/sub", answer: func(context.Context, int, llm.Request) (string, error) {
			time.Sleep(50 * time.Millisecond)
			return "ok", nil
		}}
		root := &fake{answer: script(block("import time\nt = time.time()\nr = llm_query_batched(['p%d' % i for i in range(1000)])\nFINAL(str(time.time() - t))"))}
		e := benchEngine(b, root, sub, func(o *Options) { o.Limits.Parallel = new(100) })
		res, err := e.Run(b.Context(), Question{Inputs: []Input{Text("x")}})
		if err != nil {
			b.Fatal(err)
		}
		var s float64
		if _, err := fmt.Sscan(res.Answer, &s); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(s, "s/batch")
		b.ReportMetric(s/0.5, "×ideal")
	}
}

// BenchmarkContext measures loading a text of 1 GiB, from the file to its length in the sandbox.
func BenchmarkContext(b *testing.B) {
	path := filepath.Join(b.TempDir(), "big.txt")
	line := []byte(strings.Repeat("all work and no play makes a dull day; ", 100) + "\n")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	for n := 0; n < 1<<30; n += len(line) {
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
	}
	_ = f.Close()
	_ = os.Chmod(path, 0o644)
	for b.Loop() {
		root := &fake{answer: script(block("FINAL(len(context))"))}
		e := benchEngine(b, root, root, func(o *Options) { o.NoCoverage = true })
		begun := time.Now()
		res, err := e.Run(b.Context(), Question{Inputs: []Input{File(path)}})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(begun).Seconds(), "s")
		b.Log(res.Answer)
	}
}

// loadCode reads a text as the bridge does.
const loadCode = `import mmap
with open(%q, "rb") as f, mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE | 0x8000, prot=mmap.PROT_READ) as m, memoryview(m) as v:
    context = str(v, "utf-8")`

// BenchmarkChildMachine measures the time to get a sandbox for a child run with a large context: a fork of the parent's
// sandbox with everything in it, or a new sandbox into which the files are linked and loaded. The engine does the
// latter.
func BenchmarkChildMachine(b *testing.B) {
	const size = 128 << 20
	path := filepath.Join(b.TempDir(), "big.txt")
	if err := os.WriteFile(path, []byte(strings.Repeat("all work and no play makes a dull day;\n", size/39)), 0o644); err != nil {
		b.Fatal(err)
	}
	spec := sandbox.Spec{Limits: sandbox.Limits{Memory: memoryFor(size)}}
	load := func(sb *sandbox.Sandbox) {
		inside, err := sb.Share(b.Context(), path, "big.txt")
		if err != nil {
			b.Fatal(err)
		}
		v, err := sb.Cell(b.Context(), sandbox.Cell{Code: fmt.Sprintf(loadCode, inside)})
		if err != nil || !v.OK() {
			b.Fatal(v, err)
		}
	}
	open := func() *sandbox.Sandbox {
		sb, err := sandbox.Open(b.Context(), boxes, spec)
		if err != nil {
			b.Fatal(err)
		}
		return sb
	}
	parent := open() // also makes the template
	defer parent.Close()
	load(parent)
	b.Run("fork", func(b *testing.B) {
		for b.Loop() {
			copies, err := parent.Fork(b.Context(), 1)
			if err != nil {
				b.Fatal(err)
			}
			_ = copies[0].Close()
		}
	})
	b.Run("fresh", func(b *testing.B) {
		for b.Loop() {
			sb := open()
			load(sb)
			_ = sb.Close()
		}
	})
}
