package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// A server that is being restarted refuses requests for a while.
func TestATerminalIsAttachedBehindARestart(t *testing.T) {
	var dialled atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := dialled.Add(1)
		if n == 2 || n == 3 {
			w.Header().Set("Content-Type", v1.ProblemType)
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"`+string(map[int32]v1.Code{2: v1.CodeUnavailable, 3: v1.CodeClosing}[n])+`","retry":true}`)
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		_, first, err := conn.Read(r.Context())
		if err != nil {
			t.Error(err)
		}
		if n == 1 {
			return // and the connection breaks
		}
		if string(first) != `{"attach":{"id":"t","stdout":0,"stderr":0}}` {
			t.Errorf("%s", first)
		}
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"verdict":{"id":"t","ended":"exit","exit_code":7}}`))
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}))
	defer srv.Close()
	c, err := New(Options{URL: srv.URL, RetryTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v, err := c.Session("s").Run(t.Context(), v1.Command{Args: []string{"sh"}, PTY: &v1.Size{Rows: 24, Cols: 80}, RunOptions: v1.RunOptions{ID: "t"}})
	if err != nil || v.ExitCode != 7 {
		t.Errorf("%+v %v", v, err)
	}
}
