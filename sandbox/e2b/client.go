package e2b

import (
	"context"
	"fmt"
	"io"
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

// tag is the name of the guest's process.
const tag = "recluse"

// provider is the client of the service.
type provider struct {
	opts      Options
	isolation sandbox.Isolation
	api       *remoteguest.API
}

func newProvider(o Options, level sandbox.Isolation) *provider {
	return &provider{opts: o, isolation: level, api: &remoteguest.API{
		Name: Name, URL: o.URL, Key: o.Key, HTTP: remoteguest.NewHTTPClient(),
		Header: func(h http.Header) { h.Set(wire.HeaderKey, o.Key) },
		Missing: func(status int, message string) bool {
			return status == http.StatusBadGateway && message == wire.SandboxNotFound
		},
	}}
}

// Close ends the attachments, and closes idle connections.
func (b *Backend) Close() error {
	defer b.http.CloseIdleConnections()
	return b.Backend.Close()
}

// Probe implements remoteguest.Provider.
func (p *provider) Probe(ctx context.Context) error {
	_, err := p.api.Call(ctx, http.MethodGet, "/v2/sandboxes?limit=1", nil, &[]wire.Details{}, false)
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
	if _, err := p.api.Call(ctx, http.MethodPost, "/v2/sandboxes", in, &a, false); err != nil {
		return remoteguest.Ref{}, err
	}
	if !remoteguest.ValidID(a.Sandbox) {
		return remoteguest.Ref{}, remoteguest.Broken(Name, "the answer has no valid ID of a sandbox", nil)
	}
	return remoteguest.Ref{ID: a.Sandbox, Token: a.Token, Domain: a.Domain}, nil
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
		mine := remoteguest.ValidID(d.Sandbox)
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
	for range remoteguest.MaxPages {
		var page []T
		h, err := p.api.Call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &page, true)
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
	return remoteguest.Broken(Name, "the list has no end", nil)
}

// Extend implements remoteguest.Provider.
func (p *provider) Extend(ctx context.Context, ref remoteguest.Ref, timeout time.Duration) error {
	in := map[string]int64{"timeout": int64(timeout / time.Second)}
	_, err := p.api.Call(ctx, http.MethodPost, "/sandboxes/"+ref.ID+"/timeout", in, nil, true)
	return err
}

// Kill implements remoteguest.Provider.
func (p *provider) Kill(ctx context.Context, ref remoteguest.Ref) error {
	_, err := p.api.Call(ctx, http.MethodDelete, "/sandboxes/"+ref.ID, nil, nil, true)
	if v1.CodeOf(err) == v1.CodeNotFound {
		return nil
	}
	return err
}

// Snapshot implements remoteguest.Snapshotter.
func (p *provider) Snapshot(ctx context.Context, ref remoteguest.Ref, name string) (string, error) {
	var out wire.SnapshotInfo
	in := map[string]string{"name": name}
	_, err := p.api.Call(ctx, http.MethodPost, "/sandboxes/"+ref.ID+"/snapshots", in, &out, false)
	if err == nil && out.ID == "" {
		err = remoteguest.Broken(Name, "the answer has no ID of a snapshot", nil)
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
	_, err := p.api.Call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(id), nil, nil, true)
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
	return p.api.Do(req, nil)
}

// rpc returns the client of a procedure of the process service.
func rpc[In, Out any](p *provider, ref remoteguest.Ref, name string) *connect.Client[In, Out] {
	return connect.NewClient[In, Out](p.api.HTTP, p.inside(ref)+"/process.Process/"+name,
		connect.WithReadMaxBytes(remoteguest.MaxAnswer))
}

// Start implements remoteguest.Provider. The request has no deadline: it would be that of the process.
func (p *provider) Start(ctx context.Context, ref remoteguest.Ref, script string) (carrier.Pipe, error) {
	stdin, name := true, tag
	req := connect.NewRequest(&wire.StartRequest{
		Process: &wire.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}},
		Tag:     &name,
		Stdin:   &stdin,
	})
	return p.process(ref, func(ctx context.Context) (remoteguest.Events, error) {
		p.headers(req.Header(), ref)
		s, err := rpc[wire.StartRequest, wire.StartResponse](p, ref, "Start").CallServerStream(ctx, req)
		return remoteguest.EventsOf(s, err, func(r *wire.StartResponse) remoteguest.Event { return event(r.GetEvent()) })
	}).Connect(ctx)
}

// Connect implements remoteguest.Provider.
func (p *provider) Connect(ctx context.Context, ref remoteguest.Ref) (carrier.Pipe, error) {
	req := connect.NewRequest(&wire.ConnectRequest{Process: theGuest()})
	pipe, err := p.process(ref, func(ctx context.Context) (remoteguest.Events, error) {
		p.headers(req.Header(), ref)
		s, err := rpc[wire.ConnectRequest, wire.ConnectResponse](p, ref, "Connect").CallServerStream(ctx, req)
		return remoteguest.EventsOf(s, err, func(r *wire.ConnectResponse) remoteguest.Event { return event(r.GetEvent()) })
	}).Connect(ctx)
	if err == nil || ctx.Err() != nil {
		return pipe, err
	}
	// Only the control plane knows whether there still is a sandbox.
	var d wire.Details
	_, gone := p.api.Call(ctx, http.MethodGet, "/sandboxes/"+ref.ID, nil, &d, false)
	if v1.CodeOf(gone) == v1.CodeNotFound {
		return nil, gone
	} else if gone == nil && connect.CodeOf(err) == connect.CodeNotFound && d.State == wire.StateRunning {
		return nil, &remoteguest.ExitError{Status: "it is not among the processes of the sandbox"}
	}
	return nil, err
}

func theGuest() *wire.ProcessSelector {
	return &wire.ProcessSelector{Selector: &wire.ProcessSelector_Tag{Tag: tag}}
}

// process returns how to connect to the guest's process.
func (p *provider) process(
	ref remoteguest.Ref, open func(context.Context) (remoteguest.Events, error),
) remoteguest.Process {
	return remoteguest.Process{Name: Name, Open: open, Send: func(ctx context.Context, _ uint32, b []byte) error {
		req := connect.NewRequest(&wire.SendInputRequest{
			Process: theGuest(),
			Input:   &wire.ProcessInput{Input: &wire.ProcessInput_Stdin{Stdin: b}},
		})
		p.headers(req.Header(), ref)
		_, err := rpc[wire.SendInputRequest, wire.SendInputResponse](p, ref, "SendInput").CallUnary(ctx, req)
		return err
	}}
}

func event(e *wire.ProcessEvent) remoteguest.Event {
	out := remoteguest.Event{
		Started: e.GetStart() != nil, Stdout: e.GetData().GetStdout(), Stderr: e.GetData().GetStderr(),
	}
	if end := e.GetEnd(); end != nil {
		out.End = &remoteguest.ExitError{Status: end.GetStatus(), Code: int(end.GetExitCode())}
	}
	return out
}
