package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

var outputs = []feature{
	{"a long output keeps head and tail, and the rest is in a file", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: "seq 1 100000", RunOptions: sandbox.RunOptions{InlineBytes: 1000}})
		var want strings.Builder
		for i := range 100000 {
			fmt.Fprintln(&want, i+1)
		}
		o := v.Stdout
		same(t, "produced", o.Produced, int64(want.Len()))
		same(t, "head", string(o.Head), want.String()[:500])
		same(t, "tail", string(o.Tail), want.String()[want.Len()-500:])
		same(t, "cut", o.Cut(), int64(want.Len()-1000))
		same(t, "bytes in the file", o.InFile, int64(want.Len()))
		contains(t, "the text", o.String(), o.File)
		whole, err := files(sb, "").ReadAll(t.Context(), o.File)
		noError(t, err)
		if string(whole) != want.String() {
			t.Errorf("the file %s has another content, of %d bytes", o.File, len(whole))
		}
		same(t, "a command can read it", shell(t, sb, "tail -n 1 "+o.File), "100000\n")
	}},
	{"an output that fits exactly is not cut", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for _, n := range []int{999, 1000, 1001} {
			v := run(t, sb, sandbox.Command{Shell: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n), RunOptions: sandbox.RunOptions{InlineBytes: 1000}})
			same(t, "produced", v.Stdout.Produced, int64(n))
			same(t, "cut", v.Stdout.Cut(), int64(max(0, n-1000)))
			same(t, "file", v.Stdout.File != "", n > 1000)
		}
	}},
	{"the file ends at its cap, and the count goes on", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: "head -c 3000000 /dev/zero", RunOptions: sandbox.RunOptions{InlineBytes: 1000, SpoolBytes: 100_000}})
		same(t, "produced", v.Stdout.Produced, 3_000_000)
		same(t, "bytes in the file", v.Stdout.InFile, 100_000)
		info, err := files(sb, "").Stat(t.Context(), v.Stdout.File)
		noError(t, err)
		same(t, "size of the file", info.Size, 100_000)
	}},
	{"no file is written when none is wanted", inGuest, func(t *testing.T, s *suite) {
		v := run(t, s.open(t), sandbox.Command{Shell: "head -c 300000 /dev/zero", RunOptions: sandbox.RunOptions{SpoolBytes: -1}})
		same(t, "file", v.Stdout.File, "")
		same(t, "produced", v.Stdout.Produced, 300_000)
		same(t, "kept", v.Stdout.Kept(), v1.DefaultInlineBytes)
	}},
	{"following skips what is no longer kept and says so", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: "seq 1 100000", RunOptions: sandbox.RunOptions{InlineBytes: 1000, SpoolBytes: 10_000}})
		var out recorder
		var skipped int64
		_, err := sb.Follow(t.Context(), v.ID, sandbox.FollowOptions{StdoutOffset: 100, Stdout: &out, Skipped: func(_ int, n int64) { skipped += n }})
		noError(t, err)
		same(t, "what came and what was skipped", int64(len(out.String()))+skipped+100, v.Stdout.Produced)
		same(t, "what came", len(out.String()), 10_000-100+500)
		if !strings.HasSuffix(out.String(), "99999\n100000\n") {
			t.Errorf("the end is %q", out.String()[len(out.String())-20:])
		}
	}},
	{"output is exact, whatever bytes it is made of", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		var all []byte
		for i := range 256 {
			all = append(all, byte(i))
		}
		all = append(all, "\x1b[31mred\x1b[0m\x1b]0;title\x07\xc3\x28\xf0\x9f\x92\xa9\xff\xfe\x00"...)
		var out, errs recorder
		v := run(t, sb, sandbox.Command{Shell: "tee /dev/stderr", RunOptions: sandbox.RunOptions{Stdin: bytes.NewReader(all), Stdout: &out, Stderr: &errs}})
		for what, got := range map[string]string{"stdout streamed": out.String(), "stderr streamed": errs.String(), "stdout kept": string(v.Stdout.Head), "stderr kept": string(v.Stderr.Head)} {
			if got != string(all) {
				t.Errorf("%s: %q", what, got)
			}
		}
	}},
	{"one endless line is an output like any other", inGuest, func(t *testing.T, s *suite) {
		var n counter
		v := run(t, s.open(t), sandbox.Command{Shell: "head -c 20000000 /dev/zero | tr '\\0' a", RunOptions: sandbox.RunOptions{Stdout: &n}})
		same(t, "produced", v.Stdout.Produced, 20_000_000)
		same(t, "streamed", n.Load(), 20_000_000)
	}},
	{"two floods and a quiet command do not disturb each other", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		var a, b recorder
		first := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "echo go; yes | head -c 20000000 >&2; echo fin", RunOptions: sandbox.RunOptions{Stdout: &a, Stderr: &counter{}}})
		second := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "echo go; yes no | head -c 20000000 >&2; echo fin", RunOptions: sandbox.RunOptions{Stdout: &b, Stderr: &counter{}}})
		a.await(t, "go")
		b.await(t, "go")
		for range 5 {
			began := time.Now()
			same(t, "a quiet command", shell(t, sb, "echo hello"), "hello\n")
			noError(t, sb.Ping(t.Context()))
			if took := time.Since(began); took > maxWait {
				t.Errorf("a quiet command took %s", took)
			}
		}
		for _, c := range []<-chan outcome{first, second} {
			v := verdictOf(t, c)
			succeeded(t, v)
			same(t, "stderr", v.Stderr.Produced, 20_000_000)
			same(t, "stdout", v.Stdout.String(), "go\nfin\n")
		}
	}},
	{"a reader that stands still holds up its own command only", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		release := make(chan struct{})
		var n counter
		done := inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "head -c 20000000 /dev/zero", RunOptions: sandbox.RunOptions{Stdout: writerFunc(func(p []byte) (int, error) {
			<-release
			return n.Write(p)
		})}})
		// Longer than the guest waits for output of survivors.
		held := time.After(time.Second)
		for range 3 {
			same(t, "another command", shell(t, sb, "head -c 1000000 /dev/zero | wc -c"), "1000000\n")
		}
		<-held
		close(release)
		v := verdictOf(t, done)
		succeeded(t, v)
		same(t, "streamed in the end", n.Load(), 20_000_000)
		same(t, "produced", v.Stdout.Produced, 20_000_000)

		// Less than the buffers on the way hold, so that the command ends long before its output is read.
		release = make(chan struct{})
		n = counter{}
		done = inBackground(t.Context(), sb.Run, sandbox.Command{Shell: "head -c 6000000 /dev/zero; echo over > over", RunOptions: sandbox.RunOptions{Stdout: writerFunc(func(p []byte) (int, error) {
			<-release
			return n.Write(p)
		})}})
		<-time.After(time.Second)
		close(release)
		succeeded(t, verdictOf(t, done))
		same(t, "streamed in the end", n.Load(), 6_000_000)

		ctx, cancel := context.WithCancel(t.Context())
		release = make(chan struct{})
		var first recorder
		done = inBackground(ctx, sb.Run, sandbox.Command{Shell: "echo ready; head -c 20000000 /dev/zero; sleep 1000", RunOptions: sandbox.RunOptions{Stdout: writerFunc(func(p []byte) (int, error) {
			_, _ = first.Write(p)
			<-release
			return len(p), nil
		})}})
		first.await(t, "ready")
		cancel()
		testneed.Await(t, "the end of the cancelled command", func() bool {
			ops, err := sb.Operations(t.Context())
			noError(t, err)
			return !ops[len(ops)-1].Running
		})
		close(release)
		same(t, "ended", verdictOf(t, done).Ended, v1.EndedCancelled)
	}},
	{"a cell whose output nobody takes still ends in time, and keeps its state", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "x = 42")
		release := make(chan struct{})
		var first recorder
		done := inBackground(t.Context(), sb.Cell, sandbox.Cell{
			Code: "print('ready', flush=True)\nwhile True: print('x' * 10000)",
			RunOptions: sandbox.RunOptions{ID: "flood", Timeout: time.Second, KillGrace: 10 * time.Second, Stdout: writerFunc(func(p []byte) (int, error) {
				_, _ = first.Write(p)
				<-release
				return len(p), nil
			})},
		})
		first.await(t, "ready")
		testneed.Await(t, "the end of the cell", func() bool {
			ops, err := sb.Operations(t.Context())
			noError(t, err)
			return !ops[len(ops)-1].Running
		})
		same(t, "the next cell", okCell(t, sb, "x").Result.Text(), "42")
		close(release)
		v := verdictOf(t, done)
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "state kept", v.StateKept, true)
	}},
	{"a list of operations fits, however much they said", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for range 12 {
			run(t, sb, sandbox.Command{Shell: "head -c 1000000 /dev/zero | tr '\\0' x", RunOptions: sandbox.RunOptions{InlineBytes: 1 << 20}})
		}
		if s.caps.Python {
			cell(t, sb, "display('x' * 1500000)\nprint('y' * 1000)\nraise ValueError('z' * 60000)")
		}
		ops, err := sb.Operations(t.Context())
		noError(t, err)
		for _, o := range ops {
			if o.Running || o.Verdict == nil {
				t.Errorf("%s: running %v, verdict %v", o.ID, o.Running, o.Verdict)
				continue
			}
			same(t, "output in the list", o.Verdict.Stdout.Kept(), 0)
			same(t, "produced", o.Verdict.Stdout.Produced > 0, true)
		}
		v, err := sb.Follow(t.Context(), ops[0].ID, sandbox.FollowOptions{})
		noError(t, err)
		same(t, "output that Follow returns", v.Stdout.Kept(), 1_000_000)
	}},
	{"a writer that fails is an error beside the verdict", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo a; echo b; exit 4", RunOptions: sandbox.RunOptions{Stdout: writerFunc(func([]byte) (int, error) { return 0, fmt.Errorf("no more") })}})
		if err == nil || v == nil || v.ExitCode != 4 || v.Stdout.String() != "a\nb\n" {
			t.Errorf("verdict %v, error %v", v, err)
		}
	}},
}

