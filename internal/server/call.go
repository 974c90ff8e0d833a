package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// call is one request while it is answered.
type call struct {
	s      *Server
	w      *recorder
	r      *http.Request
	route  *route
	who    principal
	id     string
	query  url.Values
	byID   bool   // the path has the session's id instead of its name
	status int    // of the answer; 0: 200, or 204 without a body
	after  func() // called once the answer is out
	// readBy is when the next part of an upload must have arrived.
	readBy deadline
	// repeatable is the body once it was read for an idempotency key.
	repeatable *[]byte
	again      bool   // somebody began to answer it before
	request    string // its id, the same for each repetition under an idempotency key; empty: it has none
}

// none is the body of a request or answer that has none.
type none struct{}

// ctx is the request's context, marked with who acts.
func (c *call) ctx() context.Context { return c.r.Context() }

// logger returns the server's log with the request's id.
func (c *call) logger() *slog.Logger { return c.s.log.With("request", c.id) }

// making is ctx for what makes something, so that a repetition of the request finds it.
func (c *call) making() context.Context { return session.WithRequest(c.ctx(), c.request) }

// session finds the session the path names, under the caller's own tenant. One of another tenant is not there.
func (c *call) session() (*session.Session, error) {
	ses, err := c.s.manager.Get(c.ctx(), c.key())
	if err != nil {
		return nil, err
	}
	if c.who.sessionID != "" && ses.Info().ID != c.who.sessionID {
		return nil, c.unknownSession()
	}
	return ses, nil
}

func (c *call) key() session.Key {
	return session.Key{Tenant: c.who.tenant, Name: c.r.PathValue("session")}
}

// resolveSession replaces the id of a session in the path by the session's name. A token's holder learns no name by an id.
func (c *call) resolveSession() error {
	given := c.r.PathValue("session")
	if given == "" {
		return nil
	}
	name := given
	if c.who.session != "" {
		if given == c.who.sessionID {
			name, c.byID = c.who.session, true
		}
	} else {
		key, byID, err := c.s.manager.Resolve(c.ctx(), c.key())
		if err != nil {
			return err
		}
		name, c.byID = key.Name, byID
	}
	if name != given {
		c.r.SetPathValue("session", name)
	}
	return nil
}

// unknownSession is what the manager says of a name it does not know, for sessions that the caller may not know of.
func (c *call) unknownSession() error {
	return &v1.Error{
		Code: v1.CodeSessionNotFound, Op: "find session", Message: fmt.Sprintf("no session %q", c.r.PathValue("session")), Remedy: "list sessions, or open it",
	}
}

// decode reads a JSON body.
func decode[T any](c *call) (T, error) {
	var v T
	if reflect.TypeFor[T]() == reflect.TypeFor[none]() {
		return v, nil
	}
	raw, err := c.readBody()
	if err != nil {
		return v, err
	}
	if c.route.filled && len(bytes.TrimSpace(raw)) == 0 {
		return v, invalid("the body is empty")
	}
	return v, unmarshalRequest(raw, &v)
}

// readBody reads a body that is small and comes soon.
func (c *call) readBody() ([]byte, error) {
	if c.repeatable != nil {
		return *c.repeatable, nil
	}
	if c.r.ContentLength == 0 {
		return nil, nil
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(stallTimeout)) // not every connection has one
	raw, err := c.readAll()
	if err != nil {
		return nil, bodyError(err)
	}
	_ = rc.SetReadDeadline(time.Time{}) // or the request would be given up by it while it runs
	return raw, nil
}

// smallBody is up to which length a body gets a buffer of its size before it has arrived.
const smallBody = 64 << 10

// readAll reads a body up to the limit.
func (c *call) readAll() ([]byte, error) {
	limit := c.s.opts.Limits.Body
	if n := c.r.ContentLength; n > 0 && n <= min(limit, smallBody) {
		raw := make([]byte, n)
		_, err := io.ReadFull(c.r.Body, raw)
		return raw, err
	}
	return io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
}

func bodyError(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &v1.Error{
			Code: v1.CodeTooLarge, Op: "read request", Message: fmt.Sprintf("the body is larger than %d bytes", e.Limit),
			Remedy: "upload large things as files",
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &v1.Error{Code: v1.CodeBodyTimeout, Op: "read request", Message: "nothing of the body arrived for " + stallTimeout.String(), Retry: true}
	}
	return &v1.Error{Code: v1.CodeCancelled, Op: "read request", Message: "the body did not arrive", Retry: true, Err: err}
}

// reply writes a JSON answer.
func (c *call) reply(v any) error {
	if _, empty := v.(none); empty {
		if c.status == 0 {
			c.status = http.StatusNoContent
		}
		c.w.WriteHeader(c.status)
		return nil
	}
	b, err := encode(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	if c.status != 0 {
		c.w.WriteHeader(c.status)
	}
	_, _ = c.w.Write(append(b, '\n')) // a caller who has gone misses it
	return nil
}

// encode returns v as JSON. A type that encodes itself is called directly: package json would check and copy its text once more.
func encode(v any) ([]byte, error) {
	if m, ok := v.(json.Marshaler); ok {
		return m.MarshalJSON()
	}
	return json.Marshal(v)
}

// problem tells an error, unless the answer has begun: then the connection is cut, so that nobody takes half for the whole.
func (c *call) problem(err error) {
	p := problem.Of(err)
	c.w.problem = p
	if p.Status >= http.StatusInternalServerError {
		c.logger().Warn("request failed", "code", p.Code, "error", err)
	}
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	c.closeAfter(p)
	p.Instance = c.id
	problem.Write(c.w, p)
}

// closeAfter closes the connection behind the problem of a slow body: otherwise package http would wait for the rest of it first.
func (c *call) closeAfter(p v1.Problem) {
	if p.Status == http.StatusRequestTimeout {
		c.w.Header().Set("Connection", "close")
	}
}

// invalid is the error of a value that cannot be.
func invalid(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read request", Message: fmt.Sprintf(format, args...)}
}

// recorder notes what was answered, for log and metrics.
type recorder struct {
	http.ResponseWriter
	status  int
	bytes   int64
	problem v1.Problem
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController through.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
