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

// hostConfig reads what is to be laid over the profile.
func (o Options) hostConfig() (container.HostConfig, error) {
	var hc container.HostConfig
	if len(o.HostConfig) == 0 {
		return hc, nil
	}
	return hc, backendkit.DecodeStrict(o.HostConfig, "host config", &hc)
}

// checkHostConfig refuses what a host config may not decide: what the isolation is told by, and what the guest lives in.
func checkHostConfig(hc container.HostConfig) error {
	bad := func(format string, args ...any) error {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "read the host config", Message: fmt.Sprintf(format, args...)}
	}
	if hc.Runtime != "" {
		return bad("it names the runtime %q, which is an option of its own", hc.Runtime)
	}
	for _, target := range append(targets(hc), slices.Collect(maps.Keys(hc.Tmpfs))...) {
		if p := path.Clean("/" + target); p == "/" || p == ownDir || strings.HasPrefix(p, ownDir+"/") {
			return bad("a mount at %q would hide the guest", target)
		}
	}
	return nil
}

// judgeHostConfig refuses the host config of a spec, unless the options allow it, and what would leave no isolation at all: that is for the options
// to say, which are what the isolation is told by.
func (b *Backend) judgeHostConfig(o SpecOptions) error {
	if len(o.HostConfig) == 0 {
		return nil
	}
	if !b.opts.UnsafeHostConfig {
		return &v1.Error{
			Code: v1.CodeConsentMissing, Op: "start sandbox", Message: "the host config of a spec could loosen the walls", Remedy: "leave it out, or allow it explicitly with docker.unsafe_host_config",
		}
	}
	hc, err := Options{HostConfig: o.HostConfig}.hostConfig()
	if err == nil {
		err = checkHostConfig(hc)
	}
	if err != nil {
		return err
	}
	if sharesHost(hc) || hc.NetworkMode.IsHost() {
		return &v1.Error{
			Code: v1.CodeConsentMissing, Op: "start sandbox", Message: "the host config of a spec makes the container privileged, or gives it a namespace of the host's", Remedy: "only docker.host_config of the configuration may do that",
		}
	}
	return nil
}

// patch returns both host configs, that of the spec over that of the backend.
func (b *Backend) patch(o SpecOptions) (container.HostConfig, error) {
	var hc container.HostConfig
	err := b.layOver(&hc, o)
	return hc, err
}

// layOver puts the host configs over the profile: what they name replaces what we say, and mounts are added to ours, among which is the guest.
func (b *Backend) layOver(hc *container.HostConfig, o SpecOptions) error {
	for _, over := range []json.RawMessage{b.opts.HostConfig, o.HostConfig} {
		if len(over) == 0 {
			continue
		}
		ours := hc.Mounts
		hc.Mounts = nil // also because elements that are there would lend what they hold to those that are read
		if err := json.Unmarshal(over, hc); err != nil {
			return err
		}
		hc.Mounts = append(ours, hc.Mounts...)
	}
	return nil
}

// network is the one that sandboxes are in, whoever has named it.
func (o Options) network() string {
	hc, _ := o.hostConfig() // judged by check
	return cmp.Or(string(hc.NetworkMode), o.Network, "none")
}

// targets are where something is mounted, file systems in memory aside.
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

// level is the isolation that a sandbox really has.
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

// sharesHost says whether a container has the host's rights, or a namespace of the host's.
func sharesHost(hc container.HostConfig) bool {
	return hc.Privileged || hc.PidMode.IsHost() || hc.IpcMode.IsHost() || hc.UTSMode.IsHost() || hc.UsernsMode.IsHost() || hc.CgroupnsMode.IsHost()
}
