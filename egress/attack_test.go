package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestADenialInWords(t *testing.T) {
	f, _ := webFixture(t, nil)
	c := f.open("denied.acme.org", 443)
	if err := handshake(t, c, &tls.Config{ServerName: "denied.acme.org"}); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("TLS: %v", err)
	}
	c.Close()
	c.refusal(t, RefusedByPolicy)

	for _, port := range []uint16{80, 443} { // also plain HTTP to 443
		c = f.open("other.org", port)
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: other.org\r\nX: %s\r\n\r\n", strings.Repeat("x", 5000))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(b), "--allow other.org") {
			t.Errorf("HTTP: %d %s", resp.StatusCode, b)
		}
		c.Close()
		c.refusal(t, RefusedByPolicy)
	}

	c = f.open("other.org", 80)
	io.WriteString(c, "SSH-2.0-x\r\n")
	if got := c.all(t); got != "" {
		t.Errorf("another protocol: %q", got)
	}
	c.refusal(t, RefusedByPolicy)
	if asked := f.resolver.questions(); len(asked) > 0 {
		t.Errorf("denied names were resolved: %q", asked)
	}
}

func TestADenialAtOnce(t *testing.T) {
	f, _ := webFixture(t, nil)
	for _, r := range []Request{
		{Name: "other.org", Port: 22},
		{Name: "203.0.113.1", Port: 443},
		{Name: "169.254.169.254", Port: 80},
		{Name: "other.org", Port: 443, Explicit: true},
		{Name: "2852039166", Port: 80},
		{Name: "0xa9fea9fe", Port: 80},
		{Name: "0251.0376.0251.0376", Port: 80},
		{Name: "::ffff:169.254.169.254", Port: 80},
		{Name: "example.com\x00.evil.org", Port: 443},
		{Name: "example.com", Port: 0},
		{Name: "", Port: 443},
		{Name: strings.Repeat("a.", 5000), Port: 443},
		{Name: "[::1]", Port: 80},
		{Name: "127.0.0.1:22", Port: 80},
		{Name: "fe80::1%lo", Port: 80},
	} {
		c := f.request(r)
		kind := RefusedByPolicy
		if _, err := netip.ParseAddr(r.Name); err == nil && !strings.Contains(r.Name, "%") {
			kind = RefusedByFloor // no change of the policy would allow these addresses
		}
		select {
		case refusal := <-c.guest.refused:
			if refusal.Kind != kind || refusal.Error() == "" {
				t.Errorf("%+v: %v", r, refusal)
			}
		case <-c.guest.accepted:
			t.Errorf("%+v is accepted", r)
		case <-time.After(waitLimit):
			t.Fatalf("%+v: no answer", r)
		}
		c.refusal(t, kind)
		if d := f.Decide(r.Name, r.Port); kind == RefusedByFloor && d.Rule != "floor" {
			t.Errorf("%+v: %+v", r, d)
		}
	}
	f.waitEvent(func(e Event) bool {
		return e.Kind == EventClosed && e.Request.Name == "example.com?.evil.org" && e.Err != nil
	})
}

func TestAskIsRefusedUntilItIsAllowed(t *testing.T) {
	f := newFixture(t, allow("ask a.acme.org:*"), nil)
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo)
	c := f.open("a.acme.org", port)
	if r := c.refusal(t, RefusedByPolicy); r.Decision.Action != v1.NetworkAsk || !strings.Contains(r.Error(), "approval requested") {
		t.Errorf("%+v", r)
	}
	if r := f.Lookup(t.Context(), "a.acme.org"); r.Status != LookupDenied || r.Decision.Action != v1.NetworkAsk {
		t.Errorf("%+v", r)
	}
	f.SetPolicy(compile(t, allow("allow a.acme.org:*")), 2)
	c = f.open("a.acme.org", port)
	c.CloseWrite()
	c.all(t)
	if err := c.wait(t); err != nil {
		t.Error(err)
	}
}

