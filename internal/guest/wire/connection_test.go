package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// connect opens a connection from the guest to the host; serve is the host's end.
func connect(t *testing.T, serve func(Connection)) (*Session, Connection) {
	t.Helper()
	host, guest := sessionsWith(t, func(st *Stream, _ *Request) bool {
		serve(st.Connection())
		return false
	}, echo)
	_ = host
	return guest, dial(t, guest)
}

func dial(t *testing.T, guest *Session) Connection {
	t.Helper()
	st, err := guest.OpenConnection()
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&Request{Call: &Request_Info{Info: &Info{}}}); err != nil {
		t.Fatal(err)
	}
	return st.Connection()
}

func TestAConnectionEndsInEachDirectionByItself(t *testing.T) {
	_, c := connect(t, func(c Connection) {
		all, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(bytes.Repeat([]byte("."), 3*muxNetWindow))
		_, _ = c.Write(all)
	})
	if _, err := c.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("more")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write after CloseWrite: %v", err)
	}
	within(t, "read the answer", func() {
		got, err := io.ReadAll(c)
		if err != nil || !bytes.HasSuffix(got, []byte("...request")) || len(got) != 3*muxNetWindow+7 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	_ = c.Close()
}

func TestACutConnectionIsNoEnd(t *testing.T) {
	_, c := connect(t, func(c Connection) {
		_, _ = c.Write([]byte("half of it"))
		c.Reset()
	})
	within(t, "read", func() {
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v", err)
		}
	})
}

func TestConnectionsLeaveRoomForCalls(t *testing.T) {
	release := make(chan struct{})
	var held sync.WaitGroup
	host, guest := sessionsWith(t, func(st *Stream, _ *Request) bool {
		held.Add(1)
		defer held.Done()
		<-release
		return false
	}, echo)
	defer held.Wait()
	defer close(release)
	for range muxNetStreams {
		_ = dial(t, guest)
	}
	if _, err := guest.OpenConnection(); !errors.Is(err, ErrTooManyConnections) {
		t.Errorf("%v", err)
	}
	within(t, "a call", func() { ping(t, host, "still there") })
}

func TestAConnectionThatNobodyReadsHoldsItsWindow(t *testing.T) {
	_, c := connect(t, func(c Connection) {
		n := 0
		for {
			k, err := c.Write(make([]byte, muxNetFrame))
			if n += k; err != nil {
				break
			}
		}
		if n != muxNetFirst {
			t.Errorf("%d bytes were accepted, want %d", n, muxNetFirst)
		}
	})
	m := c.st.conn.m
	within(t, "fill the window", func() {
		for {
			m.mu.Lock()
			n := c.st.conn.window
			m.mu.Unlock()
			if n == 0 {
				return
			}
			runtime.Gosched()
		}
	})
	_ = c.Close()
}

// Streams that were read, and then are not, hold no more than the budget beside their first windows. A stream that is
// read has a large window again once the others have ended.
func TestConnectionsShareABudget(t *testing.T) {
	const streams = 500
	host, guest := sessionsWith(t, func(st *Stream, _ *Request) bool {
		c := st.Connection()
		if _, err := io.CopyN(io.Discard, c, muxNetFirst); err != nil {
			t.Error(err)
		}
		<-st.conn.m.done // reads no more
		return false
	}, echo)
	var writers sync.WaitGroup
	for range streams {
		c := dial(t, guest)
		writers.Go(func() {
			for {
				if _, err := c.Write(make([]byte, muxNetFrame)); err != nil {
					return
				}
			}
		})
	}
	held := func(m *mux) (n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, c := range m.conns {
			for _, u := range c.unread {
				n += len(u.data)
			}
		}
		return n
	}
	blocked := func() bool {
		guest.mux.mu.Lock()
		defer guest.mux.mu.Unlock()
		for _, c := range guest.mux.conns {
			if c.id == 0 || c.credit > 0 {
				return false
			}
		}
		return len(guest.mux.conns) == streams
	}
	const most = streams*muxNetFirst + muxNetBudget
	within(t, "use up the windows", func() {
		for last, quiet := -1, 0; quiet < 50; quiet++ {
			n := held(host.mux)
			if n > most {
				t.Errorf("%d bytes are held, want %d at most", n, most)
				return
			}
			if n != last || !blocked() {
				last, quiet = n, 0
			}
			time.Sleep(time.Millisecond)
		}
	})
	if n := held(host.mux); n < streams*muxNetFirst {
		t.Errorf("%d bytes are held: some streams did not get their first window", n)
	}
	within(t, "a call", func() { ping(t, host, "beside them") })
	_ = guest.Close()
	writers.Wait()
}

