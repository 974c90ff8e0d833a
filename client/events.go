package client

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// listen calls fn with server-sent events until the stream ends normally, ctx ends or fn returns an error. A stream
// that breaks is continued after the last event with an id.
func (c *Client) listen(ctx context.Context, r request, fn func(v1.StreamEvent) error) error {
	retry := c.retryTimer()
	for {
		received, err := c.listenOnce(ctx, r, fn)
		if err == nil || !interrupted(err) {
			return err
		}
		if received {
			retry = c.retryTimer()
		}
		if !retry.wait(ctx) {
			if ctx.Err() != nil {
				return unreachable(ctx, r.op, ctx.Err())
			}
			return err
		}
	}
}

func (c *Client) listenOnce(ctx context.Context, r request, fn func(v1.StreamEvent) error) (received bool, err error) {
	res, err := c.sendOnce(ctx, r, nil)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	in := v1.NewEventReader(res.Body)
	for {
		e, err := in.Next()
		if err != nil {
			return received, unreachable(ctx, r.op, err)
		}
		received = true
		switch e.Kind {
		case v1.EventEnd:
			return true, nil
		case v1.EventProblem:
			var p v1.Problem
			if err := e.Decode(&p); err != nil {
				return true, malformed(r.op, err)
			}
			return true, p.Err()
		}
		if err := fn(e); err != nil {
			return true, err
		}
		if e.ID != "" {
			r.header[v1.HeaderLastEvent] = e.ID
		}
	}
}

// errStop ends listen when the caller of events stops the iteration.
var errStop = errors.New("stop")

// events iterates over events of one type.
func events[E any](ctx context.Context, c *Client, op, path string, query url.Values) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		r := get(op, path, query)
		r.header = map[string]string{"Accept": v1.EventStream}
		err := c.listen(ctx, r, func(e v1.StreamEvent) error {
			var ev E
			if err := e.Decode(&ev); err != nil {
				return malformed(op, err)
			}
			if !yield(ev, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			var none E
			yield(none, err)
		}
	}
}

// Events iterates over the events of the session.
func (s *Session) Events(ctx context.Context, o v1.EventsOptions) iter.Seq2[v1.SessionEvent, error] {
	q := url.Values{"after": {strconv.FormatInt(o.After, 10)}, "follow": {strconv.FormatBool(o.Follow)}}
	return events[v1.SessionEvent](ctx, s.c, "follow events", s.path+"/events", q)
}
