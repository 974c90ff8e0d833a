package config

import (
	"cmp"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/modal"
)

// Modal configures the modal backend.
type Modal struct {
	TokenID     string      `key:"token_id" doc:"ID of the API token; empty: the environment variable MODAL_TOKEN_ID"`
	TokenSecret Secret      `key:"token_secret" doc:"secret of the API token; empty: the environment variable MODAL_TOKEN_SECRET"`
	Environment string      `key:"environment" doc:"environment of the workspace; empty: the environment variable MODAL_ENVIRONMENT, or the default one"`
	App         string      `key:"app" doc:"app of the sandboxes, which is made if it is missing"`
	Region      string      `key:"region" doc:"region of sandboxes; empty: any"`
	Image       string      `key:"image" doc:"image of sandboxes whose spec has none; it needs sh, setsid, sha256sum and Python"`
	Timeout     v1.Duration `key:"timeout" doc:"life of a sandbox, 1m to 24h: the service ends it then and cannot extend it, so its cost until then is reserved"`

	Service
	PriceCPU    float64 `key:"price_cpu" min:"0" doc:"estimated price of a physical core, which is two processors, in dollars per hour; the default is the public price of mid-2026"`
	PriceMemory float64 `key:"price_memory" min:"0" doc:"estimated price of a GiB of memory, in dollars per hour; the default is the public price of mid-2026"`
}

// Options returns the options of the modal backend.
func (c Modal) Options() modal.Options {
	return modal.Options{
		TokenID:     cmp.Or(c.TokenID, os.Getenv("MODAL_TOKEN_ID")),
		TokenSecret: cmp.Or(string(c.TokenSecret), os.Getenv("MODAL_TOKEN_SECRET")),
		Environment: c.Environment,
		App:         c.App,
		Region:      c.Region,
		Image:       c.Image,
		PriceCPU:    c.PriceCPU,
		PriceMemory: c.PriceMemory,
		Remote:      c.options(c.Timeout),
	}
}

// defaultModal returns the default configuration of the modal backend.
func defaultModal() Modal {
	return Modal{
		App: modal.DefaultApp, Image: modal.DefaultImage, Timeout: v1.Duration(modal.DefaultTimeout),
		Service: defaultService(), PriceCPU: 0.142, PriceMemory: 0.0242,
	}
}
