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

// The times of a client, all in one place.
const (
	DefaultPatience = 10 * time.Second // for a server that does not answer, before a call is given up
	DefaultRateWait = time.Minute      // for a server that limits how often it may be asked, before a call is given up

	firstPause  = 20 * time.Millisecond // between attempts, doubled each time
	lastPause   = time.Second
	cancelWait  = 5 * time.Second  // for a cancel to be delivered
	verdictWait = 20 * time.Second // for the verdict of what was cancelled, beside its grace
	dialTimeout = 5 * time.Second
)

// Options makes a Client. Either URL or Socket is needed.
type Options struct {
	URL    string // e.g. http://127.0.0.1:7070
	Socket string // path of a UNIX socket
	Key    string // an API key or a session's token; not needed over a socket of one's own
	Tenant string // for whom an operator acts; empty: the key's own
	// HTTPClient is used instead of our own. It must not have a time-out, or cells end with it.
	HTTPClient *http.Client
	// Patience is how long a server that cannot be reached is tried again; 0: DefaultPatience, negative: not at all. Only what
	// is safe is tried again.
	Patience time.Duration
	// RateWait is how long a call waits, altogether, for a server that answers 429 with Retry-After; 0: DefaultRateWait, negative: not
	// at all. Such a request was refused before anything was done, so all are sent again.
	RateWait time.Duration
	// Waiting is called with each such wait before it begins. It may be nil.
	Waiting func(time.Duration)
	// Starting reports that somebody is about to start the server again: patience does not run out meanwhile. It may be nil.
	Starting func() bool
}

// Client speaks to one server. Its methods may be called from several goroutines.
type Client struct {
	opts Options
	base string
	http *http.Client
	own  *http.Transport // to close
}

// New makes a client. It does not connect.
func New(opts Options) (*Client, error) {
	c := &Client{opts: opts, base: strings.TrimRight(opts.URL, "/"), http: opts.HTTPClient}
	if (opts.URL == "") == (opts.Socket == "") {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make client", Message: "either a URL or a socket is needed"}
	}
	if opts.Patience == 0 {
		c.opts.Patience = DefaultPatience
	}
	c.opts.RateWait = cmp.Or(opts.RateWait, DefaultRateWait)
	dial := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if opts.Socket != "" {
		c.base = "http://recluse"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", opts.Socket)
		}
	} else if u, err := url.Parse(c.base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make client", Message: fmt.Sprintf("%q is no address of a server", opts.URL), Remedy: "write http://HOST:PORT"}
	}
	if c.http == nil {
		c.own = &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, DisableCompression: true, ForceAttemptHTTP2: true}
		c.own.ExpectContinueTimeout = time.Second // for uploads, which are announced
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

// request is one request and how it may be repeated.
type request struct {
	op     string
	method string
	path   string
	query  url.Values
	body   any       // JSON
	raw    io.Reader // instead of body; cannot be sent twice
	header map[string]string
	again  bool // harmless to repeat even if it may have been done
}

func get(op, path string, query url.Values) request {
	return request{op: op, method: http.MethodGet, path: path, query: query, again: true}
}

func post(op, path string, body any) request {
	return request{op: op, method: http.MethodPost, path: path, body: body}
}

func remove(op, path string) request {
	return request{op: op, method: http.MethodDelete, path: path}
}

// unsent reports whether the request can be sent again as a whole.
func (r request) unsent() bool {
	g, ok := r.raw.(*giver)
	return r.raw == nil || ok && !g.begun.Load()
}

// repeatable lets a request be sent again even if it may have been done: the server does it only once.
func (r request) repeatable() request {
	r.header, r.again = map[string]string{v1.HeaderIdempotency: randomID("")}, true
	return r
}

// ask sends a request and returns its JSON answer.
func ask[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out, none T
	if err := c.call(ctx, r, &out); err != nil {
		return none, err
	}
	return out, nil
}

// call sends a request and reads a JSON answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection is used again
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

// smallBody is up to which length an answer is read into a buffer of its size, and not into one that grows.
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

// decode decodes JSON into out. A type that decodes itself is called directly: package json would scan the text twice before it does so.
func decode(body []byte, out any) error {
	if u, ok := out.(json.Unmarshaler); ok {
		return u.UnmarshalJSON(body)
	}
	return json.Unmarshal(body, out)
}

// list iterates over a list that the server gives page by page. It ends after limit entries; 0: all.
func list[P, T any](ctx context.Context, c *Client, r request, limit int, of func(P) (page []T, next string)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		r.query = maps.Clone(r.query)
		if r.query == nil {
			r.query = url.Values{}
		}
		given := 0
		for {
			answer, err := ask[P](ctx, c, r)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			page, next := of(answer)
			for _, x := range page {
				given++
				if !yield(x, nil) || given == limit {
					return
				}
			}
			if next == "" {
				return
			}
			r.query.Set("after", next)
			r.query.Del("last") // it chose where the first page begins
		}
	}
}