func TestRebinding(t *testing.T) {
	f := newFixture(t, v1.Network{Preset: v1.NetworkPublic, Rules: []v1.NetworkRule{"deny 93.184.0.0/16:*"}}, func(o *GatewayOptions) { o.Floor = nil })
	var dialled []netip.AddrPort
	f.connect = func(_ context.Context, addrs []netip.AddrPort) (upstream, netip.AddrPort, error) {
		dialled = append(dialled, addrs...)
		return nil, addrs[0], errors.New("not in this test")
	}
	for i, c := range []struct {
		addrs []string
		dial  []string // which of them
		want  RefusalKind
	}{
		{[]string{"127.0.0.1"}, nil, RefusedByFloor},
		{[]string{"169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"}, nil, RefusedByFloor},
		{[]string{"93.184.216.34"}, nil, RefusedByPolicy},
		{[]string{"127.0.0.1", "1.1.1.1", "93.184.216.34", "::ffff:1.0.0.1"}, []string{"1.1.1.1:9", "1.0.0.1:9"}, RefusedUnreached},
	} {
		name := fmt.Sprintf("n%d.acme.org", i)
		f.resolver.table[name] = c.addrs
		dialled = nil
		f.open(name, 9).refusal(t, c.want)
		var got []string
		for _, a := range dialled {
			got = append(got, a.String())
		}
		if !slices.Equal(got, c.dial) {
			t.Errorf("%v: dialled %v, want %v", c.addrs, got, c.dial)
		}
	}

	// The answer changes between the look-up and each connection.
	var questions atomic.Int64
	f.resolver.answer = func(context.Context, string) ([]netip.Addr, error) {
		if questions.Add(1) == 1 {
			return []netip.Addr{netip.MustParseAddr("1.1.1.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	if r := f.Lookup(t.Context(), "rebind.acme.org"); r.Status != LookupExists {
		t.Errorf("%+v", r)
	}
	f.names.expire()
	dialled = nil
	f.open("rebind.acme.org", 9).refusal(t, RefusedByFloor)
	if len(dialled) > 0 {
		t.Errorf("dialled %v", dialled)
	}
}

// expire makes all answers old.
func (n *names) expire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.cache {
		<-l.done
		l.expires = time.Time{}
	}
}

func TestLookup(t *testing.T) {
	f := newFixture(t, allow("allow *.acme.org", "allow db:5432", "deny x.other.org"), nil)
	f.resolver.table["a.acme.org"] = []string{"1.1.1.1"}
	f.resolver.table["db"] = []string{"1.1.1.1"}
	for name, want := range map[string]LookupStatus{
		"A.acme.org.": LookupExists, "b.acme.org": LookupNotFound, "db": LookupExists, "secret-data.evil.org": LookupDenied, "x.other.org": LookupDenied,
		"a\x00.acme.org": LookupDenied, "1.1.1.1": LookupDenied,
	} {
		if r := f.Lookup(t.Context(), name); r.Status != want || r.Decision.Reason == "" || (r.Failure != "") != (want == LookupNotFound) {
			t.Errorf("%q: %+v, want %s", name, r, want)
		}
	}
	f.Lookup(t.Context(), "a.acme.org") // in the cache
	asked := f.resolver.questions()
	slices.Sort(asked)
	if want := []string{"a.acme.org.", "b.acme.org.", "db"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	e := f.waitEvent(func(e Event) bool { return e.Kind == EventLookup && e.Request.Name == "secret-data.evil.org" })
	if e.Lookup != LookupDenied {
		t.Errorf("%+v", e)
	}
}

func TestAResolverThatHangs(t *testing.T) {
	f := newFixture(t, allow("allow *.acme.org:9"), nil)
	hanging := make(chan struct{}, 1000)
	f.resolver.answer = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		hanging <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan LookupStatus, 10)
	for range 10 { // one question for all of them
		go func() { results <- f.Lookup(ctx, "a.acme.org").Status }()
	}
	<-hanging
	cancel()
	for range 10 {
		if s := <-results; s != LookupFailed {
			t.Errorf("status %s", s)
		}
	}
	if n := len(f.resolver.questions()); n != 1 {
		t.Errorf("%d questions, want 1", n)
	}
	for i := range maxLookups + 5 {
		f.Lookup(ctx, fmt.Sprintf("n%d.acme.org", i))
	}
	if r := f.Lookup(t.Context(), "one-more.acme.org"); r.Status != LookupFailed {
		t.Errorf("with too many look-ups: %+v", r)
	}
	c := f.open("a.acme.org", 9)
	f.waitEvent(func(e Event) bool { return e.Kind == EventDecided })
	f.Close()
	c.refusal(t, RefusedClosing)
}

func TestTheCacheOfNamesIsBounded(t *testing.T) {
	f := newFixture(t, allow("allow *.acme.org"), nil)
	for i := range maxNames + 50 {
		f.Lookup(t.Context(), fmt.Sprintf("n%d.acme.org", i))
	}
	f.names.mu.Lock()
	defer f.names.mu.Unlock()
	if n := len(f.names.cache); n > maxNames {
		t.Errorf("%d names", n)
	}
}

func TestUnreachableDestinations(t *testing.T) {
	f, _ := webFixture(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	f.redirect(map[uint16]uint16{80: port, 443: port})
	c := f.open("example.com", 80)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if got := c.all(t); !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, "refused") {
		t.Errorf("%q", got)
	}
	c.Close()
	c.refusal(t, RefusedUnreached)
	f.open("example.com", 443).refusal(t, RefusedUnreached)
	delete(f.resolver.table, "example.com")
	f.names.expire()
	f.open("example.com", 443).refusal(t, RefusedNotFound)
}

func TestTheNextAddressIsTried(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), nil)
	f.resolver.table["a.acme.org"] = []string{"127.0.0.2", "127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo) // not on 127.0.0.2
	c := f.open("a.acme.org", port)
	c.CloseWrite()
	c.all(t)
	if err := c.wait(t); err != nil {
		t.Error(err)
	}
}

func TestSlowFirstBytes(t *testing.T) {
	for _, port := range []uint16{80, 443} {
		f, w := webFixture(t, func(o *GatewayOptions) { o.FirstBytes = 30 * time.Millisecond })
		c := f.open("example.com", port)
		io.WriteString(c, map[uint16]string{80: "GET / HTTP/1.1\r\n", 443: "\x16\x03\x01\x02\x00\x01"}[port])
		c.all(t)
		c.refusal(t, RefusedTimeout)
		if w.requests.Load() > 0 {
			t.Error("a request arrived")
		}
	}
}

func TestAnUpstreamThatStalls(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), func(o *GatewayOptions) { o.Idle = 50 * time.Millisecond })
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	end := make(chan struct{})
	port := serve(t, "127.0.0.1:0", func(*net.TCPConn) { <-end }) // neither reads nor writes
	defer close(end)
	c := f.open("a.acme.org", port)
	c.all(t)
	c.refusal(t, RefusedTimeout)

	c = f.open("a.acme.org", port) // the client sends more than all buffers hold
	go io.Copy(c, neverEnding{})
	c.refusal(t, RefusedTimeout)
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) { return len(b), nil }

