package prime

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox/prime/wire"
)

const (
	// createLimit bounds the wait until a sandbox runs. The service may build a virtual machine from a new image first.
	createLimit = 10 * time.Minute
	firstPoll   = 200 * time.Millisecond
	maxPoll     = 5 * time.Second
	// margin is how long before its end a token is renewed.
	margin = time.Minute
	// maxDir bounds making a directory.
	maxDir = 30 * time.Second
	// perPage is the number of sandboxes in a page of a list.
	perPage = 100
	// missing is how the gateway reports that it does not know a sandbox.
	missing = "sandbox_not_found"
)

// Process names of the guest at the service. Old versions of the service know the tag, later ones the UUID.
const (
	tag         = "recluse"
	sessionUUID = "0d9f4c1e-7a52-4d3b-9a5e-5c6b7265636c"
)

// States of a sandbox.
const (
	statePending      = "PENDING"
	stateProvisioning = "PROVISIONING"
	stateRunning      = "RUNNING"
	statePaused       = "PAUSED"
)

// newSandbox is the request for a sandbox.
type newSandbox struct {
	Name        string   `json:"name"`
	Image       string   `json:"docker_image"`
	CPUs        float64  `json:"cpu_cores"`
	Memory      float64  `json:"memory_gb"`
	VM          bool     `json:"vm"` // only these have command sessions and egress policies
	Allow       []string `json:"network_allowlist"`
	Timeout     int64    `json:"timeout_minutes"`
	Labels      []string `json:"labels"`
	Team        string   `json:"team_id,omitempty"`
	Region      string   `json:"region,omitempty"`
	Idempotency string   `json:"idempotency_key"`
}

// details describe a sandbox.
type details struct {
	ID           string   `json:"id"`
	Status       string   `json:"status"`
	Labels       []string `json:"labels"`
	ErrorType    string   `json:"errorType"`
	ErrorMessage string   `json:"errorMessage"`
}

// why returns why a sandbox does not run.
func (d details) why() string {
	s := d.Status
	if d.ErrorType != "" {
		s += " " + d.ErrorType
	}
	if d.ErrorMessage != "" {
		s += ": " + d.ErrorMessage
	}
	return s
}

// starting reports whether a sandbox may run later.
func (d details) starting() bool { return d.Status == statePending || d.Status == stateProvisioning }

type page struct {
	Sandboxes []details `json:"sandboxes"`
	HasNext   bool      `json:"hasNext"`
}

// egress is the network policy of a sandbox.
type egress struct {
	Policy struct {
		Allow []string `json:"allowlist"`
		Deny  []string `json:"denylist"`
	} `json:"policy"`
	Generation int64 `json:"generation"`
	Applied    int64 `json:"applied_generation"`
}

// access is what the gateway requires.
type access struct {
	Gateway   string    `json:"gateway_url"`
	Namespace string    `json:"user_ns"`
	Job       string    `json:"job_id"`
	Token     string    `json:"token"`
	Expires   time.Time `json:"expires_at"`
}

// provider is the client of the service.
type provider struct {
	remoteguest.FixedLife
	opts Options
	api  *remoteguest.API

	mu     sync.Mutex
	access map[string]access // guarded by mu; by ID of a sandbox
}

func newProvider(o Options, life remoteguest.FixedLife) *provider {
	return &provider{FixedLife: life, opts: o, access: map[string]access{}, api: &remoteguest.API{
		Name: Name, URL: o.URL + "/api/v1", Key: o.Key, HTTP: remoteguest.NewHTTPClient(),
		Header: func(h http.Header) { h.Set("Authorization", "Bearer "+o.Key) },
		Missing: func(status int, message string) bool {
			return status == http.StatusBadGateway && message == missing
		},
	}}
}

// Probe implements remoteguest.Provider.
func (p *provider) Probe(ctx context.Context) error {
	_, err := p.api.Call(ctx, http.MethodGet, "/sandbox?page=1&per_page=1", nil, &page{}, false)
	return err
}

func label(k, v string) string { return k + "=" + v }

func labelsOf(m map[string]string) (out []string) {
	for k, v := range m {
		out = append(out, label(k, v))
	}
	slices.Sort(out)
	return out
}

