package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/session"
)

// makeMux builds the mux from the table of routes. A request with an unsupported method is answered with the methods
// that the path supports.
func (s *Server) makeMux() *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for i := range s.routes {
		r := &s.routes[i]
		if r.proxy { // see portPath
			continue
		}
		methods[r.path] = append(methods[r.path], r.method)
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, req *http.Request) { s.dispatch(w, req, r) })
	}
	for path, have := range methods {
		allow := strings.Join(slices.Sorted(slices.Values(have)), ", ")
		r := noRoute(path, &v1.Error{Code: v1.CodeMethod, Op: "find route", Message: "unsupported method; use " + allow})
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			if s.cors.preflight(w, req, allow) {
				return
			}
			w.Header().Set("Allow", allow)
			s.dispatch(w, req, r)
		})
	}
	nowhere := noRoute("unknown", &v1.Error{
		Code:    v1.CodeNoRoute,
		Op:      "find route",
		Message: "unknown path",
		Remedy:  "/v1/openapi.json lists the routes",
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { s.dispatch(w, req, nowhere) })
	return mux
}

// noRoute returns the route of requests that have none. In the log and the metrics it has a fixed name: callers could
// send any number of paths.
func noRoute(path string, err error) *route { return &route{method: "other", path: path, missing: err} }

// serve is the handler of all requests.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	defer s.requests.Done()
	unix := peerOf(r.Context()).unix
	switch to, _ := s.hosts.portOf(r.Host); {
	case !unix && s.hosts.foreign(r):
		s.dispatch(w, r, noRoute("unknown", unknownHost(r.Host)))
	case s.front != nil && s.claims(r):
		s.front.ServeHTTP(w, r)
	case to.port != 0:
		s.servePort(w, r, to)
	default:
		if rt := s.portPath(r); rt != nil {
			s.dispatch(w, r, rt)
			return
		}
		s.mux.ServeHTTP(w, r)
	}
}

// dispatch authenticates the caller and runs the handler of the route.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, rt *route) {
	began := time.Now()
	c := &call{s: s, w: &recorder{ResponseWriter: w}, r: r, route: rt, id: ids.Hex(8)}
	c.w.Header().Set(v1.HeaderRequest, c.id)
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	s.cors.mark(c.w, r)
	span := s.startSpan(c)
	s.metrics.inFlight.Inc()
	defer func() {
		aborted := recover()
		if aborted != nil && aborted != http.ErrAbortHandler { //nolint:errorlint // package http panics with this value
			c.logger().Error("a handler panicked", "panic", aborted, "stack", string(debug.Stack()))
			if c.w.status == 0 {
				problem.Write(c.w, problem.Of(errors.New("panic")))
				aborted = nil
			}
		}
		took := time.Since(began)
		s.metrics.inFlight.Dec()
		s.metrics.request(rt, c.w.status, took)
		endSpan(span, c)
		c.logRequest(took)
		if c.after != nil {
			c.after()
		}
		if aborted != nil {
			panic(http.ErrAbortHandler)
		}
	}()
	if err := c.answer(); err != nil {
		c.problem(err)
	}
}

func (c *call) answer() error {
	if c.route.missing != nil {
		return c.route.missing
	}
	if err := c.admit(); err != nil {
		return err
	}
	if err := c.readQuery(); err != nil {
		return err
	}
	ctx := session.WithActor(c.r.Context(), c.who.asActor())
	if !c.route.long {
		limited, cancel := context.WithTimeoutCause(ctx, c.s.opts.Limits.Time, errTooLong)
		defer cancel()
		ctx = limited
	}
	c.r = c.r.WithContext(ctx)
	var err error
	if c.route.repeatable {
		err = c.s.idempotency.once(c, func() error { return c.route.handle(c) })
	} else {
		err = c.route.handle(c)
	}
	if err != nil && errors.Is(context.Cause(ctx), errTooLong) && v1.CodeOf(err) != v1.CodeBodyTimeout {
		return &v1.Error{
			Code:    v1.CodeRequestTime,
			Op:      "answer",
			Message: "the request took longer than " + c.s.opts.Limits.Time.String(),
			Retry:   true,
			Err:     err,
		}
	}
	return err
}

var errTooLong = errors.New("the request took too long")

// admit authenticates the caller, and checks its rate and its scope.
func (c *call) admit() error {
	if c.route.scope == scopeNone {
		return nil
	}
	who, err := c.s.authenticate(c.r)
	if err != nil {
		return err
	}
	c.who = who
	if wait, err := c.s.rates.take(who.rate); err != nil {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return err
	}
	if err := c.resolveSession(); err != nil {
		return err
	}
	return c.allow()
}

// logRequest logs one line. It contains neither query nor body, which may be confidential.
func (c *call) logRequest(took time.Duration) {
	if !c.s.log.Enabled(c.ctx(), levelRequests) {
		return
	}
	attrs := []any{
		"method", c.route.method, "route", c.route.path, "status", c.w.status, "took", took, "bytes", c.w.bytes,
	}
	if c.who.actor != "" {
		attrs = append(attrs, "tenant", c.who.tenant, "actor", c.who.actor)
	}
	if name := c.r.PathValue("session"); name != "" {
		attrs = append(attrs, "session", name)
	}
	if c.w.problem.Code != "" {
		attrs = append(attrs, "code", c.w.problem.Code)
	}
	c.logger().Log(c.ctx(), levelRequests, "request", attrs...)
}
