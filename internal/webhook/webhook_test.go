package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// quick returns a hook that does not wait between attempts.
func quick(url string) *Hook { return &Hook{url: url, pause: time.Millisecond} }

func TestSendTriesAgain(t *testing.T) {
	for name, c := range map[string]struct {
		failures, requests int64
		sent               bool
	}{
		"at once":       {0, 1, true},
		"after one":     {1, 2, true},
		"at last":       {attempts - 1, attempts, true},
		"one too many ": {attempts, attempts, false},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var got map[string]string
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil || got["event"] != "x" || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("got %v, %v", got, err)
				}
				if requests.Add(1) <= c.failures {
					w.WriteHeader(http.StatusBadGateway)
				}
			}))
			defer server.Close()
			err := quick(server.URL).Send(t.Context(), map[string]string{"event": "x"})
			if (err == nil) != c.sent || requests.Load() != c.requests {
				t.Errorf("%d requests, %v", requests.Load(), err)
			}
		})
	}
}

func TestNoErrorContainsTheURL(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	answers := httptest.NewServer(http.NotFoundHandler())
	defer answers.Close()
	for _, base := range []string{gone.URL, answers.URL, "http://[", "gopher://host"} {
		err := quick(base+"/SECRET?token=SECRET#SECRET").Send(t.Context(), nil)
		if err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", base, err)
		}
	}
}

func TestSendEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer server.Close()
	h := &Hook{url: server.URL, pause: time.Hour}
	if err := h.Send(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
