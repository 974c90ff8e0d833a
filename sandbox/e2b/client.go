package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	callTimeout = 30 * time.Second
	// createTimeout is longer: the service may have to start a machine.
	createTimeout = 90 * time.Second
	// tries is how often a call without a lasting effect is made.
	tries     = 3
	tryPause  = 200 * time.Millisecond
	maxPause  = 5 * time.Second
	maxAnswer = 8 << 20 // the service is not trusted
	// maxPages bounds what is read of a list.
	maxPages = 100
	// tag is the name of the guest's process.
	tag = "recluse"
)

// provider is the client of the service.
type provider struct {
	opts      Options
	isolation sandbox.Isolation
	http      *http.Client
}

func newProvider(o Options, level sandbox.Isolation) *provider {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: createTimeout,
		MaxIdleConnsPerHost:   32,
		IdleConnTimeout:       30 * time.Second,
		DisableCompression:    true,
	}
	return &provider{opts: o, isolation: level, http: &http.Client{
		Transport: t,
		// A redirection would send the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close ends the attachments, and closes idle connections.
func (b *Backend) Close() error {
	defer b.http.CloseIdleConnections()
	return b.Backend.Close()
}

// call makes a call of the control plane. A call that is repeatable is made again if it fails for a while.
func (p *provider) call(ctx context.Context, method, path string, in, out any, repeatable bool) (http.Header, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	pause := tryPause
	for try := 1; ; try++ {
		h, wait, err := p.once(ctx, method, p.opts.URL+path, body, out)
		if err == nil || !repeatable || try == tries || !retryable(err) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(max(min(wait, maxPause), pause)):
		}
		pause *= 4
	}
}

func retryable(err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	return ok && e.Retry
}

func (p *provider) once(
	ctx context.Context, method, to string, body []byte, out any,
) (h http.Header, wait time.Duration, err error) {
	limit := callTimeout
	if method == http.MethodPost {
		limit = createTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set(wire.HeaderKey, p.opts.Key)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := p.http.Do(r)
	if err != nil {
		return nil, 0, unreachable(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, 0, unreachable(err)
	case len(b) > maxAnswer:
		return nil, 0, broken("the answer is too large", nil)
	case res.StatusCode/100 != 2:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return nil, time.Duration(seconds) * time.Second, p.failure(res.StatusCode, b)
	case out == nil:
		return res.Header, 0, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return nil, 0, broken("the answer is not valid", err)
	}
	return res.Header, 0, nil
}

// unreachable returns the error of a service that does not answer. The error of the HTTP client has the address, but
// neither key nor token.
func unreachable(err error) error {
	return &remoteguest.UnsureError{Err: &v1.Error{
		Code: v1.CodeBackendMissing, Op: "call e2b", Message: "the service does not answer",
		Remedy: "check e2b.api_url and the network", Retry: true, Err: err,
	}}
}

// broken returns the error of a service that breaks the protocol.
func broken(what string, err error) error {
	return &remoteguest.UnsureError{Err: &v1.Error{Code: v1.CodeProtocol, Op: "call e2b", Message: what, Err: err}}
}

// maxMessage is the length of a message of the service in our errors.
const maxMessage = 300

// failure returns the error for a status.
func (p *provider) failure(status int, body []byte) error {
	var f wire.Failure
	_ = json.Unmarshal(body, &f) // without a message, the status is all that is known
	text := strings.ToValidUTF8(f.Message[:min(len(f.Message), maxMessage)], "")
	if p.opts.Key != "" {
		text = strings.ReplaceAll(text, p.opts.Key, "***")
	}
	e := &v1.Error{
		Op:      "call e2b",
		Message: fmt.Sprintf("the service answers %d %s", status, http.StatusText(status)),
	}
	if text != "" {
		e.Message += fmt.Sprintf(": %q", text)
	}
	switch {
	case status == http.StatusBadGateway && f.Message == wire.SandboxNotFound, status == http.StatusNotFound:
		e.Code = v1.CodeNotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.Code, e.Remedy = v1.CodeUnauthorized, "check e2b.api_key: it may be wrong, expired or revoked"
	case status == http.StatusPaymentRequired:
		e.Code, e.Remedy = v1.CodeQuotaExceeded, "the account has no credit left, or reached a limit of its plan"
	case status == http.StatusTooManyRequests:
		e.Code, e.Retry, e.Remedy = v1.CodeRateLimited, true, "wait, or end sandboxes of the account"
	case status >= 500:
		e.Code, e.Retry = v1.CodeBackendMissing, true
		return &remoteguest.UnsureError{Err: e}
	default:
		e.Code = v1.CodeInvalidRequest
	}
	return e
}

// Probe implements remoteguest.Provider.
func (p *provider) Probe(ctx context.Context) error {
	_, err := p.call(ctx, http.MethodGet, "/v2/sandboxes?limit=1", nil, &[]wire.Details{}, false)
	return err
}

// Create implements remoteguest.Provider.
func (p *provider) Create(ctx context.Context, c remoteguest.Create) (remoteguest.Ref, error) {
	seconds, yes, no := int64(c.Timeout/time.Second), true, false
	in := wire.NewSandbox{
		Template: p.opts.Template, Metadata: c.Labels, Timeout: &seconds, Internet: &no, Secure: &yes,
	}
	if c.From != "" {
		in.Template = c.From
	}
	var a wire.Access
	if _, err := p.call(ctx, http.MethodPost, "/v2/sandboxes", in, &a, false); err != nil {
		return remoteguest.Ref{}, err
	}
	if !validID(a.Sandbox) {
		return remoteguest.Ref{}, broken("the answer has no valid ID of a sandbox", nil)
	}
	return remoteguest.Ref{ID: a.Sandbox, Token: a.Token, Domain: a.Domain}, nil
}

// validID reports whether an ID can be a part of a path and of a host name.
func validID(id string) bool {
	return id != "" && len(id) < 64 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// Find implements remoteguest.Provider.
func (p *provider) Find(ctx context.Context, labels map[string]string) ([]remoteguest.Remote, error) {
	metadata := url.Values{}
	for k, v := range labels {
		metadata.Set(k, v)
	}
	q := url.Values{
		"metadata": {metadata.Encode()}, "state": {wire.StateRunning + "," + wire.StatePaused},
	}
	var out []remoteguest.Remote
	err := pages(ctx, p, "/v2/sandboxes", q, func(d wire.Details) {
		mine := validID(d.Sandbox)
		for k, v := range labels {
			mine = mine && d.Metadata[k] == v // a service that ignores the filter must not make us end others
		}
		if mine {
			out = append(out, remoteguest.Remote{
				Ref: remoteguest.Ref{ID: d.Sandbox}, Labels: d.Metadata, Paused: d.State == wire.StatePaused,
			})
		}
	})
	return out, err
}

// pages calls each with the entries of a list.
func pages[T any](ctx context.Context, p *provider, path string, q url.Values, each func(T)) error {
	q.Set("limit", "100")
	for range maxPages {
		var page []T
		h, err := p.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &page, true)
		if err != nil {
			return err
		}
		for _, e := range page {
			each(e)
		}
		next := h.Get(wire.HeaderNext)
		if next == "" || next == q.Get("nextToken") {
			return nil
		}
		q.Set("nextToken", next)
	}
	return broken("the list has no end", nil)
}

// Extend implements remoteguest.Provider.
func (p *provider) Extend(ctx context.Context, ref remoteguest.Ref, timeout time.Duration) error {
	in := map[string]int64{"timeout": int64(timeout / time.Second)}
	_, err := p.call(ctx, http.MethodPost, "/sandboxes/"+ref.ID+"/timeout", in, nil, true)
	return err
}

// Kill implements remoteguest.Provider.
func (p *provider) Kill(ctx context.Context, ref remoteguest.Ref) error {
	_, err := p.call(ctx, http.MethodDelete, "/sandboxes/"+ref.ID, nil, nil, true)
	if v1.CodeOf(err) == v1.CodeNotFound {
		return nil
	}
	return err
}

// Snapshot implements remoteguest.Snapshotter.
func (p *provider) Snapshot(ctx context.Context, ref remoteguest.Ref, name string) (string, error) {
	var out wire.SnapshotInfo
	in := map[string]string{"name": name}
	_, err := p.call(ctx, http.MethodPost, "/sandboxes/"+ref.ID+"/snapshots", in, &out, false)
	if err == nil && out.ID == "" {
		err = broken("the answer has no ID of a snapshot", nil)
	}
	return out.ID, err
}

// Snapshots implements remoteguest.Snapshotter.
func (p *provider) Snapshots(ctx context.Context) (out []remoteguest.RemoteSnapshot, err error) {
	err = pages(ctx, p, "/snapshots", url.Values{}, func(s wire.SnapshotInfo) {
		out = append(out, remoteguest.RemoteSnapshot{ID: s.ID, Names: s.Names})
	})
	return out, err
}

// DeleteSnapshot implements remoteguest.Snapshotter.
func (p *provider) DeleteSnapshot(ctx context.Context, id string) error {
	_, err := p.call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(id), nil, nil, true)
	if v1.CodeOf(err) == v1.CodeNotFound || v1.CodeOf(err) == v1.CodeSnapshotNotFound {
		return nil
	}
	return err
}

// inside returns the address of the data plane of a sandbox. Its host name is made of the configured address only.
func (p *provider) inside(ref remoteguest.Ref) string {
	if p.opts.SandboxURL != "" {
		return p.opts.SandboxURL
	}
	if domain, ok := strings.CutPrefix(p.opts.URL, "https://api."); ok {
		return fmt.Sprintf("https://%d-%s.%s", wire.EnvdPort, ref.ID, domain)
	}
	return p.opts.URL
}

func (p *provider) headers(h http.Header, ref remoteguest.Ref) {
	h.Set(wire.HeaderSandbox, ref.ID)
	h.Set(wire.HeaderPort, strconv.Itoa(wire.EnvdPort))
	h.Set(wire.HeaderToken, ref.Token)
}

// Upload implements remoteguest.Provider.
func (p *provider) Upload(ctx context.Context, ref remoteguest.Ref, path string, r io.Reader, size int64) error {
	to := p.inside(ref) + "/files?" + url.Values{"path": {path}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, io.NopCloser(r))
	if err != nil {
		return err
	}
	p.headers(req.Header, ref)
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := p.http.Do(req)
	if err != nil {
		return unreachable(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return unreachable(err)
	}
	if res.StatusCode/100 != 2 {
		return p.failure(res.StatusCode, b)
	}
	return nil
}

// rpc returns the client of a procedure of the process service.
func rpc[In, Out any](p *provider, ref remoteguest.Ref, name string) *connect.Client[In, Out] {
	return connect.NewClient[In, Out](p.http, p.inside(ref)+"/process.Process/"+name, connect.WithReadMaxBytes(maxAnswer))
}

// Start implements remoteguest.Provider. The request has no deadline: it would be that of the process.
func (p *provider) Start(ctx context.Context, ref remoteguest.Ref, script string) (carrier.Pipe, error) {
	stdin, name := true, tag
	req := connect.NewRequest(&wire.StartRequest{
		Process: &wire.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}},
		Tag:     &name,
		Stdin:   &stdin,
	})
	return openEvents(ctx, p, ref, func(ctx context.Context) (events, error) {
		p.headers(req.Header(), ref)
		s, err := rpc[wire.StartRequest, wire.StartResponse](p, ref, "Start").CallServerStream(ctx, req)
		return serverStream[wire.StartResponse]{s, (*wire.StartResponse).GetEvent}, err
	})
}

// Connect implements remoteguest.Provider.
func (p *provider) Connect(ctx context.Context, ref remoteguest.Ref) (carrier.Pipe, error) {
	req := connect.NewRequest(&wire.ConnectRequest{Process: theGuest()})
	pipe, err := openEvents(ctx, p, ref, func(ctx context.Context) (events, error) {
		p.headers(req.Header(), ref)
		s, err := rpc[wire.ConnectRequest, wire.ConnectResponse](p, ref, "Connect").CallServerStream(ctx, req)
		return serverStream[wire.ConnectResponse]{s, (*wire.ConnectResponse).GetEvent}, err
	})
	if err == nil || ctx.Err() != nil {
		return pipe, err
	}
	// Only the control plane knows whether there still is a sandbox.
	var d wire.Details
	if _, gone := p.call(ctx, http.MethodGet, "/sandboxes/"+ref.ID, nil, &d, false); v1.CodeOf(gone) == v1.CodeNotFound {
		return nil, gone
	} else if gone == nil && connect.CodeOf(err) == connect.CodeNotFound && d.State == wire.StateRunning {
		return nil, &remoteguest.ExitError{Status: "it is not among the processes of the sandbox"}
	}
	return nil, err
}

func theGuest() *wire.ProcessSelector {
	return &wire.ProcessSelector{Selector: &wire.ProcessSelector_Tag{Tag: tag}}
}

// events are the events of a process.
type events interface {
	Receive() bool
	Event() *wire.ProcessEvent
	Err() error
	Close() error
}

type serverStream[T any] struct {
	*connect.ServerStreamForClient[T]
	event func(*T) *wire.ProcessEvent
}

// Event returns the event that Receive has read.
func (s serverStream[T]) Event() *wire.ProcessEvent { return s.event(s.Msg()) }

// pipe is a connection to the guest's process.
type pipe struct {
	p      *provider
	ref    remoteguest.Ref
	events events
	cancel context.CancelFunc
	stderr []byte // the last line of the error output
}

// openEvents opens the stream of events, and waits for the first one. ctx bounds only that.
func openEvents(
	ctx context.Context, p *provider, ref remoteguest.Ref, call func(context.Context) (events, error),
) (carrier.Pipe, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(callTimeout, cancel)
	e, err := call(life)
	if err == nil && !e.Receive() {
		if err = e.Err(); err == nil {
			err = broken("the stream of events ended without an event", nil)
		}
		_ = e.Close()
	}
	if err == nil && e.Event().GetStart() == nil {
		err = broken("the stream of events does not begin with the start of the process", nil)
		_ = e.Close()
	}
	if early := !timer.Stop(); !stop() || early {
		err = cmp.Or(ctx.Err(), err, context.DeadlineExceeded)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &pipe{p: p, ref: ref, events: e, cancel: cancel}, nil
}

// Send implements carrier.Pipe.
func (c *pipe) Send(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := connect.NewRequest(&wire.SendInputRequest{
		Process: theGuest(),
		Input:   &wire.ProcessInput{Input: &wire.ProcessInput_Stdin{Stdin: b}},
	})
	c.p.headers(req.Header(), c.ref)
	_, err := rpc[wire.SendInputRequest, wire.SendInputResponse](c.p, c.ref, "SendInput").CallUnary(ctx, req)
	return err
}

// Receive implements carrier.Pipe.
func (c *pipe) Receive() ([]byte, error) {
	for c.events.Receive() {
		switch e := c.events.Event().GetEvent().(type) {
		case *wire.ProcessEvent_Data:
			if b := e.Data.GetStdout(); len(b) > 0 {
				return b, nil
			}
			c.stderr = append(c.stderr, e.Data.GetStderr()...)
			c.stderr = c.stderr[max(0, len(c.stderr)-maxMessage):]
		case *wire.ProcessEvent_End:
			lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(c.stderr), "?")), "\n")
			_ = c.events.Close()
			return nil, &remoteguest.ExitError{
				Status: e.End.GetStatus(), Code: int(e.End.GetExitCode()), Text: lines[len(lines)-1],
			}
		}
	}
	err := c.events.Err()
	_ = c.events.Close()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

// Close implements carrier.Pipe.
func (c *pipe) Close() error {
	c.cancel()
	return nil
}
