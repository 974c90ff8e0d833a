package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// A server answers after the first bytes and continues to read, so that the connection is not reset. The client stops
// sending and reads the complete answer.
func TestAnAnsweredUploadIsSentNoFurther(t *testing.T) {
	answer := `{"code":"disk_full","detail":"` + strings.Repeat("x", 512<<10) + `"}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if _, err := io.ReadFull(r.Body, make([]byte, 1<<20)); err != nil || rc.EnableFullDuplex() != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", v1.ProblemType)
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.WriteHeader(http.StatusInsufficientStorage)
		if err := rc.Flush(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, answer)
		_ = rc.Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer srv.Close()
	client, err := New(Options{URL: srv.URL, RetryTime: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	left := int64(4 << 30)
	data := readerFunc(func(b []byte) (int, error) {
		left -= int64(len(b))
		return len(b), nil
	})
	_, err = client.Session("s").Files().Write(t.Context(), "f", data, v1.WriteOptions{})
	if v1.CodeOf(err) != v1.CodeDiskFull {
		t.Errorf("%.200v", err)
	}
	if left < 0 {
		t.Error("everything was sent")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An HTTP client continues to read the body while an answer arrives. A read error meanwhile must not hide the answer.
func TestTheAnswerToAnUploadIsTheCause(t *testing.T) {
	unreadable := errors.New("unreadable")
	answer := func(r *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, r.Body)
		return &http.Response{
			StatusCode: http.StatusInsufficientStorage,
			Header:     http.Header{"Content-Type": {v1.ProblemType}},
			Body:       io.NopCloser(strings.NewReader(`{"code":"disk_full"}`)),
		}, nil
	}
	abort := func(r *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, r.Body)
		return nil, err
	}
	for name, c := range map[string]struct {
		send roundTripper
		want v1.Code
	}{
		"the server answers": {answer, v1.CodeDiskFull},
		"no answer":          {abort, v1.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := New(Options{URL: "http://127.0.0.1:1", HTTPClient: &http.Client{Transport: c.send}, RetryTime: -1})
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.Session("s").Files().Write(t.Context(), "f", iotest.ErrReader(unreadable), v1.WriteOptions{})
			if v1.CodeOf(err) != c.want || errors.Is(err, unreadable) != (c.want == v1.CodeInternal) {
				t.Errorf("%v", err)
			}
		})
	}
}
