package image

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	api "github.com/recluse-dev/recluse/api/v1"
)

// The timeouts for a registry. A whole download has no timeout, but it must not stall.
const (
	dialTimeout    = 10 * time.Second
	headerTimeout  = 30 * time.Second
	stallTimeout   = 60 * time.Second
	retryFirstWait = 200 * time.Millisecond
	retryFactor    = 3
	retryAttempts  = 3
)

// registry is an image source in a container registry.
type registry struct {
	repo   name.Repository
	puller *remote.Puller
	stall  time.Duration
}

// openRegistry returns a client for the registry of ref, with the credentials of docker and podman. closeIdle closes
// its idle connections.
func openRegistry(ref name.Reference) (r *registry, closeIdle func(), err error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		ExpectContinueTimeout: time.Second,
	}
	puller, err := remote.NewPuller(
		remote.WithTransport(t), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("recluse"),
		remote.WithRetryBackoff(remote.Backoff{Duration: retryFirstWait, Factor: retryFactor, Steps: retryAttempts}),
	)
	if err != nil {
		return nil, nil, asError(Invalid, "", err)
	}
	return &registry{repo: ref.Context(), puller: puller, stall: stallTimeout}, t.CloseIdleConnections, nil
}

// find gets the current manifest of ref.
func (r *registry) find(ctx context.Context, ref name.Reference, arch string) (found, error) {
	desc, err := r.puller.Get(ctx, ref)
	if err != nil {
		return found{}, r.explain(ctx, err)
	}
	if d, ok := ref.(name.Digest); ok {
		if got := hashOf(desc.Manifest).String(); got != d.DigestStr() {
			return found{}, errorf(Corrupt, remedyCorrupt, "the registry sent digest %s", got)
		}
	}
	return choose(ctx, r, desc.Manifest, desc.MediaType, arch)
}

func (r *registry) manifest(ctx context.Context, desc v1.Descriptor) ([]byte, error) {
	got, err := r.puller.Get(ctx, r.repo.Digest(desc.Digest.String()))
	if err != nil {
		return nil, r.explain(ctx, err)
	}
	return got.Manifest, nil
}

// blob gets a blob from the registry itself, never from the URLs in a manifest: those could point into the network of
// this machine.
func (r *registry) blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	layer, err := r.puller.Layer(ctx, r.repo.Digest(desc.Digest.String()))
	var body io.ReadCloser
	if err == nil {
		body, err = layer.Compressed()
	}
	if err != nil {
		err = r.explain(ctx, err)
		cancel(nil)
		return nil, err
	}
	b := &remoteBlob{body: body, registry: r, ctx: ctx, cancel: cancel}
	b.timer = time.AfterFunc(r.stall, func() {
		cancel(errorf(Unreachable, "retry", "the registry %s has sent nothing for %s", r.repo.RegistryStr(), r.stall))
	})
	b.timer.Stop()
	return b, nil
}

// remoteBlob is a download with a timeout for stalls. The timer only runs during a Read, not while the caller writes
// the data.
type remoteBlob struct {
	body     io.ReadCloser
	registry *registry
	ctx      context.Context //nolint:containedctx // of this download
	cancel   context.CancelCauseFunc
	timer    *time.Timer
}

func (b *remoteBlob) Read(p []byte) (int, error) {
	b.timer.Reset(b.registry.stall)
	n, err := b.body.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.registry.explain(b.ctx, err)
	}
	return n, err
}

func (b *remoteBlob) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.body.Close()
}

// explain converts the error of a failed request to a *api.Error, or returns the error of ctx.
func (r *registry) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		var e *api.Error
		switch cause := context.Cause(ctx); {
		case errors.As(cause, &e):
			return cause
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		default:
			return errorf(Unreachable, "raise the timeout or check the network",
				"the registry %s did not answer in time: %w", r.repo.RegistryStr(), ctx.Err())
		}
	}
	var te *transport.Error
	if !errors.As(err, &te) {
		var ne net.Error
		if errors.As(err, &ne) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return errorf(Unreachable,
				"check the network, the proxy settings and the registry's name, or use an image archive",
				"the registry %s cannot be reached: %w", r.repo.RegistryStr(), err)
		}
		// The other errors of go-containerregistry are a wrong digest and a wrong size.
		return errorf(Corrupt, remedyCorrupt, "the registry %s sent wrong content: %w", r.repo.RegistryStr(), err)
	}
	switch code := te.StatusCode; {
	case code == http.StatusNotFound:
		return errorf(NotFound, "check name and tag", "not found in the registry: %w", err)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return errorf(Denied, r.login()+", or check the name", "access denied, or the image does not exist: %w", err)
	case code == http.StatusTooManyRequests:
		return errorf(Unreachable, "wait, or "+r.login(), "rate limit of the registry exceeded: %w", err)
	case code >= 500:
		return errorf(Unreachable, "retry later", "server error of the registry: %w", err)
	}
	return errorf(Unreachable, "check that the name belongs to a container registry",
		"request rejected by the registry: %w", err)
}

// login returns the command that logs in to the registry.
func (r *registry) login() string {
	host := r.repo.RegistryStr()
	if host == name.DefaultRegistry {
		host = "docker.io" // the name that the docker command uses
	}
	return "docker login " + host
}
