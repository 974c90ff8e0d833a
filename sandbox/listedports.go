package sandbox

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// MaxListedPorts is the number of ports that a policy may allow where only listed ports work: the guest listens on each
// of them for each name.
const MaxListedPorts = 64

// listedPorts returns the ports on which the guest listens if it cannot redirect connections: those that the policy
// allows, and those on which the host can explain a denial.
func listedPorts(p *egress.Policy) ([]uint32, error) {
	allowed := p.Ports()
	total := 0
	for _, r := range allowed {
		total += int(r.Last) - int(r.First) + 1
	}
	if total > MaxListedPorts {
		return nil, &v1.Error{
			Code: v1.CodeNotSupported,
			Op:   "start sandbox",
			Message: fmt.Sprintf("the policy allows %d ports, but only policies that list at most %d work here: "+
				"connections cannot be redirected", total, MaxListedPorts),
			Remedy: "list the names and ports, such as --allow example.com:8443, or use the gvisor backend, " +
				"or the docker backend with the runtime runsc",
		}
	}
	ports := []uint32{80, 443}
	for _, r := range allowed {
		for port := uint32(r.First); port <= uint32(r.Last); port++ {
			if port != 80 && port != 443 {
				ports = append(ports, port)
			}
		}
	}
	return ports, nil
}

// TryRedirection makes a sandbox without a network policy, and reports whether its guest can redirect connections, so
// that policies work on every port. Backends use it to find out what a runtime permits.
func TryRedirection(ctx context.Context, b Backend, spec Spec) (can bool, err error) {
	sb, err := Open(ctx, b, spec)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	on := &wire.Request{Call: &wire.Request_Network{Network: &wire.Network{On: true}}}
	_, err = sb.guest().Call(ctx, on)
	if e, ok := errors.AsType[*host.Error](err); ok && e.Code == string(v1.CodeNotSupported) {
		return false, nil
	}
	return err == nil, sb.explain("redirect connections", err)
}
