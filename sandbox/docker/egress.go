package docker

import (
	"context"

	"github.com/recluse-dev/recluse/internal/dockerengine"
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
func (m filteredMachine) NetworkOptions() sandbox.NetworkOptions { return m.backend.NetworkOptions() }

// NetworkOptions implements sandbox.Networker.
func (b *Backend) NetworkOptions() sandbox.NetworkOptions { return b.opts.Egress }

// CertificatesFile implements sandbox.Certifier.
func (m filteredMachine) CertificatesFile() string { return stateDir + "/" + launch.CertificatesName }

// withNetwork returns the machine with its methods for the network, if the host filters it.
func (m *machine) withNetwork() sandbox.Machine {
	if m.backend.opts.filtered() {
		return filteredMachine{m}
	}
	return m
}

// egress returns what the backend can do about a network policy, and a note about it. Whether a runtime with its own
// kernel permits redirection depends on how it is registered. The trial of Health finds out. Before a trial, and
// whatever it found, each sandbox tries it again, and refuses a policy that its guest cannot forward.
func (b *Backend) egress(ctx context.Context, f *dockerengine.Facts) (sandbox.Egress, string) {
	const listed = "names work on the ports that a network policy lists"
	if !ownGuest(f) {
		return sandbox.EgressListedPorts, listed
	}
	guest, err := b.guestProgram(ctx, f.Arch)
	kept, found := b.proofs.Kept()
	switch now := b.proofNow(f, guest.Hash, kept.Image); {
	case err != nil, !found, kept.setting() != now:
		return sandbox.EgressAllPorts, "the first sandbox with a network policy shows whether the runtime " + f.Runtime +
			" lets the guest redirect connections"
	case kept.Redirects:
		return sandbox.EgressAllPorts, ""
	}
	return sandbox.EgressListedPorts, listed + ": the runtime " + f.Runtime + " does not let the guest redirect " +
		"connections; register it with the argument --net-raw, as recluse install-runtime does"
}
