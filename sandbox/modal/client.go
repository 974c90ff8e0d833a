package modal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/remoteguest"
)

const (
	callLimit = 30 * time.Second
	// createLimit bounds a create. The service may build an image first.
	createLimit = 10 * time.Minute
	// chunk is the size of what is read or sent at once.
	chunk = 1 << 20
)

// provider is the client of the service.
type provider struct {
	remoteguest.FixedLife
	opts   Options
	client *modal.Client

	mu    sync.Mutex
	boxes map[string]*modal.Sandbox // guarded by mu; by ID
}

func newProvider(o Options, life remoteguest.FixedLife, c *modal.Client) *provider {
	return &provider{FixedLife: life, opts: o, client: c, boxes: map[string]*modal.Sandbox{}}
}

// close closes the connections to the service and to the inside of sandboxes.
func (p *provider) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sb := range p.boxes {
		_ = sb.Detach() // never fails
	}
	p.client.Close()
}

// failed returns the error of a call of the SDK.
func (p *provider) failed(err error) error {
	if err == nil {
		return nil
	}
	what := status.Code(err)
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if is[modal.NotFoundError](err) || is[modal.ConflictError](err) { // a conflict: it has ended
		what = codes.NotFound
	}
	if is[modal.ResourceExhaustedError](err) {
		what = codes.ResourceExhausted
	}
	e := remoteguest.Failure(Name, what.String(), text, p.opts.TokenID, p.opts.TokenSecret)
	switch what {
	case codes.NotFound:
		e.Code = v1.CodeNotFound
	case codes.Unauthenticated, codes.PermissionDenied:
		e.Code, e.Remedy = v1.CodeUnauthorized, "check modal.token_id and modal.token_secret: they may be wrong or revoked"
	case codes.FailedPrecondition:
		e.Code, e.Remedy = v1.CodeQuotaExceeded, "the workspace may have no credit left, or have reached its budget"
	case codes.ResourceExhausted:
		e.Code, e.Retry, e.Remedy = v1.CodeRateLimited, true, "wait, or end sandboxes of the workspace"
	case codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange, codes.Unimplemented:
	default: // it may have had an effect
		e.Code, e.Retry = v1.CodeBackendMissing, true
		e.Remedy = "check the network and the status of the service"
		return &remoteguest.UnsureError{Err: e}
	}
	return e
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// Probe implements remoteguest.Provider.
func (p *provider) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := p.client.Apps.FromName(ctx, p.opts.App, &modal.AppFromNameParams{Environment: p.opts.Environment})
	if err = p.failed(err); v1.CodeOf(err) == v1.CodeNotFound {
		return nil // the first sandbox makes it
	}
	return err
}

func (p *provider) app(ctx context.Context) (*modal.App, error) {
	return p.client.Apps.FromName(ctx, p.opts.App, &modal.AppFromNameParams{
		Environment: p.opts.Environment, CreateIfMissing: true,
	})
}

// nameOf returns the name of a sandbox, which is unique in the app. It does not tell what it is made of, and others
// cannot guess it.
func nameOf(labels map[string]string) string {
	sum := sha256.Sum256([]byte(labels[remoteguest.LabelInstance] + "\x00" + labels[remoteguest.LabelSandbox]))
	return "recluse-" + hex.EncodeToString(sum[:16])
}

