package server_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/session"
)

// answer is the server's answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) problem(t *testing.T) v1.Problem {
	t.Helper()
	var p v1.Problem
	if a.header.Get("Content-Type") != v1.ProblemType || json.Unmarshal([]byte(a.body), &p) != nil {
		t.Fatalf("%d %s is no problem: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	return p
}

func (a answer) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
}

// plain is an HTTP client without retries and keep-alive, so that each test sends exactly its own requests.
var plain = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

func ask(t *testing.T, k *servertest.Bench, key, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, k.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(bytes.TrimSpace(b))}
}

func open(t *testing.T, k *servertest.Bench, tenant, name string) *session.Session {
	t.Helper()
	s, _, err := k.Manager.Open(t.Context(), session.Key{Tenant: tenant, Name: name}, session.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
