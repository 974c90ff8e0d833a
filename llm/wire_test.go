package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const secret = "sk-very-secret-0123456789"

// wire is the API of a provider's server.
type wire struct {
	typ    string
	path   string
	kind   string // content type of a stream
	stream func(pieces ...string) string
	cut    func(pieces ...string) string // the same without the end marker
	fail   func(kind, message string) string
	input  int64 // input tokens that the stream reports; output is 7
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

type object = map[string]any

func openAIChunks(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&b, "data: %s\n\n", jsonText(object{"id": "c", "object": "chat.completion.chunk", "choices": []object{{"index": 0, "delta": object{"role": "assistant", "content": p}, "finish_reason": nil}}}))
	}
	return b.String()
}

func anthropicEvent(kind string, v object) string {
	v["type"] = kind
	return "event: " + kind + "\ndata: " + jsonText(v) + "\n\n"
}

func anthropicEvents(pieces ...string) string {
	s := anthropicEvent("message_start", object{"message": object{"id": "m", "type": "message", "role": "assistant", "content": []any{}, "usage": object{"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 4, "output_tokens": 1}}})
	s += anthropicEvent("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
	s += anthropicEvent("ping", object{})
	for _, p := range pieces {
		s += anthropicEvent("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": p}})
	}
	return s
}

func ollamaLines(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		b.WriteString(jsonText(object{"model": "m", "message": object{"role": "assistant", "content": p}, "done": false}) + "\n")
	}
	return b.String()
}

var wires = []wire{
	{
		typ: TypeOpenAI, path: "/v1/chat/completions", kind: "text/event-stream", input: 34, cut: openAIChunks,
		stream: func(pieces ...string) string {
			return ": a comment\n\n" + openAIChunks(pieces...) +
				"data: " + jsonText(object{"choices": []object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}}) + "\n\n" +
				"data: " + jsonText(object{"choices": []object{}, "usage": object{"prompt_tokens": 34, "completion_tokens": 7, "total_tokens": 41, "prompt_tokens_details": object{"cached_tokens": 20}}}) + "\n\n" +
				"data: [DONE]\n\n"
		},
		fail: func(kind, message string) string {
			return jsonText(object{"error": object{"message": message, "type": "x", "code": kind}})
		},
	},
	{
		typ: TypeAnthropic, path: "/v1/messages", kind: "text/event-stream", input: 34, cut: anthropicEvents,
		stream: func(pieces ...string) string {
			return anthropicEvents(pieces...) + anthropicEvent("content_block_stop", object{"index": 0}) +
				anthropicEvent("message_delta", object{"delta": object{"stop_reason": "end_turn"}, "usage": object{"output_tokens": 7}}) + anthropicEvent("message_stop", object{})
		},
		fail: func(kind, message string) string {
			return jsonText(object{"type": "error", "error": object{"type": kind, "message": message}})
		},
	},
	{
		typ: TypeOllama, path: "/api/chat", kind: "application/x-ndjson", input: 34, cut: ollamaLines,
		stream: func(pieces ...string) string {
			return ollamaLines(pieces...) + jsonText(object{"model": "m", "message": object{"role": "assistant", "content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 34, "eval_count": 7}) + "\n"
		},
		fail: func(_, message string) string { return jsonText(object{"error": message}) },
	},
}

// eachWire runs a test for every API.
func eachWire(t *testing.T, f func(t *testing.T, w wire)) {
	for _, w := range wires {
		t.Run(w.typ, func(t *testing.T) { f(t, w) })
	}
}

// hits counts the requests to a server.
type hits struct {
	mu   sync.Mutex
	n    int      // guarded by mu
	last []byte   // guarded by mu
	head []string // guarded by mu; authorization headers
}

func (h *hits) add(r *http.Request) int {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	h.last = body
	h.head = append(h.head, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
	return h.n
}

func (h *hits) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// serve starts a server and returns a model of it. answer receives the number of the request, from 1.
func serve(t *testing.T, w wire, answer func(n int, rw http.ResponseWriter, r *http.Request), change ...func(*Config, *Provider)) (Model, *hits) {
	t.Helper()
	return serveOn(t, nil, w, answer, change...)
}

// serveInside is like serve, but without a network. It is for a bubble of synctest, in which time advances only while
// all goroutines wait.
func serveInside(t *testing.T, w wire, answer func(n int, rw http.ResponseWriter, r *http.Request), change ...func(*Config, *Provider)) (Model, *hits) {
	t.Helper()
	return serveOn(t, &inside{conns: make(chan net.Conn), closed: make(chan struct{})}, w, answer, change...)
}

// serveOn starts the server on a listener; nil: a TCP listener.
func serveOn(t *testing.T, in *inside, w wire, answer func(n int, rw http.ResponseWriter, r *http.Request), change ...func(*Config, *Provider)) (Model, *hits) {
	t.Helper()
	h := &hits{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+w.path, func(rw http.ResponseWriter, r *http.Request) {
		n := h.add(r)
		rw.Header().Set("Content-Type", w.kind)
		answer(n, rw, r)
	})
	srv := &httptest.Server{Listener: in, Config: &http.Server{Handler: mux}}
	if in == nil {
		srv = httptest.NewUnstartedServer(mux)
	}
	srv.Start()
	t.Cleanup(srv.Close)
	base := srv.URL
	if w.typ == TypeOpenAI {
		base += "/v1"
	}
	p := Provider{Type: w.typ, BaseURL: base, Key: secret}
	cfg := Config{
		Env:    func(string) string { return "" },
		Retry:  Retry{Attempts: 3, Backoff: v1.Duration(time.Millisecond), Max: v1.Duration(time.Second)},
		Models: map[string]ModelConfig{"here/m": {Price: &Price{Input: 1, CachedInput: 0.1, Output: 2}}},
	}
	for _, f := range change {
		f(&cfg, &p)
	}
	cfg.Providers = map[string]Provider{"here": p}
	set, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	if in != nil {
		set.http.DialContext = in.dial
	}
	m, err := set.Model("here/m")
	if err != nil {
		t.Fatal(err)
	}
	return m, h
}

// inside is a listener whose connections are in-memory pipes.
type inside struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *inside) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *inside) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *inside) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (l *inside) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return mine, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// respond returns a handler that answers with a text.
func respond(text string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, text) }
}

// flush sends the buffered data.
func flush(rw http.ResponseWriter) { rw.(http.Flusher).Flush() }

// drop closes the connection within a response.
func drop(rw http.ResponseWriter) {
	flush(rw)
	panic(http.ErrAbortHandler)
}
