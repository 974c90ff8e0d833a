// Package prime is the backend for sandboxes of Prime Intellect. See docs/backends/prime.md.
package prime

import (
	"cmp"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox"
)

// Name is the name of this backend.
const Name = "prime"

// DefaultURL is the address of the service, DefaultImage the image of its sandboxes.
const (
	DefaultURL   = "https://api.primeintellect.ai"
	DefaultImage = "python:3.12-slim"
)

// DefaultTimeout is the service-side timeout of a sandbox. The service cannot extend it, so it is the life of a
// sandbox.
const DefaultTimeout = time.Hour

// Limits of the service.
const (
	minGB = 0.1
)

// Options select the service and describe its sandboxes.
type Options struct {
	// URL is the address of the service. Empty: DefaultURL. It must be https, except on this machine.
	URL string
	// Key is the API key.
	Key string
	// Team is the team that pays. Empty: the owner of the key.
	Team string
	// Region of sandboxes. Empty: that of the service.
	Region string
	// Image of sandboxes whose spec has none. Empty: DefaultImage. It needs sh, sha256sum and Python.
	Image string
	// Isolation of the service's sandboxes. Empty: container.
	Isolation string
	// PriceCPU and PriceMemory are the estimated prices of a processor and of a GiB of memory, in dollars per hour. They
	// replace Remote.Price.
	PriceCPU    float64
	PriceMemory float64
	// Remote are the options of all services.
	Remote remoteguest.Options
}

// Backend makes sandboxes at the service.
type Backend struct {
	*remoteguest.Backend
	http *http.Client
}

// New returns the backend. It fails for invalid options; Health reports whether the service answers.
func New(o Options) (*Backend, error) {
	o.URL = strings.TrimSuffix(cmp.Or(o.URL, DefaultURL), "/")
	o.Image = cmp.Or(o.Image, DefaultImage)
	o.Isolation = cmp.Or(o.Isolation, sandbox.IsolationContainer.String())
	o.Remote.Timeout = cmp.Or(o.Remote.Timeout, DefaultTimeout)
	if err := remoteguest.CheckURL(Name, o.URL); err != nil {
		return nil, err
	}
	life := remoteguest.FixedLife{
		Service: Name, States: "containers, and virtual machines in part", Life: o.Remote.Timeout,
		ColdStart: 10 * time.Second,
	}
	if err := life.CheckLife(); err != nil {
		return nil, err
	}
	if err := life.Isolation.UnmarshalText([]byte(o.Isolation)); err != nil {
		return nil, err
	}
	if o.Key == "" {
		return nil, remoteguest.NoKey(Name, "set PRIME_API_KEY, or prime.api_key in the configuration", o.Remote)
	}
	p := newProvider(o, life)
	b, err := remoteguest.New(p, o.Remote)
	if err != nil {
		return nil, err
	}
	return &Backend{b, p.api.HTTP}, nil
}

// Close ends the attachments, and closes idle connections.
func (b *Backend) Close() error {
	defer b.http.CloseIdleConnections()
	return b.Backend.Close()
}

// PerHour implements remoteguest.Pricer.
func (p *provider) PerHour(spec sandbox.Spec) float64 {
	return cores(spec)*p.opts.PriceCPU + gigabytes(spec)*p.opts.PriceMemory
}

// cores returns the number of processors that the service understands.
func cores(spec sandbox.Spec) float64 { return max(minGB, spec.Limits.CPUs) }

// gigabytes returns the memory in the service's unit, in steps that it understands.
func gigabytes(spec sandbox.Spec) float64 {
	const step = 128 << 20
	return float64((spec.Limits.Memory+step-1)/step) / 8
}

// Arch implements remoteguest.Provider. A service on this machine has its processor.
func (p *provider) Arch() string {
	if u, err := url.Parse(p.opts.URL); err == nil && remoteguest.Loopback(u.Hostname()) {
		return runtime.GOARCH
	}
	return "amd64"
}