// Create implements remoteguest.Provider. The service makes one sandbox for all calls with the same idempotency key.
func (p *provider) Create(ctx context.Context, c remoteguest.Create) (remoteguest.Ref, error) {
	id := c.Labels[remoteguest.LabelSandbox]
	in := newSandbox{
		Name: "recluse-" + id, Image: cmp.Or(c.Spec.Image, p.opts.Image), CPUs: cores(c.Spec), Memory: gigabytes(c.Spec),
		VM: true, Allow: []string{}, Timeout: int64((c.Timeout + time.Minute - 1) / time.Minute), Labels: labelsOf(c.Labels),
		Team: p.opts.Team, Region: p.opts.Region, Idempotency: c.Labels[remoteguest.LabelInstance] + "-" + id,
	}
	var d details
	if _, err := p.api.Call(ctx, http.MethodPost, "/sandbox", in, &d, true); err != nil {
		return remoteguest.Ref{}, err
	}
	ref := remoteguest.Ref{ID: d.ID}
	if !remoteguest.ValidID(ref.ID) {
		return remoteguest.Ref{}, remoteguest.Broken(Name, "the answer has no valid ID of a sandbox", nil)
	}
	err := p.await(ctx, ref, in.Allow)
	if err == nil {
		err = p.makeDir(ctx, ref)
	}
	if err != nil { // there is a sandbox, which the caller finds by its labels
		return remoteguest.Ref{}, &remoteguest.UnsureError{Err: err}
	}
	return ref, nil
}

// await waits until a sandbox runs and its network policy is in force.
func (p *provider) await(ctx context.Context, ref remoteguest.Ref, allow []string) error {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	return poll(ctx, func() (bool, error) {
		d, err := p.get(ctx, ref)
		switch {
		case err != nil:
			return false, err
		case d.starting():
			return false, nil
		case d.Status != stateRunning:
			return false, remoteguest.Failure(Name, "that the sandbox does not run", d.why(), p.opts.Key)
		}
		var e egress
		if _, err := p.api.Call(ctx, http.MethodGet, "/sandbox/"+ref.ID+"/egress-policy", nil, &e, true); err != nil {
			return false, err
		}
		if e.Policy.Allow == nil || e.Policy.Deny != nil || !slices.Equal(e.Policy.Allow, allow) {
			return false, remoteguest.Broken(Name, "the service did not take the network policy of the sandbox", nil)
		}
		return e.Applied >= e.Generation, nil
	})
}

// poll calls f until it returns true or an error.
func poll(ctx context.Context, f func() (bool, error)) error {
	for pause := firstPoll; ; pause = min(2*pause, maxPoll) {
		if done, err := f(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return &v1.Error{
				Code: v1.CodeBackendMissing, Op: "call prime", Message: "the sandbox did not start in time", Retry: true,
				Err: ctx.Err(),
			}
		case <-time.After(pause):
		}
	}
}

func (p *provider) get(ctx context.Context, ref remoteguest.Ref) (d details, err error) {
	_, err = p.api.Call(ctx, http.MethodGet, "/sandbox/"+ref.ID, nil, &d, true)
	return d, err
}

// Find implements remoteguest.Provider.
func (p *provider) Find(ctx context.Context, labels map[string]string) ([]remoteguest.Remote, error) {
	q := url.Values{"labels": labelsOf(labels), "is_active": {"true"}, "per_page": {strconv.Itoa(perPage)}}
	if p.opts.Team != "" {
		q.Set("team_id", p.opts.Team)
	}
	var out []remoteguest.Remote
	for n := range remoteguest.MaxPages {
		q.Set("page", strconv.Itoa(n+1))
		var list page
		if _, err := p.api.Call(ctx, http.MethodGet, "/sandbox?"+q.Encode(), nil, &list, true); err != nil {
			return nil, err
		}
		for _, d := range list.Sandboxes {
			mine := remoteguest.ValidID(d.ID)
			for k, v := range labels { // a service that ignores the filter must not make us end others
				mine = mine && slices.Contains(d.Labels, label(k, v))
			}
			if mine && (d.starting() || d.Status == stateRunning || d.Status == statePaused) {
				out = append(out, remoteguest.Remote{
					Ref: remoteguest.Ref{ID: d.ID}, Labels: ours(d.Labels), Paused: d.Status == statePaused,
				})
			}
		}
		if !list.HasNext {
			return out, nil
		}
	}
	return nil, remoteguest.Broken(Name, "the list of sandboxes has no end", nil)
}

// ours returns the labels that Create sets.
func ours(all []string) map[string]string {
	out := map[string]string{}
	for _, k := range []string{remoteguest.LabelInstance, remoteguest.LabelSandbox} {
		for _, l := range all {
			if n := len(k) + 1; len(l) >= n && l[:n] == k+"=" {
				out[k] = l[n:]
			}
		}
	}
	return out
}

