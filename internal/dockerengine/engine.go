package dockerengine

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/cli/cli/connhelper"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// CodeRuntimeMissing says that the engine has no runtime of that name.
const CodeRuntimeMissing sandbox.Code = "runtime_missing"

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
	facts *Facts // guarded by mu; asked for once
}

// Open returns the engine that the options name. It does not dial yet.
func Open(o Options) (*Engine, error) {
	failed := func(host string, err error) error {
		return &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "find the Docker engine", Message: host, Err: err}
	}
	at, err := locate(o)
	if err != nil {
		return nil, failed("", err)
	}
	opts := []client.Opt{client.WithAPIVersionFromEnv(), client.WithUserAgent("recluse")}
	helper, err := connhelper.GetConnectionHelper(at.host)
	switch {
	case err != nil:
		return nil, failed(at.host, err)
	case helper != nil:
		opts = append(opts, client.WithHost(helper.Host), client.WithDialContext(helper.Dialer))
	case at.host != "":
		if at.tls != "" {
			key := func(name string) string { return filepath.Join(at.tls, name) }
			opts = append(opts, client.WithTLSClientConfig(key("ca.pem"), key("cert.pem"), key("key.pem")))
		} else if at.fromEnv {
			opts = append(opts, client.WithTLSClientConfigFromEnv())
		}
		opts = append(opts, client.WithHost(at.host))
	}
	cli, err := client.New(opts...)
	if err != nil {
		return nil, failed(at.host, err)
	}
	return &Engine{Client: cli, runtime: o.Runtime, labels: o.Labels}, nil
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
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	out := &sandbox.Error{Code: sandbox.CodeStartFailed, Op: op, Message: what, Err: err}
	switch {
	case ctx.Err() != nil:
		out.Code, out.Message, out.Err = sandbox.CodeCancelled, "given up", ctx.Err()
	case client.IsErrConnectionFailed(err):
		out.Code, out.Message, out.Retry = sandbox.CodeBackendMissing, "the Docker engine does not answer", true
		out.Remedy = "start it, or set DOCKER_HOST to the one to use"
	case errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "permission denied"):
		out.Code, out.Remedy = sandbox.CodeBackendMissing, "use an engine that this user may use"
	}
	return out
}
