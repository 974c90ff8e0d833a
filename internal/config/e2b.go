package config

import (
	"cmp"
	"os"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/sandbox/e2b"
)

// E2B configures the e2b backend.
type E2B struct {
	APIURL     string      `key:"api_url" doc:"address of the service: that of E2B's cloud, of E2B on your own machines, or of a recluse server with server.e2b; https, except on this machine"`
	SandboxURL string      `key:"sandbox_url" doc:"address for the inside of sandboxes; empty: a host name for each sandbox if api_url begins with https://api., else api_url"`
	APIKey     Secret      `key:"api_key" doc:"API key; empty: the environment variable E2B_API_KEY"`
	Template   string      `key:"template" doc:"template of sandboxes; it decides memory, processors and disk"`
	Isolation  string      `key:"isolation" oneof:"auto container kernel vm" doc:"isolation of the service's sandboxes; auto: vm for E2B's cloud, else container"`
	Timeout    v1.Duration `key:"timeout" doc:"time after which the service ends a sandbox, unless recluse extends it: how long a sandbox is paid for after recluse has died"`

	Service
	MaxAge v1.Duration `key:"max_age" none:"yes" doc:"maximum age of a sandbox, which then ends; none: unlimited"`
	Price  float64     `key:"price" min:"0" doc:"estimated price of a sandbox, in dollars per hour; the default is E2B's public price for 2 processors in mid-2026"`

	SnapshotPrice float64 `key:"snapshot_price" min:"0" doc:"estimated price of a snapshot at the service, in dollars per hour; hibernated sessions are snapshots; the default is 0 because E2B's public prices of mid-2026 have none"`
}

// Options returns the options of the e2b backend.
func (c E2B) Options() e2b.Options {
	o := e2b.Options{
		URL:        c.APIURL,
		SandboxURL: c.SandboxURL,
		Key:        cmp.Or(string(c.APIKey), os.Getenv("E2B_API_KEY")),
		Template:   c.Template,
		Isolation:  c.Isolation,
		Remote:     c.options(c.Timeout),
	}
	o.Remote.Price, o.Remote.SnapshotPrice = c.Price, c.SnapshotPrice
	if c.MaxAge != v1.NoLimit {
		o.Remote.Limits.Age = c.MaxAge.Std()
	}
	if o.Isolation == "auto" {
		o.Isolation = ""
	}
	return o
}

// defaultE2B returns the default configuration of the e2b backend.
func defaultE2B() E2B {
	return E2B{
		APIURL: e2b.DefaultURL, Template: e2b.DefaultTemplate, Isolation: "auto",
		Timeout: v1.Duration(remoteguest.DefaultTimeout), Service: defaultService(),
		MaxAge: v1.Duration(24 * time.Hour), Price: 0.1,
	}
}
