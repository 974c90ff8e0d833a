//go:build linux

package agent

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Survivors of a command write on while its verdict is sent; on a stream that serves the next call that must not be heard.
func TestNothingIsSaidBehindTheVerdict(t *testing.T) {
	ours, theirs := net.Pipe()
	host, guest := wire.NewSession(ours, ours, true), wire.NewSession(theirs, theirs, false)
	var stop atomic.Bool
	var writers sync.WaitGroup
	defer func() {
		stop.Store(true)
		writers.Wait()
		_ = host.Close()
		_ = guest.Close()
		guest.Wait()
	}()
	go host.Serve(func(*wire.Stream, *wire.Request) bool { return false })
	ops := &table{dir: t.TempDir(), ops: map[string]*op{}}
	go guest.Serve(func(st *wire.Stream, req *wire.Request) bool {
		if req.GetPing() != nil {
			return last(st, &wire.Frame{Body: &wire.Frame_Data{Data: req.GetPing().Payload}})
		}
		o, bad := ops.add(newOp{id: req.GetExec().Id, inline: 1000, spool: -1})
		if bad != nil {
			return answer(st, bad)
		}
		heard := &listener{st: st}
		o.live = heard
		began := make(chan struct{}, 2)
		for s := range 2 {
			writers.Go(func() {
				for k := 0; !stop.Load() && k < 200; k++ {
					o.emit(s+1, make([]byte, 20<<10))
					select {
					case began <- struct{}{}:
					default:
					}
				}
			})
		}
		<-began
		o.finish(&wire.Verdict{})
		o.hush(heard)
		return last(st, &wire.Frame{Body: &wire.Frame_Verdict{Verdict: &wire.Verdict{}}})
	})
	for k := range 100 {
		st, err := host.Open()
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(&wire.Request{Call: &wire.Request_Exec{Exec: &wire.Exec{Id: "o" + string(rune('a'+k/26)) + string(rune('a'+k%26))}}}); err != nil {
			t.Fatal(err)
		}
		for {
			f := &wire.Frame{}
			if err := st.Receive(f); err != nil {
				t.Fatal(err)
			}
			if f.Last {
				break
			}
			if f.GetOutput() == nil {
				t.Fatalf("got %v", f)
			}
		}
		st.Release()
		if st, err = host.Open(); err != nil {
			t.Fatal(err)
		}
		f := &wire.Frame{}
		if err := st.Send(&wire.Request{Call: &wire.Request_Ping{Ping: &wire.Ping{Payload: []byte("x")}}}); err != nil {
			t.Fatal(err)
		}
		if err := st.Receive(f); err != nil || string(f.GetData()) != "x" {
			t.Fatalf("the next call got %v, %v", f, err)
		}
		st.Release()
	}
}
