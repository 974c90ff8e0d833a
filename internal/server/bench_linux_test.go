package server_test

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// BenchmarkCell compares a warm cell through the library with the same one over HTTP.
func BenchmarkCell(b *testing.B) {
	k := servertest.New(b, server.Options{})
	key := k.Key("default", "execute")
	lib, _, err := k.Manager.Open(b.Context(), session.Key{Name: "bench"}, session.OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	tcp, unix := k.Client(key).Session("bench"), k.Trusted.Session("bench")
	over := map[string]func() (*sandbox.Verdict, error){
		"library": func() (*sandbox.Verdict, error) { return lib.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) },
		"tcp":     func() (*sandbox.Verdict, error) { return tcp.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) },
		"socket":  func() (*sandbox.Verdict, error) { return unix.Cell(b.Context(), sandbox.Cell{Code: "1+1"}) },
	}
	for _, way := range []string{"library", "tcp", "socket"} {
		b.Run(way, func(b *testing.B) {
			for b.Loop() {
				if v, err := over[way](); err != nil || !v.OK() {
					b.Fatal(v, err)
				}
			}
		})
	}
}
