package client

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// After an answer 429, the request is sent again after the time in Retry-After.
func TestRateLimitsAreWaitedFor(t *testing.T) {
	var asked atomic.Int32
	after := "0"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= 2 {
			w.Header().Set("Retry-After", after)
			w.Header().Set("Content-Type", v1.ProblemType)
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"code":"rate_limited","detail":"too many requests","retry":true}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{"path":"`+string(body)+`"}`)
	}))
	defer srv.Close()
	var waits []time.Duration
	c, err := New(Options{URL: srv.URL, OnRateWait: func(d time.Duration) { waits = append(waits, d) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, call := range map[string]func() error{
		"a look":    func() error { _, err := c.Session("s").Info(t.Context()); return err },
		"a request": func() error { return c.Session("s").Pause(t.Context()) },
		"an upload": func() error {
			i, err := c.Session("s").Files().Write(t.Context(), "f", io.MultiReader(strings.NewReader("whole")), v1.WriteOptions{})
			if err == nil && i.Path != "whole" {
				t.Errorf("%q was sent", i.Path)
			}
			return err
		},
	} {
		asked.Store(0)
		if waits = nil; call() != nil || len(waits) != 2 {
			t.Errorf("%s: %v after %d attempts, waits %v", name, call(), asked.Load(), waits)
		}
	}

	asked.Store(0)
	after = "1"
	if _, err := c.Session("s").Info(t.Context()); err != nil || !slices.Contains(waits, time.Second) {
		t.Errorf("%v, waits %v", err, waits)
	}
	asked.Store(0)
	after = "3600"
	if _, err := c.Session("s").Info(t.Context()); v1.CodeOf(err) != v1.CodeRateLimited || asked.Load() != 1 {
		t.Errorf("a wait that is too long: %v after %d attempts", err, asked.Load())
	}
}

// A failure of TLS is not reported as a server that does not run.
func TestTLSFailuresAreReportedAsSuch(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	secure, plain := httptest.NewUnstartedServer(nothing), httptest.NewServer(nothing)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	defer plain.Close()
	port := secure.URL[strings.LastIndex(secure.URL, ":"):]
	for name, o := range map[string]Options{
		"signed by an unknown authority": {URL: secure.URL},
		"for another name":               {URL: "https://localhost" + port, HTTPClient: secure.Client()},
		"does not speak TLS":             {URL: strings.Replace(plain.URL, "http:", "https:", 1)},
		"requires TLS":                   {URL: "http://127.0.0.1" + port},
	} {
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_, err = c.Session("s").Info(t.Context())
		_, ran := c.Session("s").Run(t.Context(), v1.Command{Args: []string{"true"}, RunOptions: v1.RunOptions{Stdout: io.Discard}})
		c.Close()
		for _, err := range []error{err, ran} {
			if v1.CodeOf(err) != v1.CodeTLS || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "server is running") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if time.Since(begun) > DefaultRetryTime {
			t.Errorf("%s: it was tried for %s", name, time.Since(begun))
		}
	}
}
