package server_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestInputToARunningOperation(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	const ses = "/v1/sessions/work"
	for name, body := range map[string]string{
		"a command": `{"id":"a","shell":"read x; echo got $x; cat","background":true,"keep_stdin":true}`,
		"a cell":    `{"id":"a","code":"print('got', input()); import sys; print(sys.stdin.read(), end='')","keep_stdin":true}`,
	} {
		route := "/commands"
		if name == "a cell" {
			route = "/cells"
		}
		ended := make(chan answer, 1)
		go func() { ended <- ask(t, k, "", "POST", ses+route, strings.Replace(body, `"a"`, `"`+route[1:]+`"`, 1)) }()
		op := ses + "/operations/" + route[1:]
		testneed.Await(t, name+" takes input", func() bool {
			o, err := s.Operation(t.Context(), route[1:])
			return err == nil && o.Input
		})
		for _, in := range []string{`{"data":"one\n"}`, `{"data":{"base64":"dHdvCg=="}}`, `{"data":"three\n","end":true}`} {
			if a := ask(t, k, "", "POST", op+"/input", in); a.status != http.StatusNoContent {
				t.Errorf("%s: %s: %d %s", name, in, a.status, a.body)
			}
		}
		var v sandbox.Verdict
		if ask(t, k, "", "GET", op+"/verdict", "").decode(t, &v); v.Stdout.String() != "got one\ntwo\nthree\n" {
			t.Errorf("%s: %+v", name, v)
		}
		<-ended
		if a := ask(t, k, "", "POST", op+"/input", `{"data":"late"}`); a.status != http.StatusNotFound {
			t.Errorf("%s that has ended: %d %s", name, a.status, a.body)
		}
	}
	ask(t, k, "", "POST", ses+"/commands", `{"id":"deaf","shell":"sleep 600","background":true}`)
	if a := ask(t, k, "", "POST", ses+"/operations/deaf/input", `{"data":"x"}`); a.status != http.StatusBadRequest {
		t.Errorf("a command without input: %d %s", a.status, a.body)
	}
}

func TestInputThatIsReadLate(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Time: 500 * time.Millisecond}})
	s := open(t, k, "default", "work")
	const size = 600_000 // several messages to the guest, and larger than the buffer of a pipe
	const wait = "import os, sys, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)\nprint(len(sys.stdin.read()))"
	data := `{"data":"` + strings.Repeat("x", size) + `"}`
	run := map[string]func() (*sandbox.Verdict, error){
		"command": func() (*sandbox.Verdict, error) {
			return s.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", wait}, RunOptions: sandbox.RunOptions{ID: "command", KeepStdin: true}})
		},
		"cell": func() (*sandbox.Verdict, error) {
			return s.Cell(t.Context(), sandbox.Cell{Code: wait, RunOptions: sandbox.RunOptions{ID: "cell", KeepStdin: true}})
		},
	}
	var all sync.WaitGroup
	defer all.Wait()
	for id, run := range run {
		all.Go(func() {
			if v, err := run(); err != nil || v.Stdout.String() != strconv.Itoa(2*size)+"\n" {
				t.Errorf("%s: %+v %v", id, v, err)
			}
		})
		testneed.Await(t, id+" takes input", func() bool {
			o, err := s.Operation(t.Context(), id)
			return err == nil && o.Input
		})
	}
	input := func(id, body string) answer {
		return ask(t, k, "", "POST", "/v1/sessions/work/operations/"+id+"/input", body)
	}
	var given sync.WaitGroup
	refused := map[string]*atomic.Bool{}
	for id := range run {
		refused[id] = &atomic.Bool{}
		for range 2 { // one of the two waits for the other
			given.Go(func() {
				var a answer
				taken := testneed.Eventually(func() bool {
					if a = input(id, data); a.status == http.StatusConflict {
						refused[id].Store(true)
						return false
					}
					return true
				})
				if !taken || a.status != http.StatusNoContent {
					t.Errorf("%s: %d %s", id, a.status, a.body)
				}
			})
		}
	}
	for id := range run {
		testneed.Await(t, "the other caller of "+id+" is refused", refused[id].Load)
		if a := input(id, `{"end":true}`); a.status != http.StatusConflict {
			t.Errorf("the end of the input of %s while some is unread: %d %s", id, a.status, a.body)
		}
	}
	// Both wait longer than the time limit of other requests.
	if v, err := s.Run(t.Context(), sandbox.Command{Shell: "sleep 1; touch /tmp/go"}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	given.Wait()
	for id := range run {
		if a := input(id, `{"end":true}`); a.status != http.StatusNoContent {
			t.Errorf("%s: %d %s", id, a.status, a.body)
		}
	}
}

