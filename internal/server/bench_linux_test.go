package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// BenchmarkCell runs the same warm cell through the library, over TCP and over the socket in turn, so that a busy
// machine is equally busy for all of them, and reports the median of each.
func BenchmarkCell(b *testing.B) {
	k := servertest.New(b, server.Options{})
	key := k.Key("default", "execute")
	lib, _, err := k.Manager.Open(b.Context(), session.Key{Name: "bench"}, session.OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	tcp, unix := k.Client(key).Session("bench"), k.Trusted.Session("bench")
	ways := []struct {
		name string
		run  func() (*sandbox.Verdict, error)
		took []time.Duration
	}{
		{name: "library", run: func() (*sandbox.Verdict, error) { return lib.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) }},
		{name: "tcp", run: func() (*sandbox.Verdict, error) { return tcp.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) }},
		{name: "socket", run: func() (*sandbox.Verdict, error) { return unix.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) }},
	}
	for b.Loop() {
		for i := range ways {
			began := time.Now()
			if v, err := ways[i].run(); err != nil || !v.OK() {
				b.Fatal(v, err)
			}
			ways[i].took = append(ways[i].took, time.Since(began))
		}
	}
	for _, w := range ways {
		slices.Sort(w.took)
		b.ReportMetric(float64(w.took[len(w.took)/2].Microseconds()), w.name+"-p50-µs")
	}
}
