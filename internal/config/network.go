package config

import (
	"fmt"
	"net/netip"
	"os"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/sandbox"
)

// Network configures the network policies of sandboxes.
type Network struct {
	Default     string   `key:"default" doc:"policy of sessions and sandboxes that are made without one: rules and a preset with commas between them, such as allow api.github.com, packages; those of a tenant or key come first; empty: none"`
	Max         string   `key:"max" doc:"most that any policy may allow, as a preset, or rules and a preset, such as deny *.corp.example, public; all also covers names that are not public"`
	Packages    string   `key:"packages" path:"yes" doc:"file with the hosts of the policy packages, one per line, instead of the built-in list"`
	FloorExcept []string `key:"floor_except" doc:"private and other special addresses that a policy may allow, such as 10.1.2.0/24; all others are always denied"`
	Connections int      `key:"connections" min:"0" doc:"maximum number of open connections of a sandbox; 0: 1024"`
	Bytes       Size     `key:"bytes" doc:"bytes that a sandbox may send and receive while a program is attached to it; 0: unlimited"`
}

// mirrors returns the registries that this host is configured with.
var mirrors = sync.OnceValue(func() []string {
	home, _ := os.UserHomeDir() // without a home directory, there are no files of the user
	return egress.HostMirrors(os.DirFS("/"), home, os.Getenv)
})

// Usual returns the policy of sandboxes that are made without one; nil: none is configured.
func (n Network) Usual() *v1.Network {
	if usual := v1.ParseNetwork(n.Default); usual.IsSet() {
		return &usual
	}
	return nil
}

// checkNetwork returns errors about the policies.
func (c *Config) checkNetwork() (bad []error) {
	for key, text := range map[string]string{"network.default": c.Network.Default, "network.max": c.Network.Max} {
		if _, err := egress.Compile(v1.ParseNetwork(text), egress.Options{}); err != nil {
			bad = append(bad, c.wrong(key, fmt.Sprintf("%s: %v", key, err)))
		}
	}
	return bad
}

// Options returns the options of backends.
func (n Network) Options() (sandbox.NetworkOptions, error) {
	o := sandbox.NetworkOptions{
		Maximum: new(v1.ParseNetwork(n.Max)),
		Mirrors: mirrors,
		Proxy:   egress.HostProxy(os.Getenv),
		Limits:  egress.Limits{Connections: n.Connections, Bytes: int64(n.Bytes)},
	}
	for _, text := range n.FloorExcept {
		p, err := netip.ParsePrefix(text)
		if a, aerr := netip.ParseAddr(text); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return o, &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "read configuration",
				Message: fmt.Sprintf("network.floor_except: invalid address %q", text),
				Remedy:  "write an address or a prefix, such as 10.1.2.3 or 10.1.2.0/24",
			}
		}
		o.FloorExcept = append(o.FloorExcept, p)
	}
	if n.Packages == "" {
		return o, nil
	}
	list, err := os.ReadFile(n.Packages)
	if err != nil {
		return o, fmt.Errorf("network.packages: %w", err)
	}
	o.Packages = string(list)
	_, err = egress.Compile(v1.Network{Preset: v1.NetworkPackages}, egress.Options{Packages: o.Packages})
	return o, err
}
