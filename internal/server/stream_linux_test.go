package server_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// listen starts an event stream. The caller disconnects when ctx ends.
func listen(ctx context.Context, t *testing.T, k *servertest.Bench, method, path, body string, header ...string) (*v1.EventReader, func()) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, k.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", v1.EventStream)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := plain.Do(req) //nolint:bodyclose // by what is returned
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != v1.EventStream {
		t.Fatalf("%d %s", res.StatusCode, res.Header)
	}
	return v1.NewEventReader(res.Body), func() { res.Body.Close() }
}

func next(t *testing.T, r *v1.EventReader) v1.StreamEvent {
	t.Helper()
	e, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// until reads output to the end of the stream.
func until(t *testing.T, r *v1.EventReader) (stdout string, v sandbox.Verdict) {
	t.Helper()
	for {
		e := next(t, r)
		switch e.Kind {
		case v1.EventStdout:
			var c v1.Chunk
			if err := e.Decode(&c); err != nil {
				t.Fatal(err)
			}
			stdout += string(c.Data)
		case v1.EventVerdict:
			if err := e.Decode(&v); err != nil {
				t.Fatal(err)
			}
			return stdout, v
		case v1.EventProblem:
			t.Fatalf("%s", e.Data)
		}
	}
}

func TestStreamGoesOnWhereItBroke(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	const commands = "/v1/sessions/work/commands"
	r, done := listen(ctx, t, k, "POST", commands, `{"id":"slow","on_disconnect":"keep","shell":"echo é1; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two"}`)
	if e := next(t, r); e.Kind != v1.EventStarted || e.ID != "0:0:slow" {
		t.Fatalf("%+v", e)
	}
	e := next(t, r)
	if e.Kind != v1.EventStdout || string(e.Data) != `{"offset":0,"data":"é1\n"}` || e.ID != "4:0:slow" {
		t.Fatalf("%s %s %s", e.ID, e.Kind, e.Data)
	}
	leave()
	done()
	if a := ask(t, k, "", "PUT", "/v1/sessions/work/files?path=/tmp/go", ""); a.status != 200 {
		t.Fatal(a.body)
	}
	for _, way := range []struct{ name, method, path string }{
		{"by the same request", "POST", commands}, {"by its output", "GET", "/v1/sessions/work/operations/slow/output"},
	} {
		r, done := listen(t.Context(), t, k, way.method, way.path, "", v1.HeaderLastEvent, e.ID)
		if out, v := until(t, r); out != "two\n" || !v.OK() || v.Stdout.Produced != 8 {
			t.Errorf("%s: %q %+v", way.name, out, v)
		}
		done()
	}
	a := ask(t, k, "", "GET", "/v1/sessions/work/operations/slow/output?stdout=4", "")
	var f v1.Followed
	a.decode(t, &f)
	if f.Stdout != "two\n" || f.Running || f.Verdict == nil || f.Next.Stdout != 8 {
		t.Errorf("%s", a.body)
	}
	if a := ask(t, k, "", "GET", "/v1/sessions/work/operations/slow/output", "", v1.HeaderLastEvent, "nonsense"); a.status != 400 {
		t.Errorf("a mark of nobody's: %d %s", a.status, a.body)
	}
}

func TestFateOfACommandWhoseCallerGoesAway(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	for _, c := range []struct {
		fate, accept string
		ended        sandbox.Ending
	}{
		{"cancel", v1.EventStream, v1.EndedCancelled},
		{"", "application/json", v1.EndedCancelled},
		{"keep", v1.EventStream, v1.EndedExit},
		{"keep", "application/json", v1.EndedExit},
	} {
		id := "op-" + c.fate + strings.ReplaceAll(c.accept, "/", "-")
		body := `{"id":"` + id + `","on_disconnect":"` + c.fate + `","shell":"touch /tmp/` + id + `; while [ ! -e /tmp/go` + id + ` ]; do sleep 0.05; done; exit 7"}`
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, k.URL+"/v1/sessions/work/commands", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", c.accept)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if res, err := plain.Do(req); err == nil {
				for b := make([]byte, 64); ; {
					if _, err := res.Body.Read(b); err != nil {
						break
					}
				}
				res.Body.Close()
			}
		}()
		running := func() bool {
			ops, err := s.Operations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(ops, func(o sandbox.Operation) bool { return o.ID == id && o.Running })
		}
		testneed.Await(t, "the command runs", running)
		leave()
		<-gone
		if c.ended == v1.EndedExit {
			if v, err := s.Run(t.Context(), sandbox.Command{Args: []string{"touch", "/tmp/go" + id}}); err != nil || !v.OK() {
				t.Fatal(v, err)
			}
		}
		v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{})
		if err != nil || v.Ended != c.ended || c.ended == v1.EndedExit && v.ExitCode != 7 {
			t.Errorf("%s over %s: %v %v", c.fate, c.accept, v, err)
		}
	}
}

