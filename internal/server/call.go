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

// call is one request and its answer.
type call struct {
	s      *Server
	w      *recorder
	r      *http.Request
	route  *route
	who    principal
	id     string
	query  url.Values
	byID   bool   // the path has the session's id instead of its name
	status int    // status of the answer; 0: 200, or 204 without a body
	after  func() // called after the answer was sent
	// readBy is the deadline for the next part of an upload.
	readBy deadline
	// repeatable is the body, if it was read for an idempotency key.
	repeatable *[]byte
	repeated   bool   // an earlier request with the same idempotency key was started
	request    string // id that all repetitions under an idempotency key share; empty: no idempotency key
}

// none is the type of a missing request or answer body.
type none struct{}

// ctx returns the request's context, which names the caller as the actor.
func (c *call) ctx() context.Context { return c.r.Context() }

// logger returns the server's log with the request's id.
func (c *call) logger() *slog.Logger { return c.s.log.With("request", c.id) }

// making returns ctx for creating something, so that a repetition of the request finds what was created.
func (c *call) making() context.Context { return session.WithRequest(c.ctx(), c.request) }

// session returns the session that the path names, under the caller's own tenant. Sessions of other tenants are not
// found.
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

// resolveSession replaces the id of a session in the path by the session's name. The holder of a session token cannot
// find out names by ids.
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

// unknownSession returns the same error as the manager for an unknown name, for sessions whose existence the caller
// must not learn.
func (c *call) unknownSession() error {
	return &v1.Error{
		Code:    v1.CodeSessionNotFound,
		Op:      "find session",
		Message: fmt.Sprintf("no session %q", c.r.PathValue("session")),
		Remedy:  "list sessions, or open it",
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

// readBody reads a JSON body. It must arrive within stallTimeout and fit into Limits.Body.
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
	_ = rc.SetReadDeadline(time.Time{}) // otherwise the deadline would cancel the running request
	return raw, nil
}

// smallBody is the largest body whose buffer is allocated before the body has arrived.
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
			Code:    v1.CodeTooLarge,
			Op:      "read request",
			Message: fmt.Sprintf("the body is larger than %d bytes", e.Limit),
			Remedy:  "upload large data as files",
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &v1.Error{
			Code:    v1.CodeBodyTimeout,
			Op:      "read request",
			Message: "no part of the body arrived for " + stallTimeout.String(),
			Retry:   true,
		}
	}
	return &v1.Error{
		Code:    v1.CodeCancelled,
		Op:      "read request",
		Message: "the body did not arrive completely",
		Retry:   true,
		Err:     err,
	}
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
	_, _ = c.w.Write(append(b, '\n')) // the caller may have disconnected
	return nil
}

// encode returns v as JSON. It calls MarshalJSON directly if v has one: package json would check and copy the result
// again.
func encode(v any) ([]byte, error) {
	if m, ok := v.(json.Marshaler); ok {
		return m.MarshalJSON()
	}
	return json.Marshal(v)
}

// problem answers with an error. If the answer has already begun, it closes the connection, so that the caller does not
// take a partial answer for a complete one.
func (c *call) problem(err error) {
	p := problem.Of(err)
	c.w.problem = p
	if p.Status >= http.StatusInternalServerError && p.Code != v1.CodePortClosed { // no failure: callers wait for ports
		c.logger().Warn("request failed", "code", p.Code, "error", err)
	}
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	c.closeAfter(p)
	p.Instance = c.id
	problem.Write(c.w, p)
}

// closeAfter closes the connection after the problem of a slow body: otherwise package http would wait for the rest of
// the body first.
func (c *call) closeAfter(p v1.Problem) {
	if p.Status == http.StatusRequestTimeout {
		c.w.Header().Set("Connection", "close")
	}
}

// invalid returns an invalid_request error.
func invalid(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read request", Message: fmt.Sprintf(format, args...)}
}

// recorder records the status and size of the answer, for the log and metrics.
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

// Unwrap is used by http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
