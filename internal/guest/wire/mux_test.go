package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// sessions returns both ends of a link; handle serves the calls to the guest.
func sessions(t testing.TB, handle func(*Stream, *Request) bool) (host, guest *Session) {
	t.Helper()
	return sessionsWith(t, nil, handle)
}

// sessionsWith returns both ends of a link; onHost serves the calls to the host, onGuest those to the guest.
func sessionsWith(t testing.TB, onHost, onGuest func(*Stream, *Request) bool) (host, guest *Session) {
	t.Helper()
	a, b := net.Pipe()
	host, guest = NewSession(a, a, true), NewSession(b, b, false)
	var wg sync.WaitGroup
	wg.Go(func() { host.Serve(onHost) })
	wg.Go(func() { guest.Serve(onGuest) })
	t.Cleanup(func() {
		host.Close()
		guest.Close()
		wg.Wait()
		guest.Wait()
		host.Wait()
	})
	return host, guest
}

func ping(t testing.TB, s *Session, payload string) {
	t.Helper()
	st, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&Request{Call: &Request_Exec{Exec: &Exec{Shell: []byte(payload)}}}); err != nil {
		t.Fatal(err)
	}
	f := &Frame{}
	if err := st.Receive(f); err != nil || string(f.GetData()) != payload {
		t.Fatalf("%v, %v", f, err)
	}
	st.Release()
}

// within fails the test if f takes too long.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("%s: still waiting", what)
	}
}

func echo(st *Stream, req *Request) bool {
	return st.Send(&Frame{Body: &Frame_Data{Data: req.GetExec().GetShell()}, Last: true}) == nil
}

func TestAStreamThatNobodyReadsBlocksNoOther(t *testing.T) {
	stopped := make(chan error, 1)
	host, _ := sessions(t, func(st *Stream, req *Request) bool {
		if req.GetInfo() == nil {
			return echo(st, req)
		}
		for {
			if err := st.Send(&Frame{Body: &Frame_Data{Data: make([]byte, Chunk)}}); err != nil {
				stopped <- err
				return false
			}
		}
	})
	flooded, err := host.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := flooded.Send(&Request{Call: &Request_Info{Info: &Info{}}}); err != nil {
		t.Fatal(err)
	}
	within(t, "calls beside the flood", func() {
		for range 100 {
			ping(t, host, "x")
		}
	})
	host.mux.mu.Lock()
	kept := 0
	for _, c := range flooded.conn.unread {
		kept += len(c.data)
	}
	host.mux.mu.Unlock()
	if kept > muxWindow {
		t.Errorf("%d bytes are stored for a stream that is not read", kept)
	}
	flooded.Close()
	within(t, "the flood", func() {
		if err := <-stopped; !IsClosed(err) {
			t.Errorf("the blocked send ended with %v", err)
		}
	})
}

// Messages larger than a frame, or than the credit in total, are sent one at a time.
func TestSeveralMessagesAtOnce(t *testing.T) {
	for name, sizes := range map[string][]int{
		"small ones":              {1, 20, 300},
		"a flood's":               {Chunk, Chunk, Chunk, Chunk - 5},
		"one larger than a frame": {10, muxFrame + 1, 10},
		"more than the window":    {Chunk, muxWindow, Chunk, 3, Chunk},
	} {
		host, _ := sessions(t, func(st *Stream, _ *Request) bool {
			var ms []proto.Message
			for i, n := range sizes {
				ms = append(ms, &Frame{Body: &Frame_Data{Data: bytes.Repeat([]byte{byte(i)}, n)}, Last: i == len(sizes)-1})
			}
			return st.Send(ms...) == nil
		})
		for range 20 { // more than its credit: the other side must renew it
			st, err := host.Open()
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Send(&Request{Call: &Request_Info{Info: &Info{}}}); err != nil {
				t.Fatal(err)
			}
			within(t, name, func() {
				for i, n := range sizes {
					f := &Frame{}
					if err := st.Receive(f); err != nil || !bytes.Equal(f.GetData(), bytes.Repeat([]byte{byte(i)}, n)) || f.Last != (i == len(sizes)-1) {
						t.Errorf("%s: message %d: %d bytes, last %t, %v", name, i, len(f.GetData()), f.Last, err)
					}
				}
			})
			st.Release()
		}
	}
}