func TestEventsOfASession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	ctx, leave := context.WithCancel(t.Context())
	r, done := listen(ctx, t, k, "GET", "/v1/sessions/work/events", "")
	first := next(t, r)
	if first.Kind != v1.EventSession || first.ID == "" {
		t.Fatalf("%+v", first)
	}
	leave()
	done()
	if err := s.SetVar(t.Context(), "v", "1"); err != nil {
		t.Fatal(err)
	}
	r, done = listen(t.Context(), t, k, "GET", "/v1/sessions/work/events?follow=false", "", v1.HeaderLastEvent, first.ID)
	defer done()
	seen := map[string]bool{}
	for {
		e := next(t, r)
		if e.Kind == v1.EventEnd {
			break
		}
		var ev session.Event
		if err := e.Decode(&ev); err != nil || e.ID == first.ID {
			t.Fatalf("%+v %v", e, err)
		}
		seen[ev.Kind] = true
	}
	if !seen["var"] {
		t.Errorf("got %v", seen)
	}
}

func TestWatchedFiles(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	r, done := listen(t.Context(), t, k, "GET", "/v1/sessions/work/files/watch?path=/tmp", "")
	defer done()
	if e := next(t, r); !strings.Contains(string(e.Data), `"ready"`) {
		t.Fatalf("%s", e.Data)
	}
	if a := ask(t, k, "", "PUT", "/v1/sessions/work/files?path=/tmp/new", "x"); a.status != 200 {
		t.Fatal(a.body)
	}
	for {
		var c v1.FileEvent
		if err := next(t, r).Decode(&c); err != nil {
			t.Fatal(err)
		}
		if c.Path == "/tmp/new" {
			return
		}
	}
}

func TestWhoOnlyLooksAtFilesDoesNotUseTheSession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	if a := ask(t, k, "", "PUT", "/v1/sessions/work", `{"policy":{"idle":"5s","on_idle":"end"}}`); a.status != 201 {
		t.Fatal(a.body)
	}
	r, done := listen(t.Context(), t, k, "GET", "/v1/sessions/work/files/watch?path=/tmp", "")
	defer done()
	next(t, r) // the event ready
	if e := next(t, r); e.Kind != v1.EventProblem || !strings.Contains(string(e.Data), string(v1.CodeSessionExpired)) {
		t.Errorf("%s %s", e.Kind, e.Data)
	}

	s := open(t, k, "default", "other")
	if err := s.SetVar(t.Context(), "v", "1"); err != nil {
		t.Fatal(err)
	}
	for scope, use := range map[string]bool{"read": false, "execute": true} {
		key := k.Key("default", scope)
		for _, path := range []string{"?path=/etc/passwd", "/stat?path=/tmp", "/list?path=/tmp", "/tar?path=/etc/passwd"} {
			used := s.Info().Used
			if a := ask(t, k, key, "GET", "/v1/sessions/other/files"+path, ""); a.status != 200 {
				t.Fatalf("%s: %s", path, a.body)
			}
			if got := !s.Info().Used.Equal(used); got != use {
				t.Errorf("%s by a key that may %s: use is %t", path, scope, got)
			}
		}
	}
}

func TestStoppedServerLosesNoCommand(t *testing.T) {
	k := servertest.New(t, server.Options{Drain: 100 * time.Millisecond})
	s := k.Trusted.Session("work")
	open(t, k, "default", "work")
	if v, err := s.Cell(t.Context(), sandbox.Cell{Code: "x = 41"}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	var out strings.Builder
	type end struct {
		v   *sandbox.Verdict
		err error
	}
	ends := make(chan end, 2)
	go func() {
		v, err := s.Run(t.Context(), sandbox.Command{Shell: "echo one; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two", RunOptions: sandbox.RunOptions{Stdout: &out}})
		ends <- end{v, err}
	}()
	go func() {
		v, err := s.Run(t.Context(), sandbox.Command{RunOptions: sandbox.RunOptions{ID: "silent"}, Shell: "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two"})
		ends <- end{v, err}
	}()
	testneed.Await(t, "both run", func() bool {
		ops, err := s.Operations(t.Context())
		running := 0
		for _, o := range ops {
			if o.Running && o.Kind == "command" {
				running++
			}
		}
		return err == nil && running == 2
	})
	k.Stop()
	k.Start()
	if v, err := s.Cell(t.Context(), sandbox.Cell{Code: "open('/tmp/go', 'w').close(); x + 1"}); err != nil || v.Result.Text() != "42" {
		t.Fatal(v, err)
	}
	for range 2 {
		if e := <-ends; e.err != nil || !e.v.OK() {
			t.Errorf("%v %v", e.v, e.err)
		}
	}
	if out.String() != "one\ntwo\n" {
		t.Errorf("output: %q", out.String())
	}
}

func TestStreamsEndWhenTheServerStops(t *testing.T) {
	k := servertest.New(t, server.Options{Drain: time.Minute})
	open(t, k, "default", "work")
	r, done := listen(t.Context(), t, k, "GET", "/v1/sessions/work/events", "")
	defer done()
	next(t, r)
	k.Stop() // takes a minute if the stream does not end
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == v1.EventProblem {
			break
		}
	}
	k.Start()
}
