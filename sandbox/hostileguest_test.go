package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// hostile is a backend with one sandbox, whose guest is in the hands of an attacker: it sends frames of its own.
type hostile struct {
	toy
	network NetworkOptions
	guest   *rawGuest
}

type hostileMachine struct {
	toyMachine
	network NetworkOptions
}

func (m *hostileMachine) NetworkOptions() NetworkOptions { return m.network }

func (b *hostile) Capabilities(context.Context) Capabilities {
	return Capabilities{Egress: EgressAllPorts}
}

func (b *hostile) Start(_ context.Context, spec Spec) (Machine, error) {
	ours, theirs := net.Pipe()
	b.guest = &rawGuest{closer: theirs, messages: map[uint32][]byte{}, ended: map[uint32]bool{}, credit: map[uint32]int{}}
	m := &hostileMachine{toyMachine{stream: ours, spec: spec, gone: make(chan struct{})}, b.network}
	go func() {
		welcome := func(*wire.Hello) *wire.Welcome { return &wire.Welcome{Protocol: wire.Protocol} }
		if rw, err := wire.NewLink(theirs, theirs, m.Token()).Accept(welcome); err == nil {
			b.guest.serve(rw)
		}
	}()
	return m, nil
}

// Frames of the multiplexer, see package wire.
const (
	frameOpen, frameData, frameCredit, frameEnd, frameShut = 1, 2, 3, 4, 6

	classCall, classNetwork = 0, 1
	firstWindow             = 16 << 10 // of a network connection
)

// rawGuest writes frames without regard to the host's limits. It answers every call of the host with success.
type rawGuest struct {
	closer io.Closer

	mu       sync.Mutex
	rw       io.ReadWriter
	last     uint32            // stream
	messages map[uint32][]byte // what the host sent on streams of the guest
	ended    map[uint32]bool   // streams that the host has ended
	credit   map[uint32]int    // what the host has granted beyond the first window
}

func (g *rawGuest) serve(rw io.ReadWriter) {
	g.mu.Lock()
	g.rw = rw
	g.mu.Unlock()
	for {
		var head [9]byte
		if _, err := io.ReadFull(rw, head[:]); err != nil {
			return
		}
		id, n := binary.BigEndian.Uint32(head[1:]), binary.BigEndian.Uint32(head[5:])
		switch head[0] {
		case frameData:
			b := make([]byte, n)
			if _, err := io.ReadFull(rw, b); err != nil {
				return
			}
			if id&1 == 1 {
				go g.send(frameData, id, message(&wire.Frame{Last: true}))
				continue
			}
			g.mu.Lock()
			if kept := g.messages[id]; len(kept) < 1<<10 {
				g.messages[id] = append(kept, b...)
			}
			g.mu.Unlock()
		case frameCredit:
			g.mu.Lock()
			g.credit[id] += int(n)
			g.mu.Unlock()
		case frameEnd:
			g.mu.Lock()
			g.ended[id] = true
			g.mu.Unlock()
		}
	}
}

func message(m proto.Message) []byte {
	b, err := wire.AppendFrame(nil, m)
	if err != nil {
		panic(err)
	}
	return b
}

// send writes a frame, and reports whether the host still reads.
func (g *rawGuest) send(typ byte, id uint32, data []byte) bool {
	g.mu.Lock()
	rw := g.rw
	g.mu.Unlock()
	b := binary.BigEndian.AppendUint32([]byte{typ}, id)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
	_, err := rw.Write(b)
	return err == nil
}

// open begins a stream with some bytes, and returns its number.
func (g *rawGuest) open(class uint32, data []byte) (uint32, bool) {
	g.mu.Lock()
	g.last += 2
	id, rw := g.last, g.rw
	g.mu.Unlock()
	b := binary.BigEndian.AppendUint32([]byte{frameOpen}, id)
	b = binary.BigEndian.AppendUint32(b, class)
	if _, err := rw.Write(b); err != nil {
		return id, false
	}
	return id, g.send(frameData, id, data)
}

func (g *rawGuest) count(of func(*rawGuest) int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return of(g)
}

func connect(name string, port uint32) []byte {
	return message(&wire.Request{Call: &wire.Request_Connect{Connect: &wire.Connect{Name: name, Port: port}}})
}

// hostileFixture is a sandbox with a hostile guest, and what it tries to reach.
type hostileFixture struct {
	*hostile
	sb       *Sandbox
	asked    atomic.Int64 // names that were resolved
	accepted atomic.Int64 // connections to the server that the policy allows
	port     uint32       // of that server
	hang     atomic.Bool  // look-ups never end by themselves
}

// LookupNetIP implements egress.Resolver.
func (f *hostileFixture) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	f.asked.Add(1)
	if f.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// newHostile opens a sandbox whose policy allows allowed.test, where serve serves each connection.