// The budget of streams that have ended is free for others.
func TestTheBudgetIsReturned(t *testing.T) {
	host, guest := sessionsWith(t, func(st *Stream, _ *Request) bool {
		_, _ = io.Copy(io.Discard, st.Connection())
		return false
	}, echo)
	for range 100 {
		c := dial(t, guest)
		if _, err := c.Write(make([]byte, muxNetWindow)); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	testneed.Await(t, "the budget is returned", func() bool {
		host.mux.mu.Lock()
		defer host.mux.mu.Unlock()
		return host.mux.lent[connection] == 0
	})
}

// A side that sends its bytes in tiny frames does not make the other hold many times as much.
func TestTinyFramesAreJoined(t *testing.T) {
	in := frame(muxOpen, 2, int(classNetwork))
	for range muxNetFirst {
		in = append(in, frame(muxData, 2, 1, 7)...)
	}
	more, end := io.Pipe()
	s := NewSession(struct {
		io.Reader
		io.Writer
	}{io.MultiReader(bytes.NewReader(in), more), io.Discard}, more, true)
	defer end.Close()
	go s.mux.read() // without a handler
	var chunks, held int
	testneed.Await(t, "the frames are received", func() bool {
		s.mux.mu.Lock()
		defer s.mux.mu.Unlock()
		chunks, held = 0, 0
		if c := s.mux.conns[2]; c != nil {
			for _, u := range c.unread {
				chunks++
				held += len(u.data)
			}
		}
		return held >= muxNetFirst
	})
	if most := muxManyChunks + 2*muxNetFirst/muxJoined; chunks > most {
		t.Errorf("%d chunks, want %d at most", chunks, most)
	}
	_ = s.Close()
}

// A call does not wait for all the connections that want to send, nor they for all the calls.
func TestCallsAndConnectionsTakeTurns(t *testing.T) {
	ours, theirs := net.Pipe()
	s := NewSession(ours, ours, true)
	m := s.mux
	const each = 20
	var writers sync.WaitGroup
	queued := func(of class, n int) {
		within(t, "writers wait", func() {
			for {
				m.mu.Lock()
				all := m.waiting[of]
				m.mu.Unlock()
				if all == n {
					return
				}
				runtime.Gosched()
			}
		})
	}
	write := func(open func() (*Stream, error)) {
		for range each {
			st, err := open()
			if err != nil {
				t.Fatal(err)
			}
			writers.Go(func() { _, _ = st.conn.Write(make([]byte, 1000)) })
		}
	}
	write(s.OpenConnection)
	queued(classNetwork, each-1) // one has the turn
	write(s.Open)
	queued(classCall, each)
	var order []uint32
	for range 2 * each {
		b := make([]byte, 2*muxHeader+1000)
		if _, err := io.ReadFull(theirs, b); err != nil {
			t.Fatal(err)
		}
		order = append(order, binary.BigEndian.Uint32(b[5:])) // the class in the frame that opens the stream
	}
	writers.Wait()
	for i, of := range order {
		if want := uint32((i + 1) % 2); of != want {
			t.Fatalf("the turns were %v", order)
		}
	}
	_ = s.Close()
	_ = theirs.Close()
	s.Wait()
}

// A host that is killed closes the link between two frames. A download must not look complete then.
func TestAConnectionWhoseLinkEndsIsNotAtItsEnd(t *testing.T) {
	guestEnd, hostEnd := net.Pipe()
	guest, host := NewSession(guestEnd, guestEnd, true), NewSession(hostEnd, hostEnd, false)
	go guest.Serve(func(*Stream, *Request) bool { return false })
	received := make(chan struct{})
	go host.Serve(func(st *Stream, _ *Request) bool {
		_, _ = st.Connection().Write([]byte("the first part"))
		<-received
		_ = hostEnd.Close()
		return false
	})
	c := dial(t, guest)
	var got bytes.Buffer
	_, err := c.WriteTo(writerFunc(func(p []byte) (int, error) {
		defer close(received)
		return got.Write(p)
	}))
	if err == nil || errors.Is(err, io.EOF) || got.String() != "the first part" {
		t.Errorf("%q, %v", &got, err)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