func TestManyStreamsCarryTheirOwnBytes(t *testing.T) {
	host, _ := sessions(t, func(st *Stream, req *Request) bool { // echoes what it receives
		for {
			f := &Frame{}
			if st.Receive(f) != nil || st.Send(f) != nil {
				return false
			}
			if f.Last {
				return true
			}
		}
	})
	within(t, "echoes", func() {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				random := rand.NewChaCha8([32]byte{byte(i)})
				r := rand.New(random)
				for range 2 {
					st, err := host.Open()
					if err != nil {
						t.Error(err)
						return
					}
					_ = st.Send(&Request{})
					var sent [][]byte
					for range 30 {
						p := make([]byte, 1+r.IntN(3*Chunk))
						_, _ = random.Read(p[:min(len(p), 1<<10)]) // never fails
						sent = append(sent, p)
					}
					wg.Go(func() {
						for k, p := range sent {
							if err := st.Send(&Frame{Body: &Frame_Data{Data: p}, Last: k == len(sent)-1}); err != nil {
								t.Error(err)
							}
						}
					})
					for k, p := range sent {
						f := &Frame{}
						if err := st.Receive(f); err != nil || !bytes.Equal(f.GetData(), p) {
							t.Errorf("stream %d, message %d: %v", i, k, err)
							return
						}
					}
					st.Release()
				}
			})
		}
		wg.Wait()
	})
}

func TestTheEndOfAStreamComesAfterItsBytes(t *testing.T) {
	host, guest := sessions(t, func(st *Stream, req *Request) bool {
		for range 5 {
			_ = st.Send(&Frame{Body: &Frame_Data{Data: make([]byte, 1000)}})
		}
		return false
	})
	st, err := host.Open()
	if err != nil {
		t.Fatal(err)
	}
	_ = st.Send(&Request{})
	for range 5 {
		if err := st.Receive(&Frame{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Receive(&Frame{}); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last frame: %v", err)
	}
	if err := st.Send(&Request{}); !IsClosed(err) {
		t.Fatalf("send on an ended stream: %v", err)
	}
	st.Close()
	known := func() int {
		guest.mux.mu.Lock()
		defer guest.mux.mu.Unlock()
		return len(guest.mux.conns) + guest.mux.theirs[classCall]
	}
	within(t, "streams to be forgotten", func() {
		for known() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
}

func TestTheEndOfASessionWakesEverybody(t *testing.T) {
	for _, name := range []string{"closed by the host", "the link breaks"} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			host, guest := NewSession(a, a, true), NewSession(b, b, false)
			go host.Serve(nil)
			go guest.Serve(func(st *Stream, _ *Request) bool {
				_ = st.Receive(&Frame{}) // blocks until the session ends
				return true
			})
			errs := make(chan error, 2)
			for range 2 {
				st, err := host.Open()
				if err != nil {
					t.Fatal(err)
				}
				_ = st.Send(&Request{})
				go func() { errs <- st.Receive(&Frame{}) }()
			}
			if name == "the link breaks" {
				b.Close()
			} else {
				host.Close()
			}
			within(t, name, func() {
				for range 2 {
					if err := <-errs; !IsClosed(err) {
						t.Errorf("a waiting call got %v", err)
					}
				}
				<-host.Done()
				<-guest.Done()
				guest.Wait()
			})
			if _, err := host.Open(); !IsClosed(err) {
				t.Errorf("a call afterwards got %v", err)
			}
		})
	}
}

func frame(typ byte, id uint32, n int, data ...byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ}, id)
	return append(binary.BigEndian.AppendUint32(b, uint32(n)), data...)
}

func TestWhatASessionDoesNotBear(t *testing.T) {
	over := frame(muxOpen, 2, 0)
	for range muxWindow/muxFrame + 1 {
		over = append(over, frame(muxData, 2, muxFrame, make([]byte, muxFrame)...)...)
	}
	var crowd []byte
	for i := range uint32(muxStreams + 1) {
		crowd = append(crowd, frame(muxOpen, 2+2*i, 0)...)
	}
	for name, in := range map[string][]byte{
		"an unknown type":           append(frame(muxOpen, 2, 0), frame(99, 2, 0)...),
		"a stream of our own":       frame(muxOpen, 3, 0),
		"a number again":            append(frame(muxOpen, 2, 0), frame(muxOpen, 2, 0)...),
		"a frame too large":         append(frame(muxOpen, 2, 0), frame(muxData, 2, muxFrame+1)...),
		"more than the window":      over,
		"an unknown type of nobody": frame(99, 0, 0),
		"credit beyond the window":  append(frame(muxOpen, 2, 0), frame(muxCredit, 2, muxWindow)...),
		"more streams than allowed": crowd,
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSession(struct {
				io.Reader
				io.Writer
			}{io.MultiReader(bytes.NewReader(in), blocked{}), io.Discard}, io.NopCloser(nil), true)
			go func() {
				s.mux.read() // without a handler
			}()
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the session has not ended")
			}
		})
	}
}

