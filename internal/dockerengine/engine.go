// Package dockerengine is the client of a Docker engine for the docker backend. It finds the engine as the docker
// command does, queries its facts, pulls images with the user's credentials, opens a byte stream to a program in a
// container, and waits until removed containers are gone. Podman's service has the same API with small differences.
// This package handles these differences.
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

// CodeRuntimeMissing means that the Docker engine has no runtime of the configured name.
const CodeRuntimeMissing v1.Code = "runtime_missing"

// Options selects the Docker engine.
type Options struct {
	Host    string // address of the engine; empty: DOCKER_HOST, else the context
	Context string // context of the docker command; empty: DOCKER_CONTEXT, else the current context
	Runtime string // runtime of containers; empty: the engine's default; or RuntimeAuto
	// Labels are the labels of carriers.
	Labels map[string]string
}

// Engine is the client of a Docker engine, with the known facts about it. Its methods may be called from several
// goroutines.
type Engine struct {
	*client.Client
	runtime string            // as in Options
	labels  map[string]string // as in Options

	mu    sync.Mutex
	facts *Facts                // guarded by mu; queried once
	users map[imageUser]v1.User // guarded by mu
}

// Open returns the engine that the options select. It does not connect yet.
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

// tlsFromEnv returns the TLS option that DOCKER_TLS_VERIFY and DOCKER_CERT_PATH request. Without a path, it uses the
// keys of the docker command, as that command does. The client's own option would use plain text in that case.
func tlsFromEnv(host string) client.Opt {
	if os.Getenv(client.EnvTLSVerify) == "" || os.Getenv(client.EnvOverrideCertPath) != "" ||
		!strings.HasPrefix(host, "tcp://") {
		return client.WithTLSClientConfigFromEnv()
	}
	dir := config.Dir()
	return client.WithTLSClientConfig(
		filepath.Join(dir, "ca.pem"),
		filepath.Join(dir, "cert.pem"),
		filepath.Join(dir, "key.pem"),
	)
}

// endpoint selects the endpoint as the docker command does: the options, DOCKER_HOST, DOCKER_CONTEXT, the current
// context. Without any of them, the host of the endpoint is empty.
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

// Local reports whether the engine sees the directories and processes of this machine.
func (e *Engine) Local() bool {
	u, err := url.Parse(e.DaemonHost())
	return err == nil && (u.Scheme == "unix" || u.Scheme == "npipe")
}

// Failed wraps an error in a v1.Error whose code distinguishes an engine that does not answer from one that refuses.
// A v1.Error and nil are returned unchanged.
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
		out.Code, out.Message, out.Err = v1.CodeCancelled, "cancelled", ctx.Err()
	case client.IsErrConnectionFailed(err):
		out.Code, out.Message, out.Retry = v1.CodeBackendMissing, "the Docker engine does not answer", true
		out.Remedy = "start it, or set DOCKER_HOST to another Docker engine"
	case errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "permission denied"):
		out.Code, out.Remedy = v1.CodeBackendMissing, "use a Docker engine that this user may access"
	}
	return out
}
