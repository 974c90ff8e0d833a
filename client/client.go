package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Times of a client.
const (
	DefaultRetryTime = 10 * time.Second // default of Options.RetryTime
	DefaultRateWait  = time.Minute      // default of Options.RateWait

	firstPause  = 20 * time.Millisecond // between the first two attempts; doubled each time
	lastPause   = time.Second           // longest pause between two attempts
	cancelWait  = 5 * time.Second       // timeout of a cancel request
	verdictWait = 20 * time.Second      // for the verdict of a cancelled operation, in addition to its grace
	dialTimeout = 5 * time.Second
)

// Options are the options of a Client. Exactly one of URL and Socket is required.
type Options struct {
	URL    string // such as http://127.0.0.1:7070
	Socket string // path of a UNIX socket
	Key    string // API key or session token; not needed over the socket of the user's own server
	Tenant string // tenant an operator acts for; empty: the tenant of the key
	// HTTPClient replaces the default HTTP client. It must not have a timeout, because cells would end with it.
	HTTPClient *http.Client
	// RetryTime is how long a call is retried while the server cannot be reached; 0: DefaultRetryTime, negative: no
	// retries. Only requests that are safe to repeat are retried.
	RetryTime time.Duration
	// RateWait is how long a call waits in total for a server that answers 429 with Retry-After; 0: DefaultRateWait,
	// negative: no waiting. All requests are retried then, because the server has refused them before doing anything.
	RateWait time.Duration
	// OnRateWait is called before each wait of RateWait, with its duration. It may be nil.
	OnRateWait func(time.Duration)
	// Starting reports whether another goroutine is starting the server again. RetryTime does not pass meanwhile. It
	// may be nil.
	Starting func() bool
}

// Client is a client of one server. Its methods are safe for concurrent use.
type Client struct {
	opts Options
	base string
	http *http.Client
	own  *http.Transport // transport of the default HTTP client, to be closed; else nil
}

// New returns a client. It does not connect.
func New(opts Options) (*Client, error) {
	c := &Client{opts: opts, base: strings.TrimRight(opts.URL, "/"), http: opts.HTTPClient}
	if (opts.URL == "") == (opts.Socket == "") {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make client", Message: "want either a URL or a socket"}
	}
	if opts.RetryTime == 0 {
		c.opts.RetryTime = DefaultRetryTime
	}
	c.opts.RateWait = cmp.Or(opts.RateWait, DefaultRateWait)
	dial := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if opts.Socket != "" {
		c.base = "http://recluse"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", opts.Socket)
		}
	} else if u, err := url.Parse(c.base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "make client",
			Message: fmt.Sprintf("invalid server URL %q", opts.URL),
			Remedy:  "use http://HOST:PORT or https://HOST:PORT",
		}
	}
	if c.http == nil {
		c.own = &http.Transport{
			DialContext:           dial,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			DisableCompression:    true,
			ForceAttemptHTTP2:     true,
			ExpectContinueTimeout: time.Second, // for uploads, which send Expect: 100-continue
		}
		if opts.Socket == "" {
			c.own.Proxy = http.ProxyFromEnvironment
		}
		c.http = &http.Client{Transport: c.own}
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// request is one request, with what decides whether it may be repeated.
type request struct {
	op     string
	method string
	path   string
	query  url.Values
	body   any       // sent as JSON
	raw    io.Reader // sent instead of body; cannot be sent twice
	header map[string]string

	idempotent bool // safe to repeat even if the server may have executed it
}

func get(op, path string, query url.Values) request {
	return request{op: op, method: http.MethodGet, path: path, query: query, idempotent: true}
}

func post(op, path string, body any) request {
	return request{op: op, method: http.MethodPost, path: path, body: body}
}

func remove(op, path string) request {
	return request{op: op, method: http.MethodDelete, path: path}
}

// resendable reports whether the complete request can be sent again: nothing of an upload has been read.
func (r request) resendable() bool {
	u, ok := r.raw.(*uploadReader)
	return r.raw == nil || ok && !u.begun.Load()
}

// repeatable returns the request with an idempotency key. It may be sent again, because the server executes it once.
func (r request) repeatable() request {
	r.header, r.idempotent = map[string]string{v1.HeaderIdempotency: randomID("")}, true
	return r
}

// callJSON sends a request and returns the decoded JSON answer.
func callJSON[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out, none T
	if err := c.call(ctx, r, &out); err != nil {
		return none, err
	}
	return out, nil
}

// call sends a request and decodes the JSON answer into out, unless out is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection can be reused
		return nil
	}
	body, err := readBody(res)
	if err == nil {
		err = decode(body, out)
	}
	if err != nil {
		return unreachable(ctx, r.op, err)
	}
	return nil
}

