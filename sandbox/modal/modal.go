// Package modal is the backend for sandboxes of Modal. See docs/backends/modal.md.
package modal

import (
	"cmp"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox"
)

// Name is the name of this backend.
const Name = "modal"

// Defaults of Options.
const (
	DefaultApp   = "recluse"
	DefaultImage = "python:3.12-slim"
	// DefaultTimeout is the service-side timeout of a sandbox. The service cannot extend it, so it is the life of a
	// sandbox.
	DefaultTimeout = time.Hour
)

const (
	minCores = 0.125
	// threads is the number of our processors in a core of the service.
	threads = 2
	// envURL is the variable in which the service's SDK finds its address.
	envURL = "MODAL_SERVER_URL"
)

// Options select the service and describe its sandboxes.
type Options struct {
	// TokenID and TokenSecret are the key.
	TokenID     string
	TokenSecret string
	// Environment of the workspace. Empty: the default one.
	Environment string
	// App is the app of the sandboxes, which is made if it is missing. Empty: DefaultApp.
	App string
	// Region of sandboxes. Empty: any.
	Region string
	// Image of sandboxes whose spec has none. Empty: DefaultImage. It needs sh, setsid, sha256sum and Python.
	Image string
	// PriceCPU and PriceMemory are the estimated prices of a physical core and of a GiB of memory, in dollars per hour.
	// They replace Remote.Price.
	PriceCPU    float64
	PriceMemory float64
	// Remote are the options of all services.
	Remote remoteguest.Options
}

// Backend makes sandboxes at the service.
type Backend struct {
	*remoteguest.Backend
	p *provider
}

// New returns the backend. It fails for invalid options; Health reports whether the service answers.
func New(o Options) (*Backend, error) {
	o.App, o.Image = cmp.Or(o.App, DefaultApp), cmp.Or(o.Image, DefaultImage)
	o.Remote.Timeout = cmp.Or(o.Remote.Timeout, DefaultTimeout)
	if at := os.Getenv(envURL); at != "" {
		if err := remoteguest.CheckURL(Name, at); err != nil {
			return nil, err
		}
	}
	life := remoteguest.FixedLife{
		Service: Name, Isolation: sandbox.IsolationKernel, States: "gVisor", Life: o.Remote.Timeout,
		ColdStart: 3 * time.Second,
	}
	if err := life.CheckLife(); err != nil {
		return nil, err
	}
	if o.TokenID == "" || o.TokenSecret == "" {
		const remedy = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or modal.token_id and modal.token_secret in the configuration"
		return nil, remoteguest.NoKey(Name, remedy, o.Remote)
	}
	client, err := modal.NewClientWithOptions(&modal.ClientParams{
		TokenID: o.TokenID, TokenSecret: o.TokenSecret, Environment: o.Environment, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "check modal options", Message: "the service's SDK refuses them", Err: err,
		}
	}
	p := newProvider(o, life, client)
	b, err := remoteguest.New(p, o.Remote)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &Backend{b, p}, nil
}

// Close ends the attachments, and closes connections.
func (b *Backend) Close() error {
	defer b.p.close()
	return b.Backend.Close()
}

// PerHour implements remoteguest.Pricer.
func (p *provider) PerHour(spec sandbox.Spec) float64 {
	return cores(spec)*p.opts.PriceCPU + float64(mebibytes(spec))/1024*p.opts.PriceMemory
}

// cores returns the number of physical cores.
func cores(spec sandbox.Spec) float64 { return max(minCores, spec.Limits.CPUs/threads) }

func mebibytes(spec sandbox.Spec) int { return int((spec.Limits.Memory + 1<<20 - 1) >> 20) }

// Arch implements remoteguest.Provider. A service on this machine has its processor.
func (p *provider) Arch() string {
	if u, err := url.Parse(os.Getenv(envURL)); err == nil && remoteguest.Loopback(u.Hostname()) {
		return runtime.GOARCH
	}
	return "amd64"
}
