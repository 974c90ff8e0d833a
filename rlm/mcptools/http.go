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

// web speaks HTTP with one server: with its headers, and with a bound on what is read.
type web struct {
	base    *http.Transport
	at      url.URL // where the server is
	headers map[string]string
	limit   int64 // bytes of an answer
}

func newWeb(s *Server, limit int64) *web {
	w := &web{base: http.DefaultTransport.(*http.Transport).Clone(), headers: s.Headers, limit: limit}
	if u, err := url.Parse(s.URL); err == nil { // it was checked
		w.at = *u
	}
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	if len(w.headers) > 0 && r.URL.Host == w.at.Host && r.URL.Scheme == w.at.Scheme { // secrets do not follow to where we are sent, nor in the open
		r = r.Clone(r.Context())
		for k, v := range w.headers {
			r.Header.Set(k, v)
		}
	}
	cancel := func() {}
	if r.Method == http.MethodDelete { // the end of a session, for which nobody waits long
		var ctx context.Context
		ctx, cancel = context.WithTimeout(r.Context(), closeGrace)
		r = r.WithContext(ctx)
	}
	res, err := w.base.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = &closing{res.Body, cancel}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") { // those are bounded event by event
		res.Body = &bounded{ReadCloser: res.Body, left: w.limit, limit: w.limit}
	}
	return res, nil
}

// quoted is an address as the errors of package http have it.
var quoted = lazyregexp.New(`"https?://[^"]*"`)

// unaddressed keeps the addresses out of an error: they may hold a token, and the code in the sandbox hears of it.
func unaddressed(err error) error {
	return errors.New(quoted().ReplaceAllString(err.Error(), "its address"))
}

// closing calls a function behind its end.
type closing struct {
	io.ReadCloser
	then func()
}

// Close implements io.Closer.
func (c *closing) Close() error {
	defer c.then()
	return c.ReadCloser.Close()
}

// bounded fails when more is read than is allowed.
type bounded struct {
	io.ReadCloser
	left, limit int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", b.limit)
	}
	return n, err
}
