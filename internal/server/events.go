package server

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// stream writes server-sent events. Its methods may be called from several goroutines.
type stream struct {
	c    *call
	rc   *http.ResponseController
	stop context.CancelFunc

	mu   sync.Mutex
	gone error // guarded by mu; why nobody hears us any more
}

// startStream begins an event stream. From here on problems are events.
func startStream(c *call) *stream {
	h := c.w.Header()
	h.Set("Content-Type", v1.EventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // of a proxy that would wait for more
	c.w.WriteHeader(http.StatusOK)
	ctx, stop := context.WithCancel(c.ctx())
	s := &stream{c: c, rc: http.NewResponseController(c.w), stop: stop}
	_ = s.rc.Flush() // the first event fails if this did
	c.s.requests.Go(func() { s.beat(ctx) })
	return s
}

// beat shows from time to time that we live, and finds out whether the caller does.
func (s *stream) beat(ctx context.Context) {
	t := time.NewTicker(heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = s.write([]byte(":\n\n")) // noted
		}
	}
}

// close ends the stream. Nothing is written behind it.
func (s *stream) close() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		s.gone = http.ErrHandlerTimeout
	}
	_ = s.rc.SetWriteDeadline(time.Time{}) // the connection may serve more requests
}

// send writes an event. Its error says that the caller has gone.
func (s *stream) send(id, kind string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b := make([]byte, 0, len(data)+len(id)+len(kind)+32)
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "event: "...), kind...), '\n')
	b = append(append(append(b, "data: "...), data...), "\n\n"...)
	return s.write(b)
}

func (s *stream) write(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return s.gone
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(stallTimeout)) // not every writer has one
	_, err := s.c.w.Write(b)
	if err == nil {
		err = s.rc.Flush()
	}
	s.gone = err
	return err
}

// problem is the last event of a stream that failed.
func (s *stream) problem(err error) {
	p := problem.Of(err)
	p.Instance = s.c.id
	s.c.w.problem = p
	_ = s.send("", v1.EventProblem, p) // a caller who has gone misses it
}

// wantsEvents reports whether the caller asked for a stream.
func (c *call) wantsEvents() bool {
	return strings.Contains(c.r.Header.Get("Accept"), v1.EventStream)
}

// untilDrain is the request's context, which also ends when the server begins to stop: for what would never end by itself.
func (c *call) untilDrain() (context.Context, func()) {
	ctx, cancel := context.WithCancel(c.ctx())
	stop := context.AfterFunc(c.s.drain, cancel)
	return ctx, func() { stop(); cancel() }
}

// drained returns why something ended that would have gone on: the server stops, or err.
func (c *call) drained(err error) error {
	if err != nil && c.s.draining() {
		return closingError()
	}
	return err
}

// numbered is how an event is written.
type numbered[E any] func(e E) (seq int64, kind string)

// sendEvents streams numbered events from where the query, or the header, says; with follow also those to come.
func sendEvents[E any](c *call, events func(ctx context.Context, after int64, follow bool) iter.Seq2[E, error], number numbered[E]) error {
	after, follow := c.number("after", 0), c.flag("follow", true)
	if last := c.r.Header.Get(v1.HeaderLastEvent); last != "" {
		var err error
		if after, err = strconv.ParseInt(last, 10, 64); err != nil || after < 0 {
			return invalid("%s is not one that this server gave", v1.HeaderLastEvent)
		}
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	st := startStream(c)
	defer st.close()
	for e, err := range events(ctx, after, follow) {
		if err != nil {
			st.problem(c.drained(err))
			return nil
		}
		seq, kind := number(e)
		if st.send(strconv.FormatInt(seq, 10), kind, e) != nil {
			return nil
		}
	}
	if follow && c.s.draining() {
		st.problem(closingError())
		return nil
	}
	_ = st.send("", v1.EventEnd, none{})
	return nil
}

// sessionEvents tells what happened to a session, and with follow what happens.
func sessionEvents(c *call, ses *session.Session) error {
	events := func(ctx context.Context, after int64, follow bool) iter.Seq2[session.Event, error] {
		return ses.Events(ctx, session.EventsOptions{After: after, Follow: follow})
	}
	return sendEvents(c, events, func(e session.Event) (int64, string) { return e.Seq, v1.EventSession })
}

// closingError tells callers of streams why they end.
func closingError() error {
	return &v1.Error{Code: v1.CodeUnavailable, Op: "stream", Message: "the server is being stopped", Remedy: "connect again; what runs goes on", Retry: true}
}