func newHostile(t *testing.T, limits egress.Limits, serve func(net.Conn)) *hostileFixture {
	t.Helper()
	testneed.Alone(t)
	before := runtime.NumGoroutine()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &hostileFixture{hostile: &hostile{toy: toy{name: "hostile"}}}
	f.port = uint32(netip.MustParseAddrPort(l.Addr().String()).Port())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.accepted.Add(1)
			serving.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(t.Context(), func() { _ = c.Close() })
				defer stop()
				serve(c)
			})
		}
	})
	f.network = NetworkOptions{
		Resolver:    f,
		FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Limits:      limits,
	}
	rule := v1.NetworkRule(fmt.Sprintf("allow allowed.test:%d", f.port))
	f.sb, err = Open(t.Context(), f, Spec{Network: v1.Network{Rules: []v1.NetworkRule{rule, "allow *.floor.test:*", "allow 0.0.0.0/0:*"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.sb.Close()
		_ = f.guest.closer.Close()
		_ = l.Close()
		serving.Wait()
		testneed.Await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	})
	return f
}

// heap returns the bytes of live objects in this program.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// holdsAtMost fails the test if the program holds more bytes than before.
func holdsAtMost(t *testing.T, before, limit int64) {
	t.Helper()
	held := heap() - before
	t.Logf("%d KiB are held", held>>10)
	if held > limit {
		t.Errorf("%d KiB are held, want %d at most", held>>10, limit>>10)
	}
}

// pings fails the test if the host does not make calls any more.
func (f *hostileFixture) pings(t *testing.T) {
	t.Helper()
	if err := f.sb.Ping(t.Context()); err != nil {
		t.Errorf("the host makes no calls any more: %v", err)
	}
}

func discard(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestAHostileGuestReachesOnlyWhatThePolicyAllows(t *testing.T) {
	f := newHostile(t, egress.Limits{}, discard)
	denied := 0
	var streams []uint32
	for _, name := range []string{
		"127.0.0.1", "::ffff:127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost", "a.floor.test:1", "denied.test", "evilallowed.test", "allowed.test.denied.test",
		"allowed.test\x00", "\x00", "", ".", "allowed..test", "allowed.test/", "allowed.test:1", "*.floor.test", "-.floor.test", strings.Repeat("a", 300), strings.Repeat("a.", 5000) + "floor.test",
		strings.Repeat("x", 64) + ".floor.test", "fe80::1%lo", "0.0.0.0", "10.0.0.1", "169.254.169.254", "[::1]", "::1",
	} {
		for _, port := range []uint32{f.port, f.port | 1<<16, 0, 1<<32 - 1} {
			if (name == "127.0.0.1" || name == "::ffff:127.0.0.1") && port != 0 && port < 1<<16 {
				continue // the operator has allowed it
			}
			id, ok := f.guest.open(classNetwork, connect(name, port))
			if !ok {
				t.Fatalf("%q: the host has ended the session", name)
			}
			streams = append(streams, id)
			denied++
		}
	}
	for i, m := range [][]byte{message(&wire.Request{}), message(&wire.Request{Call: &wire.Request_Exec{Exec: &wire.Exec{}}}), {0, 0, 0, 2, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff}} {
		id, ok := f.guest.open(classNetwork, m)
		if !ok {
			t.Fatalf("message %d: the host has ended the session", i)
		}
		streams = append(streams, id)
	}
	testneed.Await(t, "all are refused", func() bool {
		return f.guest.count(func(g *rawGuest) (n int) {
			for _, id := range streams {
				if g.ended[id] || len(g.messages[id]) > 0 && !bytes.Equal(g.messages[id], message(&wire.Frame{Body: &wire.Frame_Connected{Connected: &wire.Connected{}}})) {
					n++
				}
			}
			return n
		}) == len(streams)
	})
	if n := f.accepted.Load(); n > 0 {
		t.Errorf("%d connections arrived", n)
	}
	if n := f.asked.Load(); n > 0 {
		t.Errorf("%d names were resolved", n)
	}
	f.pings(t)
}

// Messages whose size is announced, but which never end, and owners that are made up, must not fill the host.
func TestWhatAHostileGuestSaysIsBounded(t *testing.T) {
	f := newHostile(t, egress.Limits{}, discard)
	before := heap()
	endless := append(binary.BigEndian.AppendUint32(nil, 8<<20), make([]byte, 1000)...)
	for i := range 800 {
		if _, ok := f.guest.open(uint32(i%2), endless); !ok {
			t.Fatal("the host has ended the session")
		}
	}
	long := strings.Repeat("x", 16<<10) // three times that fits in the first window of a call
	for i := range 3000 {
		o := &wire.Owner{Op: fmt.Sprint(i) + long[:1<<(i%15)], Command: long}
		lookup := &wire.Lookup{Name: fmt.Sprintf("n%d%s", i, long), Owner: o}
		if i%2 == 0 {
			lookup.Name = fmt.Sprintf("n%d.denied.test", i)
		}
		id, ok := f.guest.open(classCall, message(&wire.Request{Call: &wire.Request_Lookup{Lookup: lookup}}))
		if !ok {
			t.Fatal("the host has ended the session")
		}
		f.guest.send(frameEnd, id, nil)
	}
	f.pings(t)
	holdsAtMost(t, before, 12<<20) // of the latest events, most
	if n := f.asked.Load(); n > 0 {
		t.Errorf("%d names were resolved", n)
	}
}

// More connections than the limit are not dialled, and those that exist hold little more than their first windows,
// although neither side reads, or the other side has read until the windows were large.
func TestConnectionsOfAHostileGuestAreBounded(t *testing.T) {
	testneed.Slow(t, "it opens 1,800 connections")
	const limit, tries = 400, 600
	// A small buffer in each direction, goroutines and what describes a connection; windows and large buffers together.
	const each, together = firstWindow + 40<<10, 24 << 20
	for _, name := range []string{"the server never reads", "the server reads no more", "the guest never reads"} {
		t.Run(name, func(t *testing.T) {
			const readable = 256 << 10
			f := newHostile(t, egress.Limits{Connections: limit, Rate: tries}, func(c net.Conn) {
				switch name {
				case "the guest never reads":
					_, _ = io.Copy(c, endless{})
				case "the server reads no more":
					_, _ = io.CopyN(io.Discard, c, readable)
				}
				<-t.Context().Done()
			})
			before := heap()
			var ids []uint32
			for range tries {
				id, ok := f.guest.open(classNetwork, connect("allowed.test", f.port))
				if !ok {
					t.Fatal("the host has ended the session")
				}
				ids = append(ids, id)
			}
			testneed.Await(t, "connections arrive", func() bool { return f.accepted.Load() == limit })
			sent := map[uint32]int{}
			request := len(connect("allowed.test", f.port))
			for quiet := 0; name != "the guest never reads" && quiet < 10; quiet++ {
				for _, id := range ids {
					left := f.guest.count(func(g *rawGuest) int {
						if g.ended[id] {
							return 0
						}
						return firstWindow + g.credit[id] - request - sent[id]
					})
					for ; left > 0; quiet = 0 {
						n := min(left, 64<<10)
						if !f.guest.send(frameData, id, make([]byte, n)) {
							t.Fatal("the host has ended the session")
						}
						sent[id] += n
						left -= n
					}
				}
				time.Sleep(10 * time.Millisecond) // more credit may follow
			}
			f.pings(t)
			holdsAtMost(t, before, limit*each+together)
			if n := f.accepted.Load(); n != limit {
				t.Errorf("%d connections arrived, want %d", n, limit)
			}
		})
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestConnectionsThatAHostileGuestHalfCloses(t *testing.T) {
	const tries = 600
	f := newHostile(t, egress.Limits{Rate: 10 * tries}, discard)
	for i := range tries {
		id, ok := f.guest.open(classNetwork, connect("allowed.test", f.port))
		if !ok || !f.guest.send(frameShut, id, nil) || i%2 == 0 && !f.guest.send(frameEnd, id, nil) {
			t.Fatal("the host has ended the session")
		}
	}
	testneed.Await(t, "all connections end", func() bool { return f.sb.network.gateway.Connections() == 0 })
	f.pings(t)
}

// Look-ups that a guest does not wait for are bounded, although it may always begin another one: the session ends, or
// the host keeps up.
func TestLookupsThatAHostileGuestAbandons(t *testing.T) {
	f := newHostile(t, egress.Limits{}, discard)
	f.hang.Store(true)
	lookup := message(&wire.Request{Call: &wire.Request_Lookup{Lookup: &wire.Lookup{Name: "allowed.test"}}})
	most := 0
	for range 20000 {
		id, ok := f.guest.open(classCall, lookup)
		if !ok || !f.guest.send(frameEnd, id, nil) {
			break
		}
		most = max(most, runtime.NumGoroutine())
	}
	if most > 5000 {
		t.Errorf("%d goroutines at once", most)
	}
}

// A guest that opens more streams than it may violates the protocol: the session ends, and nothing of it is left.
func TestAHostileGuestWithTooManyStreams(t *testing.T) {
	f := newHostile(t, egress.Limits{}, discard)
	for i := 0; ; i++ {
		if _, ok := f.guest.open(classNetwork, []byte{0}); !ok {
			break
		}
		if i > 5000 {
			t.Fatal("the host has not ended the session")
		}
	}
}