// shown reads output until it contains a text.
func shown(t *testing.T, conn *websocket.Conn, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all strings.Builder
	for !strings.Contains(all.String(), want) {
		kind, raw, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("%v before %q: %q", err, want, all.String())
		}
		if kind == websocket.MessageBinary {
			all.Write(raw[1:])
		}
	}
}

func types(t *testing.T, conn *websocket.Conn, line string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageBinary, append([]byte{v1.FrameStdin}, line...)); err != nil {
		t.Fatal(err)
	}
}

// discard reads until the connection ends.
func discard(conn *websocket.Conn) {
	for {
		if _, _, err := conn.Read(context.Background()); err != nil {
			return
		}
	}
}

// reattach attaches to an operation whose connection broke.
func reattach(t *testing.T, k *servertest.Bench, id string) *websocket.Conn {
	t.Helper()
	return dial(t, plain, k.URL, `{"attach":{"id":"`+id+`"}}`)
}

func TestATerminalIsAttachedAgain(t *testing.T) {
	k := servertest.New(t, server.Options{TerminalGrace: time.Hour, Drain: 100 * time.Millisecond})
	s := open(t, k, "default", "work")
	const sh = `"args":["sh"],"pty":{"rows":24,"cols":80}`
	conn := dial(t, plain, k.URL, `{"command":{"id":"t",`+sh+`},"stdin":true}`)
	types(t, conn, "x=4; echo begun$x\n")
	shown(t, conn, "begun4")
	_ = conn.CloseNow()
	conn = reattach(t, k, "t")
	shown(t, conn, "begun4") // output from before the connection broke
	types(t, conn, "echo again$x\n")
	shown(t, conn, "again4")
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"resize":{"rows":40,"cols":100}}`)); err != nil {
		t.Fatal(err)
	}
	types(t, conn, `until [ "$(stty size)" = "40 100" ]; do sleep 0.02; done; echo resized$x`+"\n")
	shown(t, conn, "resized4")
	first := dial(t, plain, k.URL, `{"command":{"id":"closed",`+sh+`},"stdin":true}`)
	types(t, first, "z=6; echo there$z\n")
	shown(t, first, "there6") // until it has started: a terminal that is closed before is not an operation
	for id, conn := range map[string]*websocket.Conn{"t": conn, "closed": first} {
		_ = conn.Close(websocket.StatusNormalClosure, "")
		testneed.Await(t, "a terminal whose connection is closed on purpose ends: "+id, func() bool {
			v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{NoWait: true})
			return err == nil && v != nil && v.Ended == v1.EndedCancelled
		})
	}

	conn = dial(t, plain, k.URL, `{"command":{"id":"kept","on_disconnect":"keep",`+sh+`},"stdin":true}`)
	types(t, conn, "y=5; echo up$y\n")
	shown(t, conn, "up5")
	go discard(conn) // otherwise the server waits for the answer to its close frame
	k.Stop()         // operations continue, and their input stays open
	k.Start()
	conn = reattach(t, k, "kept")
	types(t, conn, "echo still$y; exit 7\n")
	shown(t, conn, "still5")
	if m := hear(t, conn); m.Verdict == nil || m.Verdict.ExitCode != 7 {
		t.Errorf("%+v", m)
	}
}

func TestCORS(t *testing.T) {
	const local = "http://[::1]:3000"
	k := servertest.New(t, server.Options{Origins: []string{"https://app.example", local}})
	open(t, k, "default", "work")
	key := k.Key("default", "execute")
	for origin, want := range map[string]int{"https://app.example": 101, local: 101, "http://1:3000": 403, "https://evil.example": 403} {
		h := http.Header{"Origin": {origin}, "Authorization": {"Bearer " + key}}
		conn, res, err := websocket.Dial(t.Context(), k.URL+"/v1/sessions/work/stream", &websocket.DialOptions{HTTPClient: plain, HTTPHeader: h}) //nolint:bodyclose // it is the connection's
		if res == nil || res.StatusCode != want {
			t.Errorf("a WebSocket from %s: %v", origin, err)
		}
		if err == nil {
			_ = conn.CloseNow()
		}
	}
	const cells = "/v1/sessions/work/cells"
	pre := ask(t, k, "", "OPTIONS", cells+"?x=1", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	if pre.status != http.StatusNoContent || pre.header.Get("Access-Control-Allow-Origin") != "https://app.example" ||
		!strings.Contains(pre.header.Get("Access-Control-Allow-Headers"), "Authorization") || pre.header.Get("Access-Control-Allow-Methods") != "POST" {
		t.Errorf("%d %v", pre.status, pre.header)
	}
	for origin, want := range map[string]string{"https://app.example": "https://app.example", "https://evil.example": "", "http://app.example": "", "null": "", "": ""} {
		for _, a := range []answer{ask(t, k, key, "GET", "/v1/sessions", "", "Origin", origin), ask(t, k, key, "GET", "/v1/sessions/none", "", "Origin", origin)} {
			if got := a.header.Get("Access-Control-Allow-Origin"); got != want || a.header.Get("Vary") != "Origin" || a.header.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("from %q: %v", origin, a.header)
			}
		}
		if a := ask(t, k, "", "OPTIONS", cells, "", "Origin", origin, "Access-Control-Request-Method", "POST"); want == "" && (a.status != http.StatusMethodNotAllowed || a.header.Get("Access-Control-Allow-Origin") != "") {
			t.Errorf("preflight from %q: %d %v", origin, a.status, a.header)
		}
	}
	if a := ask(t, k, "", "GET", "/v1/sessions", "", "Origin", "https://app.example"); a.status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", a.status)
	}
	for _, bad := range []string{"*", "https://*.example", "app.example", "https://app.example/", "ftp://app.example"} {
		if server.CheckOrigins([]string{bad}) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestTheTimeoutOfAServer(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Run: 500 * time.Millisecond}})
	open(t, k, "default", "work")
	// A terminal and a background command have no timeout. They start before commands that time out, and end on request.
	if a := ask(t, k, "", "POST", "/v1/sessions/work/commands", `{"id":"bg","args":["cat"],"background":true,"keep_stdin":true}`); a.status != http.StatusAccepted {
		t.Fatalf("%d %s", a.status, a.body)
	}
	pty := dial(t, plain, k.URL, `{"command":{"args":["cat"],"pty":{"rows":24,"cols":80}},"stdin":true}`)
	for path, body := range map[string]string{"/cells": `{"code":"import time; time.sleep(60)"}`, "/commands": `{"args":["sleep","60"]}`} {
		var v sandbox.Verdict
		ask(t, k, "", "POST", "/v1/sessions/work"+path, body).decode(t, &v)
		if v.Ended != v1.EndedTimeout {
			t.Errorf("%s: %+v", path, v)
		}
	}
	piped := dial(t, plain, k.URL, `{"command":{"args":["sleep","60"]}}`)
	if m := hear(t, piped); m.Verdict == nil || m.Verdict.Ended != v1.EndedTimeout {
		t.Errorf("a command over a WebSocket: %+v", m)
	}
	if err := pty.Write(t.Context(), websocket.MessageBinary, []byte{v1.FrameStdin, 4}); err != nil { // Ctrl-D
		t.Fatal(err)
	}
	if m := hear(t, pty); m.Verdict == nil || !m.Verdict.OK() {
		t.Errorf("a terminal: %+v", m)
	}
	if a := ask(t, k, "", "POST", "/v1/sessions/work/operations/bg/input", `{"end":true}`); a.status != http.StatusNoContent {
		t.Errorf("%d %s", a.status, a.body)
	}
	var v sandbox.Verdict
	if ask(t, k, "", "GET", "/v1/sessions/work/operations/bg/verdict", "").decode(t, &v); !v.OK() {
		t.Errorf("a command in the background: %+v", v)
	}
	if ask(t, k, "", "POST", "/v1/sessions/work/commands", `{"args":["sleep","1"],"timeout":"none"}`).decode(t, &v); !v.OK() {
		t.Errorf("one that names its own: %+v", v)
	}
}