func TestAClientThatDoesNotRead(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), func(o *GatewayOptions) { o.Idle = 50 * time.Millisecond })
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", func(c *net.TCPConn) { io.Copy(c, neverEnding{}) })
	c := f.open("a.acme.org", port)
	c.refusal(t, RefusedTimeout)
}

func TestANewPolicyClosesWhatItDenies(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*", "allow b.acme.org:*", "allow c.acme.org:*"), nil)
	for _, n := range []string{"a.acme.org", "b.acme.org"} {
		f.resolver.table[n] = []string{"127.0.0.1"}
	}
	f.resolver.table["c.acme.org"] = []string{"127.0.0.3"}
	port := serve(t, "0.0.0.0:0", echo)
	a, b, c := f.open("a.acme.org", port), f.open("b.acme.org", port), f.open("c.acme.org", port)
	for _, n := range []string{"a", "b", "c"} {
		f.waitEvent(func(e Event) bool { return e.Kind == EventConnected && e.Request.Name == n+".acme.org" })
	}
	next := compile(t, allow("deny 127.0.0.3:*", "allow a.acme.org:*", "allow c.acme.org:*"))
	if !f.SetPolicy(next, 5) {
		t.Error("a later generation is not accepted")
	}
	b.all(t)
	b.refusal(t, RefusedChanged)
	c.refusal(t, RefusedChanged) // because of its address
	if f.SetPolicy(compile(t, v1.Network{}), 5) || f.SetPolicy(nil, 4) {
		t.Error("an earlier generation is accepted")
	}
	io.WriteString(a, "still here")
	a.CloseWrite()
	if got := a.all(t); got != "still here" {
		t.Errorf("%q", got)
	}
	if err := a.wait(t); err != nil {
		t.Error(err)
	}
	if n := f.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

func TestLimits(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), func(o *GatewayOptions) { o.Limits = Limits{Connections: 2, Bytes: 1000} })
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo)
	a, b := f.open("a.acme.org", port), f.open("a.acme.org", port)
	for i := range 2 {
		f.waitEvent(func(e Event) bool { return e.Kind == EventConnected && e.ID == uint64(i+1) })
	}
	if r := f.open("a.acme.org", port).refusal(t, RefusedByLimit); !strings.Contains(r.Error(), "2 connections") {
		t.Errorf("%v", r)
	}
	b.Write(make([]byte, 1100))
	b.all(t)
	b.refusal(t, RefusedByLimit)
	f.open("a.acme.org", port).refusal(t, RefusedByLimit)
	a.Write(make([]byte, 1))
	a.refusal(t, RefusedByLimit)

	f = newFixture(t, v1.Network{}, func(o *GatewayOptions) { o.Limits.Rate = 0.001 })
	f.open("a.acme.org", port).refusal(t, RefusedByPolicy)
	if r := f.open("a.acme.org", port).refusal(t, RefusedByLimit); !strings.Contains(r.Error(), "per second") {
		t.Errorf("%v", r)
	}
}

