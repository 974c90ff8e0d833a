package mcptools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// transport is the HTTP transport for one server. It adds the headers of the server and limits the size of responses.
type transport struct {
	base      *http.Transport
	serverURL url.URL
	headers   map[string]string
	limit     int64 // bytes of a response
}

func newTransport(s *Server, limit int64) *transport {
	w := &transport{base: http.DefaultTransport.(*http.Transport).Clone(), headers: s.Headers, limit: limit}
	if u, err := url.Parse(s.URL); err == nil { // Server.check has validated the URL
		w.serverURL = *u
	}
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	// The headers may contain secrets. Do not send them to another host or scheme after a redirect.
	if len(w.headers) > 0 && r.URL.Host == w.serverURL.Host && r.URL.Scheme == w.serverURL.Scheme {
		r = r.Clone(r.Context())
		for k, v := range w.headers {
			r.Header.Set(k, v)
		}
	}
	cancel := func() {}
	if r.Method == http.MethodDelete { // ends a session; Close must not wait long for it
		var ctx context.Context
		ctx, cancel = context.WithTimeout(r.Context(), closeGrace)
		r = r.WithContext(ctx)
	}
	res, err := w.base.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = &closeHook{res.Body, cancel}
	// The SDK limits the size of each event of a stream.
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body = &limitedBody{ReadCloser: res.Body, remaining: w.limit, limit: w.limit}
	}
	return res, nil
}

// quotedURL matches a URL in an error of package http.
var quotedURL = lazyregexp.New(`"https?://[^"]*"`)

// withoutURLs returns err without URLs. A URL may contain a token, and the code in the sandbox sees the error.
func withoutURLs(err error) error {
	return errors.New(quotedURL().ReplaceAllString(err.Error(), "the server URL"))
}

// closeHook calls a function after it is closed.
type closeHook struct {
	io.ReadCloser
	after func()
}

// Close implements io.Closer.
func (c *closeHook) Close() error {
	defer c.after()
	return c.ReadCloser.Close()
}

// limitedBody returns an error when more than limit bytes are read.
type limitedBody struct {
	io.ReadCloser
	remaining, limit int64
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.remaining -= int64(n); b.remaining < 0 {
		return 0, fmt.Errorf("the response has more than %d bytes", b.limit)
	}
	return n, err
}
