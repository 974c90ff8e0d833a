// Package dockerengine is a Docker engine as the docker backend needs it: found as the docker command finds it,
// with what is known of it, images pulled with the user's credentials, a byte stream to a program in a container,
// and containers that are gone once they were removed. Podman's service speaks the same language with an accent;
// what has to be said or understood differently is here.
package dockerengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// CodeRuntimeMissing says that the engine has no runtime of that name.
const CodeRuntimeMissing v1.Code = "runtime_missing"

// Options says which engine to use.
type Options struct {
	Host    string // its address; empty: DOCKER_HOST, else the context
	Context string // of the docker command; empty: DOCKER_CONTEXT, else the one in use there
	Runtime string // of containers; empty: the engine's default; RuntimeAuto: see there
	// Labels are those of carriers.
	Labels map[string]string
}

// Engine is an engine's client, and what is known of the engine. Its methods may be called from several goroutines.
type Engine struct {
	*client.Client
	runtime string            // as Options
	labels  map[string]string // as Options

	mu    sync.Mutex
	facts *Facts                // guarded by mu; asked for once
	users map[imageUser]v1.User // guarded by mu
}

// Open returns the engine that the options name. It does not dial yet.
func Open(o Options) (*Engine, error) {
	ep, err := endpoint(o)
	var opts []client.Opt
	if err == nil {
		opts, err = ep.ClientOpts()
	}
	if ep.TLSData == nil && ep.Host != "" {
		opts = append([]client.Opt{tlsFromEnv(ep.Host)}, opts...)
	}
	var cli *client.Client
	if err == nil {
		cli, err = client.New(append(opts, client.WithUserAgent("recluse"))...)
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeBackendMissing, Op: "find the Docker engine", Message: ep.Host, Err: err}
	}
	return &Engine{Client: cli, runtime: o.Runtime, labels: o.Labels}, nil
}

// tlsFromEnv returns TLS as DOCKER_TLS_VERIFY and DOCKER_CERT_PATH ask for it. Without a path the keys are those of the docker command, as
// there; the client's own option would then speak in clear text.
func tlsFromEnv(host string) client.Opt {
	if os.Getenv(client.EnvTLSVerify) == "" || os.Getenv(client.EnvOverrideCertPath) != "" || !strings.HasPrefix(host, "tcp://") {
		return client.WithTLSClientConfigFromEnv()
	}
	dir := config.Dir()
	return client.WithTLSClientConfig(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
}

// endpoint chooses as the docker command does: the options, DOCKER_HOST, DOCKER_CONTEXT, the context in use. Without any
// of them its host is empty.
func endpoint(o Options) (ep docker.Endpoint, err error) {
	ep.Host = o.Host
	if o.Host == "" && o.Context == "" {
		ep.Host = os.Getenv(client.EnvOverrideHost)
	}
	if ep.Host != "" {
		return ep, nil
	}
	name := cmp.Or(o.Context, os.Getenv("DOCKER_CONTEXT"))
	if name == "" {
		f, err := config.Load(config.Dir())
		if err != nil {
			return ep, err
		}
		name = f.CurrentContext
	}
	if name == "" || name == "default" {
		return ep, nil
	}
	s := store.New(config.ContextStoreDir(), store.NewConfig(
		func() any { return &map[string]any{} },
		store.EndpointTypeGetter(docker.DockerEndpoint, func() any { return &docker.EndpointMeta{} }),
	))
	meta, err := s.GetMetadata(name)
	if err != nil {
		return ep, fmt.Errorf("docker context %q: %w", name, err)
	}
	at, err := docker.EndpointFromContext(meta)
	if err != nil {
		return ep, fmt.Errorf("docker context %q: %w", name, err)
	}
	return docker.WithTLSData(s, name, at)
}

// Local reports whether the engine sees this machine's directories and processes.
func (e *Engine) Local() bool {
	u, err := url.Parse(e.DaemonHost())
	return err == nil && (u.Scheme == "unix" || u.Scheme == "npipe")
}

// Failed wraps what could not be done, with a code that tells an engine that does not answer from one that
// refuses. A sandbox.Error stays as it is, and so does nil.
func Failed(ctx context.Context, op, what string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		return e
	}
	out := &v1.Error{Code: v1.CodeStartFailed, Op: op, Message: what, Err: err}
	switch {
	case ctx.Err() != nil:
		out.Code, out.Message, out.Err = v1.CodeCancelled, "given up", ctx.Err()
	case client.IsErrConnectionFailed(err):
		out.Code, out.Message, out.Retry = v1.CodeBackendMissing, "the Docker engine does not answer", true
		out.Remedy = "start it, or set DOCKER_HOST to the one to use"
	case errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "permission denied"):
		out.Code, out.Remedy = v1.CodeBackendMissing, "use an engine that this user may use"
	}
	return out
}