// flood is in a serial group because it measures this program's memory.
func flood(t *testing.T, s *suite) {
	sb := s.open(t)
	for _, c := range []struct {
		name, script string
	}{
		{"in large writes", "head -c 50000000 /dev/zero"},
		{"on both streams", "head -c 25000000 /dev/zero & head -c 25000000 /dev/zero >&2; wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.GC()
			var before, m runtime.MemStats
			runtime.ReadMemStats(&before)
			var peak atomic.Uint64
			var n counter
			watch := writerFunc(func(p []byte) (int, error) {
				if total := n.Load(); total>>20 != (total+int64(len(p)))>>20 {
					runtime.ReadMemStats(&m)
					peak.Store(max(peak.Load(), m.HeapAlloc))
				}
				return n.Write(p)
			})
			v := run(t, sb, sandbox.Command{Shell: c.script, RunOptions: sandbox.RunOptions{
				Timeout: 5 * time.Minute, Stdout: watch, Stderr: watch,
			}})
			succeeded(t, v)
			same(t, "streamed", n.Load(), 50_000_000)
			same(t, "produced", v.Stdout.Produced+v.Stderr.Produced, 50_000_000)
			if grown := int64(peak.Load()) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the memory of this program has grown by %d MB", grown>>20)
			}
		})
	}
}

// counter counts bytes.
type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