// smallBody is the maximum length of an answer for which a buffer of its exact size is allocated.
const smallBody = 64 << 10

// readBody reads the body of an answer.
func readBody(res *http.Response) ([]byte, error) {
	if n := res.ContentLength; n >= 0 && n <= smallBody {
		body := make([]byte, n)
		_, err := io.ReadFull(res.Body, body)
		return body, err
	}
	return io.ReadAll(res.Body)
}

// decode decodes JSON into out. It calls a json.Unmarshaler directly, because package json would scan the text twice
// first.
func decode(body []byte, out any) error {
	if u, ok := out.(json.Unmarshaler); ok {
		return u.UnmarshalJSON(body)
	}
	return json.Unmarshal(body, out)
}

// list iterates over a list that the server returns in pages. It ends after limit entries; 0: all.
func list[P, T any](
	ctx context.Context,
	c *Client,
	r request,
	limit int,
	of func(P) (page []T, next string),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		r.query = maps.Clone(r.query)
		if r.query == nil {
			r.query = url.Values{}
		}
		yielded := 0
		for {
			answer, err := callJSON[P](ctx, c, r)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			page, next := of(answer)
			for _, x := range page {
				yielded++
				if !yield(x, nil) || yielded == limit {
					return
				}
			}
			if next == "" {
				return
			}
			r.query.Set("after", next)
			r.query.Del("last") // applies to the first page only
		}
	}
}

// collect returns all entries. The result is never nil, so that an empty list is [] in JSON.
func collect[T any](entries iter.Seq2[T, error]) ([]T, error) {
	out := []T{}
	for x, err := range entries {
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// pageSize returns the page size to request for a list of limit entries; 0: all.
func pageSize(limit int) string {
	const maxPage = 1000
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	return strconv.Itoa(limit)
}

// send sends a request. While the server cannot be reached, it retries requests that mayRetry allows, until RetryTime
// or ctx ends. Answers with an error status are returned as errors.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: r.op, Message: "cannot encode the request", Err: err}
		}
	}
	retry := c.retryTimer()
	for {
		res, err := c.sendOnce(ctx, r, body)
		if err == nil || r.raw != nil || !c.mayRetry(r, err) || !retry.wait(ctx) {
			return res, err
		}
	}
}

