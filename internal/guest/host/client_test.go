package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// attach returns a client and the guest's session at the other end; serve answers its calls.
func attach(t *testing.T, handler func() Handler, serve func(*wire.Stream, *wire.Request) bool) (*Client, *wire.Session) {
	t.Helper()
	c, guest := attachTo(t, handler)
	go guest.Serve(serve)
	return c, guest
}

// attachTo is attach for a guest that does not read yet.
func attachTo(t *testing.T, handler func() Handler) (*Client, *wire.Session) {
	t.Helper()
	ours, theirs := net.Pipe()
	token := bytes.Repeat([]byte{7, 9}, wire.TokenSize/2)
	made := make(chan *wire.Session, 1)
	go func() {
		a, err := wire.NewLink(theirs, theirs, token).Accept(func(*wire.Hello) *wire.Welcome { return &wire.Welcome{Protocol: wire.Protocol} })
		if err != nil {
			t.Error(err)
		}
		made <- wire.NewSession(a, theirs, false)
	}()
	c, err := Attach(t.Context(), ours, Options{Token: token, Handler: handler})
	if err != nil {
		t.Fatal(err)
	}
	guest := <-made
	t.Cleanup(func() {
		c.Close()
		_ = guest.Close()
		guest.Wait()
	})
	return c, guest
}

func TestAGuestThatIsTooOldIsRefused(t *testing.T) {
	ours, theirs := net.Pipe()
	token := bytes.Repeat([]byte{7, 9}, wire.TokenSize/2)
	gone := make(chan error, 1)
	go func() {
		a, err := wire.NewLink(theirs, theirs, token).Accept(func(*wire.Hello) *wire.Welcome { return &wire.Welcome{Protocol: wire.OldestProtocol - 1} })
		if err != nil {
			t.Error(err)
		}
		_, err = a.Read(make([]byte, 1))
		gone <- err
	}()
	_, err := Attach(t.Context(), ours, Options{Token: token})
	if want := fmt.Sprintf("the guest speaks protocol %d", wire.OldestProtocol-1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want: %s", err, want)
	}
	if err := <-gone; err == nil { // otherwise the guest would wait for a host that has gone
		t.Error("the stream was left open")
	}
}

// call makes a call from the guest with a payload of so many MiB, and returns the code of its error.
func call(t *testing.T, guest *wire.Session, size int) string {
	t.Helper()
	st, err := guest.Open()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer st.Close()
	send := func(m proto.Message) {
		if err := st.Send(m); err != nil {
			t.Errorf("the host no longer reads: %v", err)
		}
	}
	send(&wire.Request{Call: &wire.Request_HostCall{HostCall: &wire.HostCall{Name: "f"}}})
	data := make([]byte, 128<<10)
	for range 8 * size {
		send(&wire.Frame{Body: &wire.Frame_Data{Data: data}})
	}
	send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
	for {
		f := &wire.Frame{}
		if err := st.Receive(f); err != nil {
			t.Errorf("no answer: %v", err)
			return ""
		}
		if e := f.GetError(); e != nil {
			return e.Code
		}
		if f.Last {
			return ""
		}
	}
}

func TestACallThatNobodyAnswersIsRefusedAndNotKept(t *testing.T) {
	c, guest := attach(t, func() Handler { return nil }, nil)
	if code := call(t, guest, 20); code != "host_call_undefined" {
		t.Errorf("the call got %q", code)
	}
	if n := c.held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

func TestPayloadsOfTheSandboxAreBounded(t *testing.T) {
	c, guest := attach(t, func() Handler {
		return func(context.Context, Call) ([]byte, error) { return nil, nil }
	}, nil)
	c.maxPayload = 4 << 20
	if code := call(t, guest, 5); code != "too_large" {
		t.Errorf("a call over the limit got %q", code)
	}
	c.held.Store(maxCallPayloads - 2<<20) // payloads of other calls
	if code := call(t, guest, 3); code != "too_large" {
		t.Errorf("a call over the limit of all calls got %q", code)
	}
	if code := call(t, guest, 2); code != "" {
		t.Errorf("a call within the limit of all calls got %q", code)
	}
	if n := c.held.Load(); n != maxCallPayloads-2<<20 {
		t.Errorf("%d bytes are still counted", n-(maxCallPayloads-2<<20))
	}
}

func TestHandlersAtOnceAreBounded(t *testing.T) {
	const calls = maxHandlers + 20
	var running, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	_, guest := attach(t, func() Handler {
		return func(context.Context, Call) ([]byte, error) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n == maxHandlers {
				once.Do(func() { close(full) })
			}
			<-full
			return nil, nil
		}
	}, nil)
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if code := call(t, guest, 0); code != "" {
				t.Errorf("the call got %q", code)
			}
		})
	}
	wg.Wait()
	if most.Load() > maxHandlers {
		t.Errorf("%d concurrent handlers", most.Load())
	}
}

func TestPingHeedsItsDeadlineWhenTheLinkIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, guest := attachTo(t, nil)
		for range 3 { // the first call blocks in the write, the others wait for it
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := c.Ping(ctx)
			cancel()
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Fatalf("%v after %s", err, took)
			}
		}
		go guest.Serve(func(st *wire.Stream, _ *wire.Request) bool {
			return st.Send(&wire.Frame{Last: true}) == nil
		})
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("once the guest reads again: %v", err)
		}
	})
}