// Create implements remoteguest.Provider. The SDK repeats a request that fails with the same key, and the name is
// unique.
func (p *provider) Create(ctx context.Context, c remoteguest.Create) (remoteguest.Ref, error) {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	app, err := p.app(ctx)
	if err != nil {
		return remoteguest.Ref{}, p.failed(err)
	}
	image, err := p.client.Images.FromRegistry(cmp.Or(c.Spec.Image, p.opts.Image), nil).Build(ctx, app, nil)
	if err != nil {
		return remoteguest.Ref{}, p.failed(err)
	}
	params := &modal.SandboxCreateParams{
		CPU: cores(c.Spec), CPULimit: cores(c.Spec), MemoryMiB: mebibytes(c.Spec), MemoryLimitMiB: mebibytes(c.Spec),
		Timeout: c.Timeout.Round(time.Second), BlockNetwork: true, Name: nameOf(c.Labels), Tags: c.Labels,
		Command: []string{"/bin/sh", "-c", "while :; do sleep 3600; done"},
	}
	if p.opts.Region != "" {
		params.Regions = []string{p.opts.Region}
	}
	sb, err := p.client.Sandboxes.Create(ctx, app, image, params)
	if is[modal.AlreadyExistsError](err) { // by an earlier request whose answer was lost
		sb, err = p.client.Sandboxes.FromName(ctx, p.opts.App, params.Name, &modal.SandboxFromNameParams{
			Environment: p.opts.Environment,
		})
	}
	if err != nil {
		return remoteguest.Ref{}, p.failed(err)
	}
	if !remoteguest.ValidID(sb.SandboxID) {
		return remoteguest.Ref{}, remoteguest.Broken(Name, "the answer has no valid ID of a sandbox", nil)
	}
	p.mu.Lock()
	p.boxes[sb.SandboxID] = sb
	p.mu.Unlock()
	return remoteguest.Ref{ID: sb.SandboxID}, nil
}

// box returns a sandbox.
func (p *provider) box(ctx context.Context, ref remoteguest.Ref) (*modal.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sb := p.boxes[ref.ID]; sb != nil {
		return sb, nil
	}
	sb, err := p.client.Sandboxes.FromID(ctx, ref.ID, nil) // asks nobody
	if err == nil {
		p.boxes[ref.ID] = sb
	}
	return sb, p.failed(err)
}