// Kill implements remoteguest.Provider.
func (p *provider) Kill(ctx context.Context, ref remoteguest.Ref) error {
	_, err := p.api.Call(ctx, http.MethodDelete, "/sandbox/"+ref.ID, nil, nil, true)
	p.forget(ref)
	if v1.CodeOf(err) == v1.CodeNotFound {
		return nil
	}
	return err
}

// at returns access to the gateway.
func (p *provider) at(ctx context.Context, ref remoteguest.Ref) (access, error) {
	p.mu.Lock()
	a, ok := p.access[ref.ID]
	p.mu.Unlock()
	if ok && time.Until(a.Expires) > margin {
		return a, nil
	}
	if _, err := p.api.Call(ctx, http.MethodPost, "/sandbox/"+ref.ID+"/auth", struct{}{}, &a, true); err != nil {
		return a, err
	}
	if err := remoteguest.CheckURL(Name, a.Gateway); err != nil || a.Token == "" {
		return a, remoteguest.Broken(Name, "the answer has no valid access to the gateway", err)
	}
	a.Gateway, _ = url.JoinPath(a.Gateway, url.PathEscape(a.Namespace), url.PathEscape(a.Job)) // it was parsed
	p.mu.Lock()
	p.access[ref.ID] = a
	p.mu.Unlock()
	return a, nil
}

// forget drops the access to a sandbox, so that the next call gets a new one.
func (p *provider) forget(ref remoteguest.Ref) {
	p.mu.Lock()
	delete(p.access, ref.ID)
	p.mu.Unlock()
}

func (a access) authorize(h http.Header) { h.Set("Authorization", "Bearer "+a.Token) }

// makeDir makes the directory of the guest, which uploads need.
func (p *provider) makeDir(ctx context.Context, ref remoteguest.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, maxDir)
	defer cancel()
	c, err := p.start(ctx, ref, "mkdir -p "+path.Dir(remoteguest.GuestPath("")), false)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	for {
		_, err := c.Receive()
		if e, ok := errors.AsType[*remoteguest.ExitError](err); ok && e.Code == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("make a directory: %w", err)
		}
	}
}

// Upload implements remoteguest.Provider. The file is the only part of a form.
func (p *provider) Upload(ctx context.Context, ref remoteguest.Ref, name string, r io.Reader, size int64) error {
	a, err := p.at(ctx, ref)
	if err != nil {
		return err
	}
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	if _, err := m.CreateFormFile("file", path.Base(name)); err != nil {
		return err
	}
	head := form.Len()
	if err := m.Close(); err != nil {
		return err
	}
	body := io.MultiReader(bytes.NewReader(form.Bytes()[:head]), r, bytes.NewReader(form.Bytes()[head:]))
	q := url.Values{"path": {name}, "sandbox_id": {ref.ID}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.Gateway+"/upload?"+q.Encode(), body)
	if err != nil {
		return err
	}
	req.ContentLength = size + int64(form.Len())
	req.Header.Set("Content-Type", m.FormDataContentType())
	a.authorize(req.Header)
	return p.api.Do(req, nil)
}

// rpc makes a request of a command session, with access to the gateway.
func rpc[In, Out any](ctx context.Context, p *provider, ref remoteguest.Ref, name string, in *In) (
	*connect.Client[In, Out], *connect.Request[In], error,
) {
	a, err := p.at(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	req := connect.NewRequest(in)
	a.authorize(req.Header())
	return connect.NewClient[In, Out](p.api.HTTP, a.Gateway+"/command_session.CommandSession/"+name,
		connect.WithReadMaxBytes(remoteguest.MaxAnswer)), req, nil
}

// failed returns the error of a call to the gateway. A refused token is forgotten: it may have expired early.
func (p *provider) failed(ref remoteguest.Ref, err error) error {
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		p.forget(ref)
	}
	return err
}

// Start implements remoteguest.Provider.
func (p *provider) Start(ctx context.Context, ref remoteguest.Ref, script string) (carrier.Pipe, error) {
	return p.start(ctx, ref, script, true)
}

