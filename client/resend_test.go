package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The connection breaks during the first request, like an idle connection to a server that was restarted.
func TestACellThatNeverBeganIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		known  bool // the server knows the operation after the connection broke
		late   bool // the first request arrives after the client has queried the operation
		resent bool
	}{
		{name: "unknown", resent: true},
		{name: "known", known: true},
		{name: "arrives late", late: true, resent: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPost:
					_, _ = io.Copy(io.Discard, r.Body)
					sent++
					switch {
					case sent == 1:
						panic(http.ErrAbortHandler)
					case c.late:
						fails(w, http.StatusConflict, v1.CodeOperationExists)
					default:
						_, _ = io.WriteString(w, `{"id":"x","ended":"exit"}`)
					}
				case c.known || c.late && sent == 2:
					w.Header().Set("Content-Type", v1.EventStream)
					_, _ = io.WriteString(w, "event: verdict\ndata: {\"id\":\"x\",\"ended\":\"exit\"}\n\n")
				default:
					fails(w, http.StatusNotFound, v1.CodeNotFound)
				}
			}))
			defer srv.Close()
			client, err := New(Options{URL: srv.URL, RetryTime: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			v, err := client.Session("s").Cell(t.Context(), v1.Cell{Code: "1", RunOptions: v1.RunOptions{ID: "x"}})
			if err != nil || v.ID != "x" {
				t.Errorf("%+v %v", v, err)
			}
			if (sent == 2) != c.resent {
				t.Errorf("sent %d times", sent)
			}
		})
	}
}

func fails(w http.ResponseWriter, status int, code v1.Code) {
	w.Header().Set("Content-Type", v1.ProblemType)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"code":"`+string(code)+`"}`)
}
