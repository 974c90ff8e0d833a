// Package e2b is the backend for services with the API of E2B: E2B's cloud, E2B on your own machines, and the server of
// this project. See docs/backends/e2b.md.
package e2b

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Name is the name of this backend.
const Name = "e2b"

// DefaultURL is the address of E2B's cloud, DefaultTemplate the template of its sandboxes.
const (
	DefaultURL      = "https://api.e2b.app"
	DefaultTemplate = "base"
)

// Options select the service and describe its sandboxes.
type Options struct {
	// URL is the address of the control plane. Empty: DefaultURL. It must be https, except on this machine.
	URL string
	// SandboxURL is the address of the data plane. Empty: that of E2B's cloud for addresses that begin with "api.", else
	// URL.
	SandboxURL string
	// Key is the API key.
	Key string
	// Template of sandboxes. Empty: DefaultTemplate.
	Template string
	// Isolation of the service's sandboxes. Empty: vm for DefaultURL, else container.
	Isolation string
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
	o.SandboxURL = strings.TrimSuffix(o.SandboxURL, "/")
	o.Template = cmp.Or(o.Template, DefaultTemplate)
	for _, text := range []string{o.URL, o.SandboxURL} {
		if text == "" {
			continue
		}
		if err := remoteguest.CheckURL(Name, text); err != nil {
			return nil, err
		}
	}
	if o.Isolation == "" {
		o.Isolation = sandbox.IsolationContainer.String()
		if o.URL == DefaultURL {
			o.Isolation = sandbox.IsolationVM.String()
		}
	}
	var level sandbox.Isolation
	if err := level.UnmarshalText([]byte(o.Isolation)); err != nil {
		return nil, err
	}
	if o.Key == "" {
		return nil, remoteguest.NoKey(Name, "set E2B_API_KEY, or e2b.api_key in the configuration", o.Remote)
	}
	p := newProvider(o, level)
	b, err := remoteguest.New(p, o.Remote)
	if err != nil {
		return nil, err
	}
	return &Backend{b, p.api.HTTP}, nil
}

// Capabilities implements remoteguest.Provider.
func (p *provider) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation: p.isolation,
		Snapshots: sandbox.SnapshotsMemory,
		Egress:    sandbox.EgressNone,
		Python:    true,
		Bash:      true,
		Files:     true,
		PTY:       true,
		ColdStart: 2 * time.Second,
		Notes: []string{
			fmt.Sprintf("the service states the isolation; its sandboxes are made from the template %s", p.opts.Template),
			"memory, processors and disk are those of the template; explicit limits are refused, and the defaults are not enforced",
			"the service blocks the network of its sandboxes; other network policies are refused",
			"code runs as the same user as the guest, so it can end its own sandbox",
		},
	}
}

// Check implements remoteguest.Provider.
func (p *provider) Check(spec sandbox.Spec) error {
	const remedy = "remove it from the spec, or use a template that has it (e2b.template)"
	if len(spec.Volumes) > 0 {
		return backend.NotSupported(Name, "mount named volumes", remedy)
	}
	return backendkit.RefusePlain(Name, spec, remedy)
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
