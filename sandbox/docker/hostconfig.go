package docker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// hostConfig decodes Options.HostConfig.
func (o Options) hostConfig() (container.HostConfig, error) {
	var hc container.HostConfig
	if len(o.HostConfig) == 0 {
		return hc, nil
	}
	return hc, backendkit.DecodeStrict(o.HostConfig, "host config", &hc)
}

// checkHostConfig refuses settings that a host config may not change: the runtime, which determines the isolation,
// and the directories of the guest.
func checkHostConfig(hc container.HostConfig) error {
	bad := func(format string, args ...any) error {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "read the host config", Message: fmt.Sprintf(format, args...)}
	}
	if hc.Runtime != "" {
		return bad("the host config may not set the runtime %q: use the option runtime", hc.Runtime)
	}
	for _, target := range append(targets(hc), slices.Collect(maps.Keys(hc.Tmpfs))...) {
		if p := path.Clean("/" + target); p == "/" || p == ownDir || strings.HasPrefix(p, ownDir+"/") {
			return bad("a mount at %q would hide the guest", target)
		}
	}
	return nil
}

// judgeHostConfig refuses the host config of a spec unless the options allow it. It also refuses settings that would
// reduce the isolation to none: only the options may do that, because the reported isolation is derived from them.
func (b *Backend) judgeHostConfig(o SpecOptions) error {
	if len(o.HostConfig) == 0 {
		return nil
	}
	if !b.opts.UnsafeHostConfig {
		return &v1.Error{
			Code:    v1.CodeConsentMissing,
			Op:      "start sandbox",
			Message: "the host config of a spec could weaken the isolation",
			Remedy:  "remove it, or set docker.unsafe_host_config",
		}
	}
	hc, err := Options{HostConfig: o.HostConfig}.hostConfig()
	if err == nil {
		err = checkHostConfig(hc)
	}
	if err != nil {
		return err
	}
	refuse := func(message, remedy string) error {
		return &v1.Error{Code: v1.CodeConsentMissing, Op: "start sandbox", Message: message, Remedy: remedy}
	}
	switch {
	case sharesHost(hc):
		return refuse("the host config of a spec makes the container privileged, or shares a namespace with the host",
			"set it in docker.host_config of the configuration")
	case hc.NetworkMode != "" && string(hc.NetworkMode) != b.network():
		return refuse("the host config of a spec sets the network, which nothing would filter",
			"set docker.network in the configuration")
	}
	return nil
}

// patch returns the host config of the backend, overridden by that of the spec.
func (b *Backend) patch(o SpecOptions) (container.HostConfig, error) {
	var hc container.HostConfig
	err := b.applyHostConfigs(&hc, o)
	return hc, err
}

// applyHostConfigs overrides hc with the host configs. Their fields replace ours, except that their mounts are added to
// ours, because one of ours is the guest.
func (b *Backend) applyHostConfigs(hc *container.HostConfig, o SpecOptions) error {
	for _, over := range []json.RawMessage{b.opts.HostConfig, o.HostConfig} {
		if len(over) == 0 {
			continue
		}
		ours := hc.Mounts
		hc.Mounts = nil // also because json.Unmarshal would merge into the existing elements
		if err := json.Unmarshal(over, hc); err != nil {
			return err
		}
		hc.Mounts = append(ours, hc.Mounts...)
	}
	return nil
}

// network returns the network of sandboxes. HostConfig takes precedence over Network.
func (o Options) network() string {
	hc, _ := o.hostConfig() // check has validated it
	return cmp.Or(string(hc.NetworkMode), o.Network, "none")
}

// filtered reports whether containers have no network of the Docker engine, so that the guest's connections, which the
// host filters, are the only ones.
func (o Options) filtered() bool { return o.network() == "none" }

// targets returns the paths at which something is mounted, except tmpfs mounts.
func targets(hc container.HostConfig) []string {
	var all []string
	for _, m := range hc.Mounts {
		all = append(all, m.Target)
	}
	for _, text := range hc.Binds {
		if parts := strings.Split(text, ":"); len(parts) > 1 {
			all = append(all, parts[1])
		}
	}
	return all
}

// level returns the isolation that a sandbox really has.
func (b *Backend) level(f *dockerengine.Facts) sandbox.Isolation {
	hc, err := b.opts.hostConfig()
	if err != nil || container.NetworkMode(b.network()).IsHost() || sharesHost(hc) {
		return sandbox.IsolationNone
	}
	if len(b.opts.HostConfig) == 0 && !b.opts.UnsafeRoot && !b.opts.UnsafeHostConfig {
		return f.Level
	}
	return max(f.Level-1, sandbox.IsolationNone)
}

// sharesHost reports whether a container is privileged or shares a namespace with the host.
func sharesHost(hc container.HostConfig) bool {
	return hc.Privileged || hc.PidMode.IsHost() || hc.IpcMode.IsHost() || hc.UTSMode.IsHost() || hc.UsernsMode.IsHost() ||
		hc.CgroupnsMode.IsHost()
}
