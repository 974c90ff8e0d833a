// Package web is the server of the benchmarks of the network.
package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Small is the size of a response without the parameter n.
const Small = 100

// Zeros is a reader of zeros without an end.
type Zeros struct{}

// Read implements io.Reader.
func (Zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// Listen listens at an address.
func Listen(address string) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(context.Background(), "tcp4", address)
}

// Serve answers each request with as many bytes as its parameter n, after it has read the body.
func Serve(l net.Listener) error {
	s := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return // the client has gone
			}
			n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
			if err != nil {
				n = Small
			}
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
			_, _ = io.CopyN(w, Zeros{}, n) // the client may have gone
		}),
	}
	return s.Serve(l)
}
