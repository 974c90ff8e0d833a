package remoteguest

import (
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

const minLife, maxLife = time.Minute, 24 * time.Hour

// FixedLife is a part of providers whose sandboxes have any size, no snapshots, no network, and a life that cannot be
// extended.
type FixedLife struct {
	Service   string // name of the backend
	Isolation sandbox.Isolation
	States    string // what the service states about the isolation
	Life      time.Duration
	ColdStart time.Duration
}

// CheckLife rejects a life that no service has.
func (f FixedLife) CheckLife() error {
	if f.Life >= minLife && f.Life <= maxLife {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeInvalidSpec, Op: "check " + f.Service + " options",
		Message: fmt.Sprintf("the timeout %s is not from %s to %s", f.Life, minLife, maxLife),
	}
}

// Name implements Provider.
func (f FixedLife) Name() string { return f.Service }

// Capabilities implements Provider.
func (f FixedLife) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{
		Isolation:   f.Isolation,
		Snapshots:   sandbox.SnapshotsNone,
		Egress:      sandbox.EgressNone,
		Images:      true,
		Python:      true,
		Bash:        true,
		Files:       true,
		PTY:         true,
		MaxLifetime: f.Life,
		ColdStart:   f.ColdStart,
		Notes: []string{
			"the service states the isolation: " + f.States,
			fmt.Sprintf("the service ends a sandbox after %s (%s.timeout), and cannot extend it", f.Life, f.Service),
			"the service gives a sandbox the memory and processors of its limits; at the limit of memory, the sandbox may " +
				"end instead of the command. Limits on disk, processes and open files are refused",
			"the service blocks the network of its sandboxes; other network policies are refused",
			"code runs as the same user as the guest, so it can end its own sandbox",
		},
	}
}

// Check implements Provider.
func (f FixedLife) Check(spec sandbox.Spec) error {
	const remedy = "remove it from the spec, or use an image that has it"
	if len(spec.Volumes) > 0 {
		return backend.NotSupported(f.Service, "mount named volumes", remedy)
	}
	spec = backendkit.WithoutSize(spec) // the service has what is left out
	spec.Image = ""
	return backendkit.RefusePlain(f.Service, spec, remedy)
}
