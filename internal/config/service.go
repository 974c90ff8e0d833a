package config

import (
	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/spend"
)

// Service has the keys of all backends whose sandboxes are at a service.
type Service struct {
	MaxSandboxes int     `key:"max_sandboxes" min:"0" doc:"maximum number of sandboxes at a time; 0: unlimited"`
	MaxPerHour   float64 `key:"max_per_hour" min:"0" doc:"maximum cost of all sandboxes together, in dollars per hour, estimated; 0: unlimited"`
	MaxTotal     float64 `key:"max_total" min:"0" doc:"maximum cost of all sandboxes ever made, in dollars, estimated; 0: unlimited"`
	Instance     string  `key:"instance" doc:"name that separates the sandboxes of several servers with one account; empty: this user on this machine"`
}

func defaultService() Service { return Service{MaxSandboxes: 10, MaxPerHour: 2, MaxTotal: 20} }

// options returns the options of all services.
func (s Service) options(timeout v1.Duration) remoteguest.Options {
	return remoteguest.Options{
		Instance: s.Instance,
		Timeout:  timeout.Std(),
		Limits:   spend.Limits{Sandboxes: s.MaxSandboxes, PerHour: s.MaxPerHour, Total: s.MaxTotal},
	}
}
