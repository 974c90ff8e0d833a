package config

import (
	"cmp"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/prime"
)

// Prime configures the prime backend.
type Prime struct {
	APIURL    string      `key:"api_url" doc:"address of the service; https, except on this machine"`
	APIKey    Secret      `key:"api_key" doc:"API key; empty: the environment variable PRIME_API_KEY"`
	Team      string      `key:"team" doc:"ID of the team that pays; empty: the environment variable PRIME_TEAM_ID, or the owner of the key"`
	Region    string      `key:"region" doc:"region of sandboxes; empty: that of the service"`
	Image     string      `key:"image" doc:"image of sandboxes whose spec has none; it needs sh, sha256sum and Python"`
	Isolation string      `key:"isolation" oneof:"container vm" doc:"isolation of the service's sandboxes; the service states containers, and virtual machines in part"`
	Timeout   v1.Duration `key:"timeout" doc:"life of a sandbox, 1m to 24h: the service ends it then and cannot extend it, so its cost until then is reserved"`

	Service
	PriceCPU    float64 `key:"price_cpu" min:"0" doc:"estimated price of a processor, in dollars per hour; the default is an estimate of mid-2026"`
	PriceMemory float64 `key:"price_memory" min:"0" doc:"estimated price of a GiB of memory, in dollars per hour; the default is an estimate of mid-2026"`
}

// Options returns the options of the prime backend.
func (c Prime) Options() prime.Options {
	return prime.Options{
		URL:         c.APIURL,
		Key:         cmp.Or(string(c.APIKey), os.Getenv("PRIME_API_KEY")),
		Team:        cmp.Or(c.Team, os.Getenv("PRIME_TEAM_ID")),
		Region:      c.Region,
		Image:       c.Image,
		Isolation:   c.Isolation,
		PriceCPU:    c.PriceCPU,
		PriceMemory: c.PriceMemory,
		Remote:      c.options(c.Timeout),
	}
}

// defaultPrime returns the default configuration of the prime backend.
func defaultPrime() Prime {
	return Prime{
		APIURL: prime.DefaultURL, Image: prime.DefaultImage, Isolation: "container",
		Timeout: v1.Duration(prime.DefaultTimeout), Service: defaultService(), PriceCPU: 0.05, PriceMemory: 0.02,
	}
}