// mayRetry reports whether a failed request may be sent again: it was not sent, the server refused it because it is
// closing, or it is idempotent.
func (c *Client) mayRetry(r request, err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	if !ok || !e.Retry {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	unsent := ok && op.Op == "dial"
	return e.Code == v1.CodeClosing || e.Code == v1.CodeUnavailable && (r.idempotent || unsent)
}

// sendOnce sends a request. It repeats the request only after 429, when the server says so with Retry-After.
func (c *Client) sendOnce(ctx context.Context, r request, body []byte) (*http.Response, error) {
	w := c.rateWait()
	for {
		res, header, err := c.attempt(ctx, r, body)
		if err == nil || !r.resendable() || !w.wait(ctx, header) {
			return res, err
		}
	}
}

// attempt sends a request. It returns the header of an answer 429, else nil.
func (c *Client) attempt(ctx context.Context, r request, body []byte) (*http.Response, http.Header, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var rd io.Reader
	if r.raw != nil {
		rd = r.raw
	} else if body != nil {
		rd = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, rd)
	if err != nil {
		return nil, nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: r.op, Message: "invalid request", Err: err}
	}
	c.headers(ctx, req.Header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.raw != nil {
		req.Header.Set("Expect", "100-continue") // the server can refuse the request before it reads the data
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	from, uploads := r.raw.(*uploadReader)
	if uploads {
		from.answered.Store(false) // set by an earlier attempt that was refused before the upload began
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, nil, unreachable(ctx, r.op, err)
	}
	if uploads {
		from.answered.Store(true)
	}
	if res.StatusCode < 300 {
		return res, nil, nil
	}
	defer res.Body.Close()
	return nil, rateLimitHeader(res), problem(r.op, res)
}

// headers sets the credentials, the tenant and the trace context of the caller.
func (c *Client) headers(ctx context.Context, h http.Header) {
	if c.opts.Key != "" {
		h.Set("Authorization", "Bearer "+c.opts.Key)
	}
	if c.opts.Tenant != "" {
		h.Set(v1.HeaderTenant, c.opts.Tenant)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}

// problem returns the error in an answer: an RFC 9457 problem, or an error in OpenAI's format.
func problem(op string, res *http.Response) error {
	var p struct {
		v1.Problem
		Error struct {
			Code    v1.Code `json:"code"`
			Message string  `json:"message"`
		} `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	switch {
	case res.StatusCode == http.StatusBadRequest && bytes.HasPrefix(text, []byte(plainToTLS)):
		return &v1.Error{
			Code:    v1.CodeTLS,
			Op:      op,
			Message: "the server requires TLS",
			Remedy:  "use https:// in the URL of the server",
		}
	case err == nil && p.Code != "" && strings.HasPrefix(res.Header.Get("Content-Type"), v1.ProblemType):
		e := p.Err()
		e.Op = cmp.Or(e.Op, op)
		return e
	case err == nil && p.Error.Code != "":
		return &v1.Error{Code: p.Error.Code, Op: op, Message: p.Error.Message}
	}
	return &v1.Error{
		Code:    v1.CodeProtocol,
		Op:      op,
		Message: fmt.Sprintf("answer %s is not from a recluse server", res.Status),
		Retry: res.StatusCode == http.StatusBadGateway ||
			res.StatusCode == http.StatusServiceUnavailable ||
			res.StatusCode == http.StatusGatewayTimeout,
	}
}

// unreachable returns the error for a server that does not answer, or for a cancelled ctx.
func unreachable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "cancelled by the caller", Err: ctx.Err()}
	}
	if e := tlsError(op, err); e != nil {
		return e
	}
	return &v1.Error{
		Code:    v1.CodeUnavailable,
		Op:      op,
		Message: "the server does not answer",
		Remedy:  "check that the server is running",
		Retry:   true,
		Err:     err,
	}
}

// maxStartWait is the total time to wait for servers that are being started. There may be several: a request can kill
// each server that executes it.
const maxStartWait = 3 * time.Minute

// retryTimer decides how long a call is retried.
type retryTimer struct {
	Options
	until  time.Time // end of RetryTime; moves while the server is being started
	latest time.Time // end of all retries
	pause  time.Duration
}

func (c *Client) retryTimer() *retryTimer {
	until := time.Now().Add(c.opts.RetryTime)
	return &retryTimer{Options: c.opts, until: until, latest: until.Add(maxStartWait), pause: firstPause}
}

// wait waits before the next attempt. It returns false if there must be no further attempt.
func (p *retryTimer) wait(ctx context.Context) bool {
	starting := p.Starting != nil && p.Starting()
	if starting {
		p.until = time.Now().Add(p.RetryTime)
	}
	if next := time.Now().Add(p.pause); !starting && next.After(p.until) || next.After(p.latest) {
		return false
	}
	t := time.NewTimer(p.pause)
	defer t.Stop()
	p.pause = min(2*p.pause, lastPause)
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// rateWait decides how long a call waits for a server that limits the rate of requests.
type rateWait struct {
	left   time.Duration
	onWait func(time.Duration)
}

func (c *Client) rateWait() *rateWait {
	return &rateWait{left: c.opts.RateWait, onWait: c.opts.OnRateWait}
}

// rateLimitHeader returns the header of an answer 429, else nil.
func rateLimitHeader(res *http.Response) http.Header {
	if res.StatusCode == http.StatusTooManyRequests {
		return res.Header
	}
	return nil
}

// wait waits for the time in Retry-After. It returns false if the request must not be sent again.
func (w *rateWait) wait(ctx context.Context, h http.Header) bool {
	d, ok := retryAfter(h.Get("Retry-After"))
	if !ok || d > w.left {
		return false
	}
	w.left -= d
	if w.onWait != nil {
		w.onWait(d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryAfter parses the value of a Retry-After header: seconds, or a time.
func retryAfter(value string) (time.Duration, bool) {
	if n, err := strconv.Atoi(value); err == nil && n >= 0 {
		return max(time.Duration(n)*time.Second, firstPause), true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), firstPause), true
	}
	return 0, false
}

// randomID returns a random id for an operation or a request.
func randomID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }
