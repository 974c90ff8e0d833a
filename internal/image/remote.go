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

// How long a registry may take. There is no limit for a whole download, only for standing still.
const (
	dialTimeout    = 10 * time.Second
	headerTimeout  = 30 * time.Second
	stallTimeout   = 60 * time.Second
	retryFirstWait = 200 * time.Millisecond
	retryFactor    = 3
	retryAttempts  = 3
)

// registry is an image source at the other end of a network.
type registry struct {
	repo   name.Repository
	puller *remote.Puller
	stall  time.Duration
}

// openRegistry prepares to talk to the registry of ref, with the credentials of docker and podman; closeIdle drops its connections.
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

// find asks for the manifest that ref names now.
func (r *registry) find(ctx context.Context, ref name.Reference, arch string) (found, error) {
	desc, err := r.puller.Get(ctx, ref)
	if err != nil {
		return found{}, r.explain(ctx, err)
	}
	if d, ok := ref.(name.Digest); ok {
		if got := hashOf(desc.Manifest).String(); got != d.DigestStr() {
			return found{}, errorf(Corrupt, remedyCorrupt, "the registry answered with %s", got)
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

// blob asks the registry itself, never the URLs that a manifest may name: those could point into this machine's network.
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
		cancel(errorf(Unreachable, "try again", "the registry %s has sent nothing for %s", r.repo.RegistryStr(), r.stall))
	})
	b.timer.Stop()
	return b, nil
}

// remoteBlob watches over a download: the timer runs only while we wait for bytes, not while we write them.
type remoteBlob struct {
	body     io.ReadCloser
	registry *registry
	ctx      context.Context //nolint:containedctx // the download's own
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

// explain says what a failed request means.
func (r *registry) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		var e *api.Error
		switch cause := context.Cause(ctx); {
		case errors.As(cause, &e):
			return cause
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		default:
			return errorf(Unreachable, "allow more time or check the network", "the registry %s did not deliver in time: %w", r.repo.RegistryStr(), ctx.Err())
		}
	}
	var te *transport.Error
	if !errors.As(err, &te) {
		var ne net.Error
		if errors.As(err, &ne) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return errorf(Unreachable, "check the network, the proxy settings and the registry's name, or use an image archive", "the registry %s cannot be reached: %w", r.repo.RegistryStr(), err)
		}
		// What is left of go-containerregistry's own: a digest or size that does not fit.
		return errorf(Corrupt, remedyCorrupt, "the registry %s sent something else than was asked for: %w", r.repo.RegistryStr(), err)
	}
	switch code := te.StatusCode; {
	case code == http.StatusNotFound:
		return errorf(NotFound, "check name and tag", "the registry does not have it: %w", err)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return errorf(Denied, r.login()+", or check the name", "it is not for this user, or does not exist: %w", err)
	case code == http.StatusTooManyRequests:
		return errorf(Unreachable, "wait, or "+r.login(), "the registry limits how often one may ask: %w", err)
	case code >= 500:
		return errorf(Unreachable, "try again later", "the registry has trouble of its own: %w", err)
	}
	return errorf(Unreachable, "check that the name belongs to a container registry", "the registry refused: %w", err)
}

// login is what to type to be known to the registry.
func (r *registry) login() string {
	host := r.repo.RegistryStr()
	if host == name.DefaultRegistry {
		host = "docker.io" // as the docker command calls it
	}
	return "docker login " + host
}