// Find implements remoteguest.Provider.
func (p *provider) Find(ctx context.Context, labels map[string]string) ([]remoteguest.Remote, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	app, err := p.app(ctx)
	if err != nil {
		return nil, p.failed(err)
	}
	all, err := p.client.Sandboxes.List(ctx, &modal.SandboxListParams{AppID: app.AppID, Tags: labels})
	if err != nil {
		return nil, p.failed(err)
	}
	var out []remoteguest.Remote
	n := 0
	for sb, err := range all {
		if err != nil {
			return nil, p.failed(err)
		}
		if n++; n > remoteguest.MaxPages*100 {
			return nil, remoteguest.Broken(Name, "the list of sandboxes has no end", nil)
		}
		if !remoteguest.ValidID(sb.SandboxID) {
			continue
		}
		tags, err := sb.GetTags(ctx, nil)
		if err = p.failed(err); v1.CodeOf(err) == v1.CodeNotFound {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		mine := true
		for k, v := range labels { // a service that ignores the filter must not make us end others
			mine = mine && tags[k] == v
		}
		if mine {
			out = append(out, remoteguest.Remote{Ref: remoteguest.Ref{ID: sb.SandboxID}, Labels: tags})
		}
	}
	return out, nil
}

// Kill implements remoteguest.Provider.
func (p *provider) Kill(ctx context.Context, ref remoteguest.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sb, err := p.box(ctx, ref)
	if err != nil {
		return err
	}
	_, err = sb.Terminate(ctx, nil)
	if err = p.failed(err); err != nil && v1.CodeOf(err) != v1.CodeNotFound {
		return err
	}
	p.mu.Lock()
	delete(p.boxes, ref.ID)
	p.mu.Unlock()
	_ = sb.Detach() // never fails
	return nil
}

// run runs a command in a sandbox.
func (p *provider) run(ctx context.Context, ref remoteguest.Ref, args []string, stdout modal.StdioBehavior) (
	*modal.ContainerProcess, error,
) {
	sb, err := p.box(ctx, ref)
	if err != nil {
		return nil, err
	}
	c, err := sb.Exec(ctx, args, &modal.SandboxExecParams{Stdout: stdout})
	return c, p.failed(err)
}

// Upload implements remoteguest.Provider.
func (p *provider) Upload(ctx context.Context, ref remoteguest.Ref, name string, r io.Reader, _ int64) error {
	args := []string{"/bin/sh", "-c", `umask 022 && mkdir -p "${0%/*}" && cat >"$0"`, name}
	c, err := p.run(ctx, ref, args, modal.Ignore)
	if err != nil {
		return err
	}
	for b := make([]byte, chunk); err == nil; {
		var n int
		n, err = io.ReadFull(r, b)
		if n > 0 {
			if err := p.send(ctx, c, b[:n]); err != nil {
				return err
			}
		}
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if err := c.Stdin.Close(); err != nil {
		return p.failed(err)
	}
	return p.succeeded(ctx, c, "store a file")
}

// succeeded waits for the end of a command.
func (p *provider) succeeded(ctx context.Context, c *modal.ContainerProcess, what string) error {
	code, err := c.Wait(ctx, nil)
	if err != nil {
		return p.failed(err)
	}
	if code != 0 {
		text, _ := io.ReadAll(io.LimitReader(c.Stderr, chunk))
		return remoteguest.Failure(Name, "that it cannot "+what, string(text), p.opts.TokenSecret)
	}
	return nil
}

// send sends input. The SDK has no limit of time for that.
func (p *provider) send(ctx context.Context, c *modal.ContainerProcess, b []byte) error {
	done := make(chan error, 1)
	go func() {
		_, err := c.Stdin.Write(b)
		done <- err
	}()
	select {
	case err := <-done:
		return p.failed(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Start implements remoteguest.Provider.
func (p *provider) Start(ctx context.Context, ref remoteguest.Ref, script string) (carrier.Pipe, error) {
	c, err := p.run(ctx, ref, remoteguest.DetachArgs(script), modal.Ignore)
	if err != nil {
		return nil, err
	}
	if err := p.succeeded(ctx, c, "start the guest"); err != nil {
		return nil, err
	}
	return p.Connect(ctx, ref)
}

// Connect implements remoteguest.Provider. Each connection is a bridge.
func (p *provider) Connect(ctx context.Context, ref remoteguest.Ref) (carrier.Pipe, error) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, err := p.run(limited, ref, remoteguest.BridgeArgs(), modal.Pipe)
	if err == nil {
		return &pipe{p: p, c: c}, nil
	}
	if ctx.Err() == nil {
		if gone := p.gone(ctx, ref); gone != nil {
			return nil, gone
		}
	}
	return nil, err
}

// gone returns an error if a sandbox has ended.
func (p *provider) gone(ctx context.Context, ref remoteguest.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sb, err := p.box(ctx, ref)
	if err != nil {
		return nil
	}
	code, err := sb.Poll(ctx, nil)
	if err = p.failed(err); v1.CodeOf(err) == v1.CodeNotFound {
		return err
	}
	if err == nil && code != nil {
		return &v1.Error{Code: v1.CodeNotFound, Op: "call modal", Message: "the sandbox has ended"}
	}
	return nil
}

// pipe is a connection to the guest.
type pipe struct {
	p    *provider
	c    *modal.ContainerProcess
	buf  []byte
	once sync.Once
}

// Send implements carrier.Pipe.
func (c *pipe) Send(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.p.send(ctx, c.c, b)
}

// Receive implements carrier.Pipe.
func (c *pipe) Receive() ([]byte, error) {
	if c.buf == nil {
		c.buf = make([]byte, chunk)
	}
	n, err := c.c.Stdout.Read(c.buf)
	if n > 0 {
		return c.buf[:n], nil
	}
	if !errors.Is(err, io.EOF) {
		return nil, c.p.failed(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	code, err := c.c.Wait(ctx, nil)
	if err != nil {
		return nil, c.p.failed(err)
	}
	if code != remoteguest.ExitEnded {
		return nil, io.ErrUnexpectedEOF
	}
	text, _ := io.ReadAll(io.LimitReader(c.c.Stderr, chunk))
	return nil, &remoteguest.ExitError{Status: strings.TrimSpace(remoteguest.Clean(string(text), c.p.opts.TokenSecret))}
}

// Close implements carrier.Pipe.
func (c *pipe) Close() error {
	c.once.Do(func() { _ = c.c.Stdout.Close() })
	return nil
}