// whole is a whole list. In JSON an empty one is a list, too.
func whole[T any](entries iter.Seq2[T, error]) ([]T, error) {
	out := []T{}
	for x, err := range entries {
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// pageSize is the size of the pages to ask for when limit entries are wanted; 0 means all.
func pageSize(limit int) string {
	const most = 1000
	if limit <= 0 || limit > most {
		limit = most
	}
	return strconv.Itoa(limit)
}

// send sends a request until the server answers, as long as patience and ctx allow. The answer is a success; problems are errors.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: r.op, Message: "the request cannot be written", Err: err}
		}
	}
	p := c.patience()
	for {
		res, err := c.once(ctx, r, body)
		if err == nil || r.raw != nil || !c.harmless(r, err) || !p.wait(ctx) {
			return res, err
		}
	}
}

// harmless reports whether a failed request may be sent again: it never arrived, was refused at the door, or does no harm twice.
func (c *Client) harmless(r request, err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	if !ok || !e.Retry {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	unsent := ok && op.Op == "dial"
	return e.Code == v1.CodeClosing || e.Code == v1.CodeUnavailable && (r.again || unsent)
}

// once sends a request, and waits before that for as long as the server asks it to.
func (c *Client) once(ctx context.Context, r request, body []byte) (*http.Response, error) {
	w := c.rateWait()
	for {
		res, header, err := c.attempt(ctx, r, body)
		if err == nil || !r.unsent() || !w.wait(ctx, header) {
			return res, err
		}
	}
}

// attempt sends a request. The header is that of an answer that asks to wait.
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
		return nil, nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: r.op, Message: "the request cannot be made", Err: err}
	}
	c.headers(ctx, req.Header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.raw != nil {
		req.Header.Set("Expect", "100-continue") // a request that is refused is then refused before its data is read
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	from, uploads := r.raw.(*giver)
	if uploads {
		from.answered.Store(false) // by an earlier attempt that was refused before it began
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
	return nil, limited(res), problem(r.op, res)
}

// headers says who asks, and carries the caller's trace on.
func (c *Client) headers(ctx context.Context, h http.Header) {
	if c.opts.Key != "" {
		h.Set("Authorization", "Bearer "+c.opts.Key)
	}
	if c.opts.Tenant != "" {
		h.Set(v1.HeaderTenant, c.opts.Tenant)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}

// problem reads the error of an answer: a problem, or what clients of OpenAI's expect.
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
		return &v1.Error{Code: v1.CodeTLS, Op: op, Message: "the server speaks TLS, and was asked without", Remedy: "write https:// in its address"}
	case err == nil && p.Code != "" && strings.HasPrefix(res.Header.Get("Content-Type"), v1.ProblemType):
		e := p.Err()
		e.Op = cmp.Or(e.Op, op)
		return e
	case err == nil && p.Error.Code != "":
		return &v1.Error{Code: p.Error.Code, Op: op, Message: p.Error.Message}
	}
	return &v1.Error{
		Code: v1.CodeProtocol, Op: op, Message: fmt.Sprintf("the server answered %s, and not as a recluse server would", res.Status),
		Retry: res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusServiceUnavailable || res.StatusCode == http.StatusGatewayTimeout,
	}
}

// unreachable is the error of a server that did not answer, or of a caller that gave up.
func unreachable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "given up", Err: ctx.Err()}
	}
	if e := tlsError(op, err); e != nil {
		return e
	}
	return &v1.Error{Code: v1.CodeUnavailable, Op: op, Message: "the server does not answer", Remedy: "is it running?", Retry: true, Err: err}
}

// startingMost is how long a server that is being started is waited for, again and again if need be: one may die over the very request.
const startingMost = 3 * time.Minute

// patience measures how long to go on trying.
type patience struct {
	Options
	until, latest time.Time
	pause         time.Duration
}

func (c *Client) patience() *patience {
	until := time.Now().Add(c.opts.Patience)
	return &patience{Options: c.opts, until: until, latest: until.Add(startingMost), pause: firstPause}
}

// wait waits before the next attempt, and reports whether there is to be one.
func (p *patience) wait(ctx context.Context) bool {
	starting := p.Starting != nil && p.Starting()
	if starting {
		p.until = time.Now().Add(p.Patience)
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

// rateWait measures how long to wait for a server that limits how often it may be asked.
type rateWait struct {
	left    time.Duration
	waiting func(time.Duration)
}

func (c *Client) rateWait() *rateWait {
	return &rateWait{left: c.opts.RateWait, waiting: c.opts.Waiting}
}

// limited returns the header of an answer that asks to wait, or nil.
func limited(res *http.Response) http.Header {
	if res.StatusCode == http.StatusTooManyRequests {
		return res.Header
	}
	return nil
}

// wait waits as the header of an answer asks, and reports whether the request is to be sent again.
func (w *rateWait) wait(ctx context.Context, h http.Header) bool {
	d, ok := retryAfter(h.Get("Retry-After"))
	if !ok || d > w.left {
		return false
	}
	w.left -= d
	if w.waiting != nil {
		w.waiting(d)
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

// retryAfter reads the value of a Retry-After header: seconds, or a time.
func retryAfter(value string) (time.Duration, bool) {
	if n, err := strconv.Atoi(value); err == nil && n >= 0 {
		return max(time.Duration(n)*time.Second, firstPause), true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), firstPause), true
	}
	return 0, false
}

// randomID names an operation or a request.
func randomID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }
