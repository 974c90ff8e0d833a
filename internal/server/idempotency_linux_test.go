package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/session"
)

// send sends a request, and reports whether it was answered.
func send(ctx context.Context, t *testing.T, k *servertest.Bench, method, path, body, key string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, k.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(v1.HeaderIdempotency, key)
	res, err := plain.Do(req)
	if err == nil {
		res.Body.Close()
	}
	return err == nil
}

// counted returns the numbers of sessions and snapshots.
func counted(t *testing.T, k *servertest.Bench) string {
	t.Helper()
	var sessions v1.SessionPage
	ask(t, k, "", "GET", "/v1/sessions", "").decode(t, &sessions)
	var snapshots v1.SnapshotPage
	ask(t, k, "", "GET", "/v1/snapshots", "").decode(t, &snapshots)
	return fmt.Sprintf("%d sessions, %d snapshots", len(sessions.Sessions), len(snapshots.Snapshots))
}

func TestAnIdempotencyKeyOutlivesAKilledServer(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	for _, c := range []struct {
		name, method, path, body string
		there                    string // what counted returns afterwards
		made                     string // part of the answer
	}{
		{"a session of a name", "POST", "/v1/sessions", `{"name":"mine"}`, "2 sessions, 0 snapshots", `"new":true`},
		{"a session without a name", "POST", "/v1/sessions", `{}`, "3 sessions, 0 snapshots", `"new":true`},
		{"a session by its path", "PUT", "/v1/sessions/yours", `{}`, "4 sessions, 0 snapshots", `"new":true`},
		{"a snapshot", "POST", "/v1/sessions/work/snapshots", `{"name":"one"}`, "4 sessions, 1 snapshots", `"name":"one"`},
		{"copies", "POST", "/v1/sessions/work/forks", `{"count":2}`, "6 sessions, 1 snapshots", `"name":"work-2"`},
		{"copies of names", "POST", "/v1/sessions/work/forks", `{"names":["z","y"]}`, "8 sessions, 1 snapshots", `"name":"y"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			k.ServeInChild(func() {
				if send(t.Context(), t, k, c.method, c.path, c.body, c.name) {
					t.Error("it was answered")
				}
			})
			if got := counted(t, k); got != c.there {
				t.Fatalf("%s, want %s", got, c.there)
			}
			first := ask(t, k, "", c.method, c.path, c.body, v1.HeaderIdempotency, c.name)
			if first.status != http.StatusCreated || !strings.Contains(first.body, c.made) {
				t.Errorf("%d %s", first.status, first.body)
			}
			again := ask(t, k, "", c.method, c.path, c.body, v1.HeaderIdempotency, c.name)
			if again.body != first.body || again.header.Get("Idempotency-Replayed") == "" {
				t.Errorf("%d %s, and at first %s", again.status, again.body, first.body)
			}
			if got := counted(t, k); got != c.there {
				t.Errorf("%s, want %s", got, c.there)
			}
			if !strings.Contains(c.body, "name") {
				return
			}
			if a := ask(t, k, "", c.method, c.path, c.body, v1.HeaderIdempotency, "another"); a.status != http.StatusConflict {
				t.Errorf("under another key: %d %s", a.status, a.body)
			}
		})
	}
	if err := k.Manager.DeleteSnapshot(t.Context(), session.Key{Name: "work"}, "*"); err != nil {
		t.Error(err)
	}
}

func TestACallerWhoWasCutOffFindsTheSession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// the result must be the same if the answer arrives before ctx ends
		send(ctx, t, k, "POST", "/v1/sessions", `{}`, "k")
	}()
	testneed.Await(t, "it is being made", func() bool {
		for range k.Manager.List(t.Context(), session.ListOptions{}) {
			return true
		}
		return false
	})
	cancel()
	<-sent
	a := ask(t, k, "", "POST", "/v1/sessions", `{}`, v1.HeaderIdempotency, "k")
	if got := counted(t, k); a.status != http.StatusCreated || got != "1 sessions, 0 snapshots" {
		t.Errorf("%s, and the answer is %d %s", got, a.status, a.body)
	}
}