func (p *provider) start(ctx context.Context, ref remoteguest.Ref, script string, guest bool) (carrier.Pipe, error) {
	in := &wire.StartRequest{
		Command: &wire.CommandSpec{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: &guest,
	}
	if guest {
		name, id := tag, sessionUUID
		in.Tag, in.SessionUuid = &name, &id
	}
	pipe, err := p.process(ref, func(ctx context.Context) (remoteguest.Events, error) {
		c, req, err := rpc[wire.StartRequest, wire.StartResponse](ctx, p, ref, "Start", in)
		if err != nil {
			return nil, err
		}
		s, err := c.CallServerStream(ctx, req)
		return remoteguest.EventsOf(s, err, func(r *wire.StartResponse) remoteguest.Event { return event(r.GetEvent()) })
	}).Connect(ctx)
	return pipe, p.failed(ref, err)
}

// errNoSession means that the guest's process is not among those of the sandbox.
var errNoSession = errors.New("there is no such process")

// Connect implements remoteguest.Provider.
func (p *provider) Connect(ctx context.Context, ref remoteguest.Ref) (carrier.Pipe, error) {
	pipe, err := p.process(ref, func(ctx context.Context) (remoteguest.Events, error) {
		pid, err := p.pid(ctx, ref)
		if err != nil {
			return nil, err
		}
		c, req, err := rpc[wire.ConnectRequest, wire.ConnectResponse](ctx, p, ref, "Connect",
			&wire.ConnectRequest{Session: session(pid)})
		if err != nil {
			return nil, err
		}
		s, err := c.CallServerStream(ctx, req)
		return remoteguest.EventsOf(s, err, func(r *wire.ConnectResponse) remoteguest.Event { return event(r.GetEvent()) })
	}).Connect(ctx)
	err = p.failed(ref, err)
	if err == nil || ctx.Err() != nil {
		return pipe, err
	}
	// Only the control plane knows whether there still is a sandbox.
	switch d, gone := p.get(ctx, ref); {
	case v1.CodeOf(gone) == v1.CodeNotFound:
		return nil, gone
	case gone != nil, d.starting():
		return nil, err
	case d.Status == statePaused:
		return nil, fmt.Errorf("the service has paused the sandbox: %w", err)
	case d.Status != stateRunning:
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "call prime", Message: "the sandbox is " + p.reason(ctx, ref, d)}
	case errors.Is(err, errNoSession):
		return nil, &remoteguest.ExitError{Status: "it is not among the processes of the sandbox"}
	}
	return nil, err
}

// reason returns why a sandbox has ended.
func (p *provider) reason(ctx context.Context, ref remoteguest.Ref, d details) string {
	var e struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	path := "/sandbox/" + ref.ID + "/error-context"
	if _, err := p.api.Call(ctx, http.MethodGet, path, nil, &e, false); err == nil {
		d.ErrorType, d.ErrorMessage = cmp.Or(e.Type, d.ErrorType), cmp.Or(e.Message, d.ErrorMessage)
	}
	return remoteguest.Clean(d.why(), p.opts.Key)
}

// pid returns the process ID of the guest.
func (p *provider) pid(ctx context.Context, ref remoteguest.Ref) (uint32, error) {
	c, req, err := rpc[wire.ListRequest, wire.ListResponse](ctx, p, ref, "List", &wire.ListRequest{})
	if err != nil {
		return 0, err
	}
	res, err := c.CallUnary(ctx, req)
	if err != nil {
		return 0, p.failed(ref, err)
	}
	for _, s := range res.Msg.GetSessions() {
		if s.GetSessionUuid() == sessionUUID || s.GetTag() == tag {
			return s.GetPid(), nil
		}
	}
	return 0, errNoSession
}

func session(pid uint32) *wire.CommandSessionSelector {
	return &wire.CommandSessionSelector{Selector: &wire.CommandSessionSelector_Pid{Pid: pid}}
}

// process returns how to connect to a process.
func (p *provider) process(
	ref remoteguest.Ref, open func(context.Context) (remoteguest.Events, error),
) remoteguest.Process {
	return remoteguest.Process{Name: Name, Open: open, Send: func(ctx context.Context, pid uint32, b []byte) error {
		c, req, err := rpc[wire.SendInputRequest, wire.SendInputResponse](ctx, p, ref, "SendInput", &wire.SendInputRequest{
			Session: session(pid),
			Input:   &wire.CommandInput{Input: &wire.CommandInput_Stdin{Stdin: b}},
		})
		if err != nil {
			return err
		}
		_, err = c.CallUnary(ctx, req)
		return p.failed(ref, err)
	}}
}

func event(e *wire.CommandSessionEvent) remoteguest.Event {
	out := remoteguest.Event{
		Started: e.GetStart() != nil, PID: e.GetStart().GetPid(),
		Stdout: e.GetData().GetStdout(), Stderr: e.GetData().GetStderr(),
	}
	if end := e.GetEnd(); end != nil {
		out.End = &remoteguest.ExitError{Status: end.GetStatus(), Code: int(end.GetExitCode())}
	}
	return out
}
