package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// dial starts an operation over a WebSocket, and reads the message that it has started.
func dial(t *testing.T, by *http.Client, url, first string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), url+"/v1/sessions/work/stream", &websocket.DialOptions{HTTPClient: by}) //nolint:bodyclose // it is the connection's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(first)); err != nil {
		t.Fatal(err)
	}
	if m := hear(t, conn); m.Started == nil && m.Attached == nil {
		t.Fatalf("%+v", m)
	}
	return conn
}

// hear reads the next text message.
func hear(t *testing.T, conn *websocket.Conn) (m v1.Control) {
	t.Helper()
	for {
		kind, raw, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageText {
			if err := json.Unmarshal(raw, &m); err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
}

func TestInputThatNobodyReads(t *testing.T) {
	server.SetInputPing(t, 100*time.Millisecond)
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	piece := make([]byte, 32<<10) // the first byte marks input

	t.Run("a cancel behind it is heard", func(t *testing.T) {
		conn := dial(t, plain, k.URL, `{"command":{"id":"deaf","args":["sleep","600"]},"stdin":true}`)
		for range 160 { // more than all buffers on the way
			if err := conn.Write(t.Context(), websocket.MessageBinary, piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"cancel":true}`)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		defer context.AfterFunc(ctx, func() { _ = conn.CloseNow() })()
		if m := hear(t, conn); m.Verdict == nil || m.Verdict.Ended != v1.EndedCancelled {
			t.Errorf("%+v", m)
		}
	})

	t.Run("a caller who goes away behind more than is kept is noticed", func(t *testing.T) {
		conn := dial(t, plain, k.URL, `{"command":{"id":"left","args":["sleep","600"]},"stdin":true}`)
		full, stop := context.WithTimeout(t.Context(), time.Second) // until all buffers are full
		defer stop()
		for conn.Write(full, websocket.MessageBinary, piece) == nil {
		}
		_ = conn.CloseNow()
		testneed.Await(t, "the command is cancelled", func() bool {
			v, err := s.Follow(t.Context(), "left", sandbox.FollowOptions{NoWait: true})
			return err == nil && v != nil && v.Ended == v1.EndedCancelled
		})
	})

	t.Run("what is read late comes whole", func(t *testing.T) {
		conn := dial(t, plain, k.URL, `{"command":{"id":"late","shell":"while [ ! -e /tmp/go ]; do sleep 0.05; done; wc -c"},"stdin":true}`)
		sent := make(chan error, 1)
		go func() {
			for range 200 {
				if err := conn.Write(t.Context(), websocket.MessageBinary, piece); err != nil {
					sent <- err
					return
				}
			}
			sent <- conn.Write(t.Context(), websocket.MessageText, []byte(`{"stdin_end":true}`))
		}()
		if v, err := s.Run(t.Context(), sandbox.Command{Args: []string{"touch", "/tmp/go"}}); err != nil || !v.OK() {
			t.Fatal(v, err)
		}
		m := hear(t, conn)
		if err := <-sent; err != nil || m.Verdict == nil || string(m.Verdict.Stdout.Head) != "6553400\n" {
			t.Errorf("%+v %v", m.Verdict, err)
		}
	})
}

// narrow is a listener whose connections have small buffers. So do the connections of narrowly, which connects to it.
type narrow struct{ net.Listener }

var narrowly = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{
	Control: func(_, _ string, c syscall.RawConn) error { // before it connects, because the window is fixed afterwards
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }), err)
	},
}).DialContext}}

func (n narrow) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return conn, err
}

func TestOutputThatNobodyTakes(t *testing.T) {
	// the timeout also applies to the requests of this test, which may be slow on a busy machine
	server.SetStall(t, 2*time.Second)
	k := servertest.New(t, server.Options{TerminalGrace: time.Millisecond})
	s := open(t, k, "default", "work")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- k.Server.Serve(ctx, narrow{ln}) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	url := "http://" + ln.Addr().String()
	cell := func(id string) string {
		return `{"id":"` + id + `","context":"` + id + `","on_disconnect":"keep","code":"for i in range(100):\n    display('x' * 60000)\nprint('done')"}`
	}
	dial(t, narrowly, url, `{"cell":`+cell("socket")+`}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/sessions/work/cells", strings.NewReader(cell("events")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", v1.EventStream)
	res, err := narrowly.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := dial(t, plain, k.URL, `{"command":{"id":"terminal","shell":"echo up; read x; yes","pty":{"rows":24,"cols":80}},"stdin":true}`)
	shown(t, first, "up")
	second := dial(t, narrowly, url, `{"attach":{"id":"terminal"}}`)
	types(t, second, "\n")
	_ = first.CloseNow()
	left := dial(t, plain, k.URL, `{"command":{"id":"left","args":["cat"],"pty":{"rows":24,"cols":80}},"stdin":true}`)
	types(t, left, "here\n")
	shown(t, left, "here")
	_ = left.CloseNow()
	for _, id := range []string{"socket", "events"} {
		testneed.Await(t, "nobody waits behind the caller", func() bool {
			v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{NoWait: true})
			return err == nil && v != nil
		})
		if v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{}); err != nil || !v.OK() || v.Stdout.String() != "done\n" {
			t.Errorf("%s: %v %v", id, v, err)
		}
	}
	for _, id := range []string{"left", "terminal"} {
		testneed.Await(t, "a terminal whose caller does not come back is ended: "+id, func() bool {
			v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{NoWait: true})
			return err == nil && v != nil && v.Ended == v1.EndedCancelled
		})
	}
}
