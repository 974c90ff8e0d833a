package mcp

import (
	"context"
	"net"
	"net/http"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

// Headers by which a request inside this process tells whom it is made for. The door sets them on each request that comes in, so
// nobody else can.
const (
	headerRemote = "Recluse-Mcp-Remote"
	headerHost   = "Recluse-Mcp-Host"
	headerCall   = "Recluse-Mcp-Call"
)

// passed are the headers of a caller's request by which the API knows whom it serves.
var passed = []string{"Authorization", v1.HeaderTenant, "Origin", "Sec-Fetch-Site", headerRemote, headerHost}

// loop is HTTP within this process: requests to a handler over connections that are pipes. They have all that others have (streams,
// deadlines, upgrades) and none of the trust that a UNIX socket has.
type loop struct {
	conns     chan net.Conn
	done      chan struct{}
	once      sync.Once
	server    *http.Server
	transport *http.Transport
}

func newLoop(h http.Handler) *loop {
	l := &loop{conns: make(chan net.Conn), done: make(chan struct{})}
	l.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr, r.Host = r.Header.Get(headerRemote), r.Header.Get(headerHost)
		r.Header.Del(headerRemote)
		r.Header.Del(headerHost)
		h.ServeHTTP(w, r)
	})}
	l.transport = &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 64, DisableCompression: true}
	go func() { _ = l.server.Serve(l) }() // it ends by Close
	return l
}

func (l *loop) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *loop) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *loop) Addr() net.Addr { return &net.UnixAddr{Net: "pipe", Name: "pipe"} }

// Close implements net.Listener.
func (l *loop) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// stop ends all requests.
func (l *loop) stop() {
	_ = l.server.Close() // closes the listener, too
	l.transport.CloseIdleConnections()
}

// client speaks for the caller whose request had these headers.
func (l *loop) client(h http.Header) (*client.Client, error) {
	who := http.Header{}
	for _, name := range passed {
		if v := h.Values(name); len(v) > 0 {
			who[http.CanonicalHeaderKey(name)] = v
		}
	}
	return client.New(client.Options{URL: "http://recluse", HTTPClient: &http.Client{Transport: &onBehalf{l.transport, who}}, RetryTime: -1, RateWait: -1})
}

// onBehalf adds the caller's headers to each request.
type onBehalf struct {
	next http.RoundTripper
	who  http.Header
}

// RoundTrip implements http.RoundTripper.
func (o *onBehalf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range o.who {
		r.Header[name] = values
	}
	return o.next.RoundTrip(r)
}