func TestMoreCallsThanStreamsWaitTheirTurn(t *testing.T) {
	const calls = muxStreams + 76
	var mu sync.Mutex
	waiting := 0
	all := make(chan struct{})
	host, _ := sessions(t, func(st *Stream, req *Request) bool {
		mu.Lock()
		if waiting++; waiting == muxStreams {
			close(all)
		}
		mu.Unlock()
		<-all // all streams are held until the limit is reached
		return echo(st, req)
	})
	within(t, "calls", func() {
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() { ping(t, host, "x") })
		}
		wg.Wait()
	})
	host.mux.mu.Lock()
	defer host.mux.mu.Unlock()
	if host.mux.ours[classCall] != len(host.mux.idle) || len(host.mux.conns) != len(host.mux.idle) {
		t.Errorf("%d streams are counted, %d known and %d kept", host.mux.ours[classCall], len(host.mux.conns), len(host.mux.idle))
	}
}

func TestWaitingForAStreamEndsWithTheContext(t *testing.T) {
	host, _ := sessions(t, echo)
	var open []*Stream
	for range muxStreams {
		st, err := host.Open()
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := host.OpenContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a stream over the limit: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := host.Open()
		got <- err
	}()
	open[0].Close()
	within(t, "the place of another", func() {
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

func TestABadFrameEndsTheOtherSideToo(t *testing.T) {
	for _, bad := range []string{"host", "guest"} {
		t.Run("from the "+bad, func(t *testing.T) {
			h, g := duplex(t) // stays open after Close, as the link of a sandbox
			host, guest := NewSession(h, io.NopCloser(nil), true), NewSession(g, io.NopCloser(nil), false)
			go host.Serve(nil)
			go guest.Serve(func(st *Stream, _ *Request) bool { return st.Receive(&Frame{}) == nil })
			st, err := host.Open()
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Send(&Request{}); err != nil {
				t.Fatal(err)
			}
			forger := host
			if bad == "guest" {
				forger = guest
			}
			if err := forger.mux.send(99, 7, 0); err != nil {
				t.Fatal(err)
			}
			within(t, "the end", func() {
				if err := st.Receive(&Frame{}); err == nil {
					t.Error("the call has not ended")
				}
				<-host.Done()
				<-guest.Done()
				guest.Wait()
			})
			if _, err := forger.Open(); !IsClosed(err) || !errors.Is(err, errMuxBye) {
				t.Errorf("a call after a protocol violation got %v", err)
			}
		})
	}
}

func TestAWriteIntoAFullLinkEndsWithItsStream(t *testing.T) {
	ours, theirs := net.Pipe() // not read yet
	host := NewSession(ours, ours, true)
	guest := NewSession(theirs, theirs, false)
	t.Cleanup(func() {
		host.Close()
		guest.Close()
		guest.Wait()
	})
	go host.Serve(nil)
	first, _ := host.Open()
	second, _ := host.Open()
	errs := make(chan error, 2)
	for _, st := range []*Stream{first, second} {
		go func() { errs <- st.Send(&Request{Call: &Request_Exec{Exec: &Exec{Shell: []byte("x")}}}) }()
	}
	head := make([]byte, 3)
	if _, err := io.ReadFull(theirs, head); err != nil { // one of them has written a part of its frame
		t.Fatal(err)
	}
	go first.Close()
	go second.Close()
	within(t, "writes", func() {
		for range 2 {
			if err := <-errs; !IsClosed(err) {
				t.Errorf("the write returned %v", err)
			}
		}
	})
	// The incomplete frame is completed, and the session is still usable.
	guest.mux.r.Reset(io.MultiReader(bytes.NewReader(head), theirs))
	go guest.Serve(echo)
	within(t, "a call", func() { ping(t, host, "y") })
}

type blocked struct{}

func (blocked) Read([]byte) (int, error) { select {} }

func FuzzMux(f *testing.F) {
	hello, _ := AppendFrame(nil, &Request{Call: &Request_Exec{Exec: &Exec{Shell: []byte("x")}}})
	f.Add(append(frame(muxOpen, 1, 0), frame(muxData, 1, len(hello), hello...)...))
	f.Add(append(frame(muxOpen, 1, 0), append(frame(muxData, 1, 2, 0, 0), frame(muxEnd, 1, 0)...)...))
	f.Add(append(frame(muxOpen, 1, 0), frame(muxCredit, 1, 1<<30)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := NewSession(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(in), io.Discard}, io.NopCloser(nil), false)
		s.Serve(echo)
		s.Wait()
	})
}

func BenchmarkPing(b *testing.B) {
	host, _ := sessions(b, echo)
	for b.Loop() {
		ping(b, host, "x")
	}
}
