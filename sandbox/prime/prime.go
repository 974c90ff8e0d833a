// Package prime is the backend for sandboxes of Prime Intellect. See docs/backends/prime.md.
package prime

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
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
	minTimeout = time.Minute
	maxTimeout = 24 * time.Hour
	minGB      = 0.1
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
	if t := o.Remote.Timeout; t < minTimeout || t > maxTimeout {
		return nil, &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "check prime options",
			Message: fmt.Sprintf("the timeout %s is not from %s to %s", t, minTimeout, maxTimeout),
		}
	}
	var level sandbox.Isolation
	if err := level.UnmarshalText([]byte(o.Isolation)); err != nil {
		return nil, err
	}
	if o.Key == "" {
		return nil, remoteguest.NoKey(Name, "set PRIME_API_KEY, or prime.api_key in the configuration", o.Remote)
	}
	p := newProvider(o, level)
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

// Capabilities implements remoteguest.Provider.
func (p *provider) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation:   p.isolation,
		Snapshots:   sandbox.SnapshotsNone,
		Egress:      sandbox.EgressNone,
		Images:      true,
		Python:      true,
		Bash:        true,
		Files:       true,
		PTY:         true,
		MaxLifetime: p.opts.Remote.Timeout,
		ColdStart:   10 * time.Second,
		Notes: []string{
			"the service states the isolation: containers, and virtual machines in part",
			fmt.Sprintf("the service ends a sandbox after %s (prime.timeout), and cannot extend it", p.opts.Remote.Timeout),
			"the service gives a sandbox the memory and processors of its limits; at the limit of memory, the sandbox may " +
				"end instead of the command. Limits on disk, processes and open files are refused",
			"the service blocks the network of its sandboxes; other network policies are refused",
			"code runs as the same user as the guest, so it can end its own sandbox",
		},
	}
}

// Check implements remoteguest.Provider.
func (p *provider) Check(spec sandbox.Spec) error {
	const remedy = "remove it from the spec, or use an image that has it"
	if len(spec.Volumes) > 0 {
		return backend.NotSupported(Name, "mount named volumes", remedy)
	}
	spec = backendkit.WithoutSize(spec) // the service has what is left out
	spec.Image = ""
	return backendkit.RefusePlain(Name, spec, remedy)
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

// Name implements remoteguest.Provider.
func (p *provider) Name() string { return Name }

// Arch implements remoteguest.Provider. A service on this machine has its processor.
func (p *provider) Arch() string {
	if u, err := url.Parse(p.opts.URL); err == nil && remoteguest.Loopback(u.Hostname()) {
		return runtime.GOARCH
	}
	return "amd64"
}
