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

	mu  sync.Mutex
	err error // guarded by mu; why nothing can be written any more
}

// startStream begins an event stream. From then on, problems are sent as events.
func startStream(c *call) *stream {
	h := c.w.Header()
	h.Set("Content-Type", v1.EventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx buffers the events
	c.w.WriteHeader(http.StatusOK)
	ctx, stop := context.WithCancel(c.ctx())
	s := &stream{c: c, rc: http.NewResponseController(c.w), stop: stop}
	_ = s.rc.Flush() // if this fails, the first event fails, too
	c.s.requests.Go(func() { s.sendHeartbeats(ctx) })
	return s
}

// sendHeartbeats sends comments regularly. They show the caller that the server is alive, and writing them detects that
// the caller has disconnected.
func (s *stream) sendHeartbeats(ctx context.Context) {
	t := time.NewTicker(heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = s.write([]byte(":\n\n")) // write stores the error
		}
	}
}

// close ends the stream. Nothing is written after it.
func (s *stream) close() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = http.ErrHandlerTimeout
	}
	_ = s.rc.SetWriteDeadline(time.Time{}) // the connection may serve more requests
}

// send writes an event. An error means that the caller has disconnected, or that v cannot be encoded.
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
	if s.err != nil {
		return s.err
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(stallTimeout)) // not every writer supports deadlines
	_, err := s.c.w.Write(b)
	if err == nil {
		err = s.rc.Flush()
	}
	s.err = err
	return err
}

// problem sends an error as the last event of the stream.
func (s *stream) problem(err error) {
	p := problem.Of(err)
	p.Instance = s.c.id
	s.c.w.problem = p
	_ = s.send("", v1.EventProblem, p) // the caller may have disconnected
}

// wantsEvents reports whether the caller accepts an event stream.
func (c *call) wantsEvents() bool {
	return strings.Contains(c.r.Header.Get("Accept"), v1.EventStream)
}

// untilDrain returns the request's ctx, which also ends when the server begins to stop. It is for requests that would
// otherwise never end. The caller must call the returned function.
func (c *call) untilDrain() (context.Context, func()) {
	ctx, cancel := context.WithCancel(c.ctx())
	stop := context.AfterFunc(c.s.drain, cancel)
	return ctx, func() { stop(); cancel() }
}

// drained replaces the error of a request that ended because the server stops. Otherwise it returns err.
func (c *call) drained(err error) error {
	if err != nil && c.s.draining() {
		return closingError()
	}
	return err
}

// eventHead returns the sequence number and the type of an event. An event with the number 0 is sent without an id.
type eventHead[E any] func(e E) (seq int64, kind string)

// sendEvents streams the events after the number in the header Last-Event-ID or in the query, and with follow also
// later events.
func sendEvents[E any](
	c *call, events func(ctx context.Context, after int64, follow bool) iter.Seq2[E, error], head eventHead[E],
) error {
	after, follow := c.number("after", 0), c.flag("follow", true)
	if last := c.r.Header.Get(v1.HeaderLastEvent); last != "" {
		var err error
		if after, err = strconv.ParseInt(last, 10, 64); err != nil || after < 0 {
			return invalid("invalid %s %.40q: want the id of an event", v1.HeaderLastEvent, last)
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
		seq, kind := head(e)
		id := ""
		if seq > 0 {
			id = strconv.FormatInt(seq, 10)
		}
		if st.send(id, kind, e) != nil {
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

// sessionEvents streams the past events of a session, and with follow also later ones.
func sessionEvents(c *call, ses *session.Session) error {
	events := func(ctx context.Context, after int64, follow bool) iter.Seq2[session.Event, error] {
		return ses.Events(ctx, session.EventsOptions{After: after, Follow: follow})
	}
	return sendEvents(c, events, func(e session.Event) (int64, string) { return e.Seq, v1.EventSession })
}

// closingError returns the error of streams that end because the server stops.
func closingError() error {
	return &v1.Error{
		Code:    v1.CodeUnavailable,
		Op:      "stream",
		Message: "the server is stopping; operations continue",
		Remedy:  "connect again",
		Retry:   true,
	}
}
