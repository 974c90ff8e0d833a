package session

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func benchManager(b *testing.B, opts Options) *Manager {
	b.Helper()
	opts.Backends, opts.DataDir, opts.Logger = []sandbox.Backend{realBackend(b)}, b.TempDir(), slog.New(slog.DiscardHandler)
	m, err := New(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if m.ctx.Err() != nil {
			return // the benchmark has closed it
		}
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

// BenchmarkCell compares a warm cell that runs through the manager with the same cell in the sandbox directly.
func BenchmarkCell(b *testing.B) {
	m := benchManager(b, Options{NoPool: true})
	s, _, err := m.Open(b.Context(), Key{Name: "work"}, OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	sb := s.attachment.sandbox
	for name, f := range map[string]func(context.Context, sandbox.Cell) (*sandbox.Verdict, error){"sandbox": sb.Cell, "session": s.Cell} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := f(b.Context(), sandbox.Cell{Code: "1+1"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkManager measures what the manager alone adds to a warm cell: everything but the sandbox.
func BenchmarkManager(b *testing.B) {
	m := benchManager(b, Options{NoPool: true})
	s, _, err := m.Open(b.Context(), Key{Name: "work"}, OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	v := &sandbox.Verdict{ID: "x1", Ended: v1.EndedExit}
	for b.Loop() {
		if err := s.beginUse(true, true); err != nil {
			b.Fatal(err)
		}
		leave, err := s.enterQueue(b.Context(), defaultContext)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.awaitSandbox(b.Context()); err != nil {
			b.Fatal(err)
		}
		leave()
		s.endUse(true, 0)
		s.recordRun(b.Context(), "cell", "1+1", judged{}, time.Now(), v, nil)
	}
}

// BenchmarkRestart measures the time from detaching 100 live sessions until all of them answer again.
func BenchmarkRestart(b *testing.B) {
	const sessions = 100
	m := benchManager(b, Options{NoPool: true})
	names := make(chan string)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for name := range names {
				s, _, err := m.Open(b.Context(), Key{Name: name}, OpenOptions{})
				if err == nil {
					_, err = s.Cell(b.Context(), sandbox.Cell{Code: "x = 41"})
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range sessions {
		names <- fmt.Sprint("s", i)
	}
	close(names)
	wg.Wait()
	defer func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		if err := m.Detach(b.Context()); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		next, err := New(b.Context(), m.opts)
		if err != nil {
			b.Fatal(err)
		}
		m = next
		opened := time.Since(begun)
		var wg sync.WaitGroup
		for i := range sessions {
			wg.Go(func() {
				s, err := next.Get(b.Context(), Key{Name: fmt.Sprint("s", i)})
				if err == nil {
					var v *sandbox.Verdict
					v, err = s.Cell(b.Context(), sandbox.Cell{Code: "x + 1"})
					if err == nil && v.Result.Text() != "42" {
						b.Errorf("x + 1 is %s", v.Result.Text())
					}
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(opened.Milliseconds()), "ms-open")
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "ms-answering")
	}
}

// BenchmarkWake compares the first cell of a hibernated session with a bare restore and the same cell.
func BenchmarkWake(b *testing.B) {
	m := benchManager(b, Options{NoPool: true})
	s, _, err := m.Open(b.Context(), Key{Name: "work"}, OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Cell(b.Context(), sandbox.Cell{Code: "x = 41"}); err != nil {
		b.Fatal(err)
	}
	b.Run("session", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			if err := s.Hibernate(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if _, err := s.Cell(b.Context(), sandbox.Cell{Code: "x"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			snap, err := s.attachment.sandbox.Snapshot(b.Context(), sandbox.SnapshotOptions{})
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			sb, err := sandbox.Restore(b.Context(), s.attachment.sandbox.Backend(), snap, sandbox.RestoreOptions{})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := sb.Cell(b.Context(), sandbox.Cell{Code: "x"}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := sb.Close(); err != nil {
				b.Error(err)
			}
			if err := sb.Backend().DeleteSnapshot(b.Context(), snap.ID); err != nil {
				b.Error(err)
			}
			b.StartTimer()
		}
	})
}
