package llm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a response in bytes. The text of a reply is also limited by its tokens (replyBytes).
const (
	maxResponse = 256 << 20
	maxError    = 1 << 20
)

// The causes with which an attempt is cancelled.
var (
	errAttemptTimeout   = errors.New("the attempt took too long")
	errIdle             = errors.New("the provider was silent for too long")
	errResponseTooLarge = errors.New("the response is too large")
)

// newTransport returns the transport of a set. It keeps as many idle connections as a provider has concurrent calls by
// default.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          4 * DefaultConcurrency,
		MaxIdleConnsPerHost:   DefaultConcurrency,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   15 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// newClient returns the HTTP client of a provider. Timeouts come from the ctx of each request.
func newClient(t *http.Transport) *http.Client { return &http.Client{Transport: watchedTransport{t}} }

// watchedTransport limits responses, resets the idle watch with every byte, and refuses redirects, because they would
// send the key to another server.
type watchedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t watchedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	idle, _ := req.Context().Value(idleKey{}).(*idleWatch)
	x := idle.exchange()
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		// The end of the writing may be reported after the end of the exchange.
		GotConn:      func(httptrace.GotConnInfo) { x.sent.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) { x.sent.Store(info.Err == nil) },
	}))
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	x.refused.Store(resp.StatusCode >= http.StatusMultipleChoices)
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		resp.Body.Close()
		return nil, errorResponse(resp.StatusCode, resp.Header, "")
	}
	idle.touch()
	left := int64(maxResponse)
	if resp.StatusCode >= http.StatusBadRequest {
		left = maxError
	}
	resp.Body = &watchedBody{body: resp.Body, idle: idle, left: left}
	return resp, nil
}

type watchedBody struct {
	body io.ReadCloser
	idle *idleWatch
	left int64
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errResponseTooLarge
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if n > 0 {
		b.idle.touch()
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedBody) Close() error { return b.body.Close() }

type idleKey struct{}

// idleWatch observes the HTTP request of an attempt. It cancels a ctx when touch was not called for limit.
type idleWatch struct {
	limit  time.Duration
	cancel context.CancelCauseFunc
	last   atomic.Pointer[exchange] // an attempt may need several requests

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil once stopped
}

// watchIdle returns a ctx that is cancelled with errIdle when touch is not called for limit. The caller must stop the
// watch.
func watchIdle(ctx context.Context, limit time.Duration) (context.Context, *idleWatch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &idleWatch{limit: limit, cancel: cancel}
	w.timer = time.AfterFunc(limit, func() { cancel(errIdle) })
	return context.WithValue(ctx, idleKey{}, w), w
}

// exchange is one HTTP request.
type exchange struct {
	sent    atomic.Bool // it was written, as far as is known
	refused atomic.Bool // the status of the response is not 200
}

// exchange returns the record of a new request.
func (w *idleWatch) exchange() *exchange {
	x := &exchange{}
	if w != nil {
		w.last.Store(x)
	}
	return x
}

// begun reports whether a provider may have begun to answer: it has the last request and did not refuse it.
func (w *idleWatch) begun() bool {
	x := w.last.Load()
	return x != nil && x.sent.Load() && !x.refused.Load()
}

// touch restarts the timer. It does nothing for a nil watch.
func (w *idleWatch) touch() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Reset(w.limit)
	}
}

func (w *idleWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.timer = nil
	w.cancel(context.Canceled)
}
