package docker

import (
	"context"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
)

// The network of a container stays none. The guest forwards the connections of code to the host, which filters them.
// With runsc the guest redirects all connections to itself, if the runtime leaves it CAP_NET_RAW (--net-raw). Otherwise
// it listens on the ports that the policy lists.

// filteredMachine is a machine whose guest forwards connections.
type filteredMachine struct{ *machine }

var (
	_ sandbox.Networker = filteredMachine{}
	_ sandbox.Certifier = filteredMachine{}
)

// NetworkOptions implements sandbox.Networker.
func (m filteredMachine) NetworkOptions() sandbox.NetworkOptions { return m.backend.opts.Egress }

// CertificatesFile implements sandbox.Certifier.
func (m filteredMachine) CertificatesFile() string { return stateDir + "/" + launch.CertificatesName }

// withNetwork returns the machine with its methods for the network, if the host filters it.
func (m *machine) withNetwork() sandbox.Machine {
	if m.backend.opts.filtered() {
		return filteredMachine{m}
	}
	return m
}

// redirection is what is known about a runtime from a trial.
type redirection struct {
	Engine  string `json:"engine"` // ID of the Docker engine
	Version string `json:"version"`
	Runtime string `json:"runtime"`
	Command string `json:"command"` // program of the runtime and its arguments
	Guest   string `json:"guest"`
	Can     bool   `json:"can"`
}

// redirections finds out whether the guest can redirect connections with the runtime of the options.
type redirections struct {
	proof backendkit.Proof[redirection]

	mu    sync.Mutex
	known bool      // guarded by mu
	can   bool      // guarded by mu
	err   error     // guarded by mu; of the last trial
	at    time.Time // guarded by mu; time of the last trial that failed
}

// egressTrialRetry is how long a failed trial is not repeated.
const egressTrialRetry = time.Minute

// egress returns what the backend can do about a network policy, and a note about it. The first call makes a trial
// sandbox if the runtime has its own kernel: whether it permits redirection depends on how it is registered.
func (b *Backend) egress(ctx context.Context) (sandbox.Egress, string) {
	const listed = "names work on the ports that a network policy lists"
	f, err := b.facts(ctx)
	if err != nil || !ownGuest(f) {
		return sandbox.EgressListedPorts, listed
	}
	r := &b.redirections
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known && time.Since(r.at) > egressTrialRetry {
		guest, err := b.guestProgram(ctx, f.Arch)
		if err != nil {
			return sandbox.EgressListedPorts, listed
		}
		now := redirection{Engine: f.ID, Version: f.Version, Runtime: f.Runtime, Command: f.Command, Guest: guest.Hash}
		if kept, ok := r.proof.Kept(); ok && (kept == now || kept == now.with(true)) {
			r.known, r.can = true, kept.Can
		} else if _, err := b.cli.ImageInspect(ctx, b.opts.Image); err != nil {
			// Each sandbox tries it, and refuses its policy if the guest cannot redirect.
			return sandbox.EgressAllPorts, "whether the runtime " + f.Runtime + " lets the guest redirect connections is " +
				"not known before the first sandbox with a network policy, because the image " + b.opts.Image + " is missing"
		} else {
			r.can, r.err = sandbox.TryRedirection(ctx, b, sandbox.Spec{})
			if r.known = r.err == nil; r.known {
				r.proof.Keep(now.with(r.can))
			} else if ctx.Err() == nil {
				r.at = time.Now()
			}
		}
	}
	switch {
	case r.can:
		return sandbox.EgressAllPorts, ""
	case !r.known:
		return sandbox.EgressListedPorts, listed + ": the trial of the runtime " + f.Runtime + " failed: " + r.err.Error()
	}
	return sandbox.EgressListedPorts, listed + ": the runtime " + f.Runtime + " does not let the guest redirect connections; " +
		"register it with the argument --net-raw, as recluse install-runtime does"
}

func (r redirection) with(can bool) redirection {
	r.Can = can
	return r
}
