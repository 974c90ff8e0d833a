package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitLimit = 20 * time.Second

// fakeResolver answers from a table; a missing name does not exist.
type fakeResolver struct {
	mu     sync.Mutex
	table  map[string][]string // by name without the final dot
	asked  []string
	answer func(ctx context.Context, name string) ([]netip.Addr, error) // instead of table
}

func (f *fakeResolver) LookupNetIP(ctx context.Context, _, name string) ([]netip.Addr, error) {
	f.mu.Lock()
	f.asked = append(f.asked, name)
	addrs, answer := f.table[trimDot(name)], f.answer
	f.mu.Unlock()
	if answer != nil {
		return answer(ctx, name)
	}
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	return list, nil
}

func (f *fakeResolver) questions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

func trimDot(s string) string {
	if s != "" && s[len(s)-1] == '.' {
		return s[:len(s)-1]
	}
	return s
}

// guestConn is the guest's end of a connection over TCP.
type guestConn struct {
	*net.TCPConn
	once     sync.Once
	accepted chan struct{}
	refused  chan *Refusal
}

func (c *guestConn) Accept() error      { close(c.accepted); return nil }
func (c *guestConn) Refuse(r *Refusal)  { c.refused <- r }
func (c *guestConn) Close() (err error) { c.once.Do(func() { err = c.TCPConn.Close() }); return err }

// tcpPair returns both ends of a TCP connection.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a2, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b2, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a2.Close(); b2.Close() })
	return a2.(*net.TCPConn), b2.(*net.TCPConn)
}

// call is one connection of a program in the sandbox.
type call struct {
	*net.TCPConn // the program's end
	guest        *guestConn
	result       chan error
}

// wait returns what Serve returned.
func (c *call) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-c.result:
		return err
	case <-time.After(waitLimit):
		t.Fatal("Serve does not return")
		return nil
	}
}

// refusal waits for Serve and returns its refusal.
func (c *call) refusal(t testing.TB, want RefusalKind) *Refusal {
	t.Helper()
	err := c.wait(t)
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Kind != want {
		t.Fatalf("Serve returned %v (%T), want a refusal of kind %s", err, err, want)
	}
	return r
}

// all returns everything that the program reads up to the end.
func (c *call) all(t testing.TB) string {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(waitLimit))
	b, err := io.ReadAll(c)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Fatal("the program waits for ever")
	}
	return string(b)
}

// fixture is a gateway whose destinations are on addresses of the loopback network, and what it observed.
type fixture struct {
	*Gateway
	t        testing.TB
	resolver *fakeResolver

	mu     sync.Mutex
	events []Event
	change *sync.Cond
}

// loopbackPrefix is opened in the floor for tests, since servers of tests are there.
var loopbackPrefix = netip.MustParsePrefix("127.0.0.0/8")

func newFixture(t testing.TB, n v1.Network, edit func(*GatewayOptions)) *fixture {
	t.Helper()
	f := &fixture{t: t, resolver: &fakeResolver{table: map[string][]string{}}}
	f.change = sync.NewCond(&f.mu)
	o := GatewayOptions{
		Policy:     compile(t, n),
		Generation: 1,
		Resolver:   f.resolver,
		Floor:      NewFloor(FloorOptions{Except: []netip.Prefix{loopbackPrefix}}),
		Observe: func(e Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
			f.change.Broadcast()
		},
	}
	if edit != nil {
		edit(&o)
	}
	f.Gateway = NewGateway(o)
	t.Cleanup(f.Close)
	return f
}

func compile(t testing.TB, n v1.Network) *Policy {
	t.Helper()
	p, err := Compile(n, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// open starts a connection from a program in the sandbox.
func (f *fixture) open(name string, port uint16) *call {
	return f.request(Request{Name: name, Port: port})
}

func (f *fixture) request(r Request) *call {
	f.t.Helper()
	program, guest := tcpPair(f.t)
	c := &call{
		TCPConn: program,
		guest:   &guestConn{TCPConn: guest, accepted: make(chan struct{}), refused: make(chan *Refusal, 1)},
		result:  make(chan error, 1),
	}
	ctx := f.t.Context()
	go func() { c.result <- f.Serve(ctx, r, c.guest) }()
	return c
}

// waitEvent waits for an event that matches.
func (f *fixture) waitEvent(match func(Event) bool) Event {
	f.t.Helper()
	timer := time.AfterFunc(waitLimit, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.change.Broadcast()
	})
	defer timer.Stop()
	deadline := time.Now().Add(waitLimit)
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		for _, e := range f.events {
			if match(e) {
				return e
			}
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("the event did not happen; events: %+v", f.events)
		}
		f.change.Wait()
	}
}

// serve runs handle for each connection to a new listener at host, and returns its port.
func serve(t testing.TB, address string, handle func(*net.TCPConn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() { l.Close(); group.Wait() })
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(t.Context(), func() { conn.Close() })
				defer stop()
				handle(conn.(*net.TCPConn))
			})
		}
	})
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// echo sends back what it receives.
func echo(c *net.TCPConn) { io.Copy(c, c); c.CloseWrite() }

func allow(rules ...string) v1.Network {
	var n v1.Network
	for _, r := range rules {
		n.Rules = append(n.Rules, v1.NetworkRule(r))
	}
	return n
}

func portText(port uint16) string { return strconv.Itoa(int(port)) }
