package e2b

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/session"
)

// anyone admits every caller.
type anyone struct{}

func (anyone) AdmitKey(r *http.Request, _, _ string) (context.Context, error) {
	return r.Context(), nil
}

func (anyone) AdmitHolder(ctx context.Context, _ session.Info) (context.Context, error) {
	return ctx, nil
}

// stalled connects to a handler whose limit is short, sends a request and no more, and returns the connection and a
// channel with the error that the handler got.
func stalled(t *testing.T, request string, serve func(w http.ResponseWriter, r *http.Request) error) (net.Conn, chan error) {
	t.Helper()
	h := New(t.Context(), Options{Access: anyone{}})
	t.Cleanup(h.Close)
	h.stall = 50 * time.Millisecond
	got := make(chan error, 1)
	h.control = http.NewServeMux()
	h.control.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { got <- serve(w, r) })
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, request, server.Listener.Addr()); err != nil {
		t.Fatal(err)
	}
	return conn, got
}

func awaitStall(t *testing.T, got chan error) {
	t.Helper()
	select {
	case err := <-got:
		if err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%v, want a timeout", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the request still waits for its caller")
	}
}

func TestAnUploadThatStallsEnds(t *testing.T) {
	t.Parallel()
	_, got := stalled(t, "POST /sandboxes HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n\r\n{", func(_ http.ResponseWriter, r *http.Request) error {
		_, err := io.Copy(io.Discard, r.Body)
		return err
	})
	awaitStall(t, got)
}

func TestAReaderThatStallsEnds(t *testing.T) {
	t.Parallel()
	_, got := stalled(t, "GET /sandboxes HTTP/1.1\r\nHost: %s\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) error {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil { // until the buffers of the connection are full
				return err
			}
		}
	})
	awaitStall(t, got)
}

// TestASlowCallerIsNotStalled sends and reads for longer than the limit, without a pause as long as the limit.
func TestASlowCallerIsNotStalled(t *testing.T) {
	t.Parallel()
	d := &deadlines{ResponseWriter: httptest.NewRecorder()}
	rc := http.NewResponseController(d)
	limit := time.Hour
	body := &patientBody{io.NopCloser(strings.NewReader("abc")), rc, limit}
	for range 3 {
		if _, err := body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	w := &patientWriter{d, rc, limit}
	for range 2 {
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for i, set := range append(d.read, d.write...) {
		// Each read sets a deadline and removes it; each write sets one, which the end of the request removes.
		if removed := i < 6 && i%2 == 1; removed != set.IsZero() || !removed && time.Until(set) < limit-time.Minute {
			t.Errorf("deadline %d: %s", i, set)
		}
	}
	if len(d.read) != 6 || len(d.write) != 2 {
		t.Errorf("%d and %d deadlines", len(d.read), len(d.write))
	}
}

// deadlines records the deadlines of a connection.
type deadlines struct {
	http.ResponseWriter
	read, write []time.Time
}

// SetReadDeadline is for http.ResponseController.
func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = append(d.read, at)
	return nil
}

// SetWriteDeadline is for http.ResponseController.
func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = append(d.write, at)
	return nil
}