func TestAFloodIsBounded(t *testing.T) {
	f := newFixture(t, v1.Network{}, func(o *GatewayOptions) { o.Limits = Limits{Connections: 20, Rate: 1e6} })
	var group sync.WaitGroup
	var limited atomic.Int64
	for i := range 200 {
		c := f.open("denied.org", []uint16{80, 443}[i%2]) // waits for first bytes, to refuse in words
		group.Go(func() {
			select {
			case r := <-c.guest.refused:
				if r.Kind == RefusedByLimit {
					limited.Add(1)
				}
			case <-c.guest.accepted:
			}
		})
	}
	group.Wait()
	if limited.Load() != 180 || f.Connections() != 20 {
		t.Errorf("%d limited, %d open", limited.Load(), f.Connections())
	}
}

func TestCloseEndsConnections(t *testing.T) {
	f, _ := webFixture(t, nil)
	a, b := f.open("example.com", 80), f.open("denied.acme.org", 80)
	f.waitEvent(func(e Event) bool { return e.Kind == EventConnected })
	<-b.guest.accepted
	f.Close()
	a.refusal(t, RefusedClosing)
	b.wait(t)
	f.open("example.com", 80).refusal(t, RefusedClosing)
	if r := f.Lookup(t.Context(), "cdn.acme.org"); r.Status != LookupFailed {
		t.Errorf("%+v", r)
	}
}

func TestTheContextEndsAConnection(t *testing.T) {
	f := newFixture(t, allow("allow a.acme.org:*"), nil)
	f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo)
	_, guest := tcpPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	conn := &guestConn{TCPConn: guest, accepted: make(chan struct{}), refused: make(chan *Refusal, 1)}
	go func() { result <- f.Serve(ctx, Request{Name: "a.acme.org", Port: port}, conn) }()
	<-conn.accepted
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestThroughTheProxyOfTheHost(t *testing.T) {
	var targets []string
	port := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Error(err)
			return
		}
		targets = append(targets, req.Method+" "+req.RequestURI+" "+req.Header.Get("Proxy-Authorization"))
		if strings.HasPrefix(req.Host, "bad.") {
			io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nfirst ")
		io.Copy(c, r)
		c.CloseWrite()
	})
	env := map[string]string{"HTTPS_PROXY": "http://u:p@127.0.0.1:" + portText(port), "NO_PROXY": "direct.acme.org"}
	proxy := HostProxy(func(k string) string { return env[k] })
	f := newFixture(t, v1.Network{Preset: v1.NetworkPublic}, func(o *GatewayOptions) { o.Proxy = proxy })
	c := f.open("a.acme.org", 9)
	io.WriteString(c, "second")
	c.CloseWrite()
	if got := c.all(t); got != "first second" {
		t.Errorf("%q", got)
	}
	if err := c.wait(t); err != nil {
		t.Error(err)
	}
	f.open("bad.acme.org", 9).refusal(t, RefusedUnreached)
	f.open("169.254.169.254", 80).refusal(t, RefusedByFloor)
	if r := f.Lookup(t.Context(), "a.acme.org"); r.Status != LookupExists {
		t.Errorf("%+v", r)
	}
	if asked := f.resolver.questions(); len(asked) > 0 {
		t.Errorf("resolved %q", asked)
	}
	f.open("direct.acme.org", 9).refusal(t, RefusedNotFound)
	if want := []string{"CONNECT a.acme.org:9 Basic dTpw", "CONNECT bad.acme.org:9 Basic dTpw"}; !slices.Equal(targets, want) {
		t.Errorf("%q, want %q", targets, want)
	}
	if HostProxy(func(string) string { return "" }) != nil {
		t.Error("a proxy without configuration")
	}
	if _, err := dialProxy(t.Context(), &url.URL{Scheme: "socks5", Host: "127.0.0.1:" + portText(port)}, "a.acme.org:9"); err == nil {
		t.Error("socks5 is accepted")
	}
}

func TestTheGatewayExplainsTheFloor(t *testing.T) {
	f := newFixture(t, v1.Network{Preset: v1.NetworkPublic}, nil)
	if d := f.Decide("169.254.169.254", 80); d.Allowed() || !strings.Contains(d.Remedy, "network.floor_except") {
		t.Errorf("%+v", d)
	}
	if d := f.Decide("1.1.1.1", 80); !d.Allowed() {
		t.Errorf("%+v", d)
	}
	f.open("169.254.169.254", 80).refusal(t, RefusedByFloor)
	if e := f.waitEvent(func(e Event) bool { return e.Kind == EventDecided }); e.Decision.Allowed() {
		t.Errorf("%+v", e)
	}
}
