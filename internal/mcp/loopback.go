package mcp

import (
	"context"
	"net"
	"net/http"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

// Headers with the remote address, the host and the id of the MCP request for which a request within this process is
// made. ServeHTTP sets them on each incoming request, so a client cannot forge them.
const (
	headerRemote = "Recluse-Mcp-Remote"
	headerHost   = "Recluse-Mcp-Host"
	headerCall   = "Recluse-Mcp-Call"
)

// forwardedHeaders are the headers by which the API identifies the caller.
var forwardedHeaders = []string{"Authorization", v1.HeaderTenant, "Origin", "Sec-Fetch-Site", headerRemote, headerHost}

// loopback is HTTP within this process: requests to a handler over in-memory pipes. The pipes support streams,
// deadlines and upgrades, and are not trusted as a UNIX socket is.
type loopback struct {
	conns     chan net.Conn
	done      chan struct{}
	once      sync.Once
	server    *http.Server
	transport *http.Transport
}

func newLoopback(h http.Handler) *loopback {
	l := &loopback{conns: make(chan net.Conn), done: make(chan struct{})}
	l.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr, r.Host = r.Header.Get(headerRemote), r.Header.Get(headerHost)
		r.Header.Del(headerRemote)
		r.Header.Del(headerHost)
		h.ServeHTTP(w, r)
	})}
	l.transport = &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 64, DisableCompression: true}
	go func() { _ = l.server.Serve(l) }() // ends with stop
	return l
}

func (l *loopback) dial(ctx context.Context, _, _ string) (net.Conn, error) {
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
func (l *loopback) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *loopback) Addr() net.Addr { return &net.UnixAddr{Net: "pipe", Name: "pipe"} }

// Close implements net.Listener.
func (l *loopback) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// stop closes all connections.
func (l *loopback) stop() {
	_ = l.server.Close() // also closes the listener
	l.transport.CloseIdleConnections()
}

// client returns a client that sends requests as the caller whose request had these headers.
func (l *loopback) client(h http.Header) (*client.Client, error) {
	headers := http.Header{}
	for _, name := range forwardedHeaders {
		if v := h.Values(name); len(v) > 0 {
			headers[http.CanonicalHeaderKey(name)] = v
		}
	}
	return client.New(
		client.Options{
			URL:        "http://recluse",
			HTTPClient: &http.Client{Transport: &callerTransport{l.transport, headers}},
			RetryTime:  -1,
			RateWait:   -1,
		},
	)
}

// callerTransport adds the caller's headers to each request.
type callerTransport struct {
	next    http.RoundTripper
	headers http.Header
}

// RoundTrip implements http.RoundTripper.
func (o *callerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range o.headers {
		r.Header[name] = values
	}
	return o.next.RoundTrip(r)
}
