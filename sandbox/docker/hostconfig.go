package docker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/recluse-dev/recluse/sandbox"
)

// hostConfig reads what is to be laid over the profile.
func (o Options) hostConfig() (container.HostConfig, error) {
	var hc container.HostConfig
	if len(o.HostConfig) == 0 {
		return hc, nil
	}
	if err := json.Unmarshal(o.HostConfig, &hc); err != nil {
		return hc, &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "read the host config", Message: "it is not one of the engine's", Err: err}
	}
	return hc, nil
}

// checkHostConfig refuses what a host config may not decide: what the isolation is told by, and what the guest lives in.
func checkHostConfig(hc container.HostConfig) error {
	bad := func(format string, args ...any) error {
		return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "read the host config", Message: fmt.Sprintf(format, args...)}
	}
	if hc.Runtime != "" {
		return bad("it names the runtime %q, which is an option of its own", hc.Runtime)
	}
	var targets []string
	for _, m := range hc.Mounts {
		targets = append(targets, m.Target)
	}
	for _, text := range hc.Binds {
		if parts := strings.Split(text, ":"); len(parts) > 1 {
			targets = append(targets, parts[1])
		}
	}
	for target := range hc.Tmpfs {
		targets = append(targets, target)
	}
	for _, target := range targets {
		if p := path.Clean("/" + target); p == "/" || p == ownDir || strings.HasPrefix(p, ownDir+"/") {
			return bad("a mount at %q would hide the guest", target)
		}
	}
	return nil
}

// layOver puts the host config over the profile: what it names replaces what we say, and mounts are added to ours, among which is the guest.
func (b *Backend) layOver(hc *container.HostConfig) error {
	if len(b.opts.HostConfig) == 0 {
		return nil
	}
	ours := hc.Mounts
	hc.Mounts = nil // also because elements that are there would lend what they hold to those that are read
	if err := json.Unmarshal(b.opts.HostConfig, hc); err != nil {
		return err
	}
	hc.Mounts = append(ours, hc.Mounts...)
	return nil
}

// network is the one that sandboxes are in, whoever has named it.
func (o Options) network() string {
	hc, _ := o.hostConfig() // judged by check
	return cmp.Or(string(hc.NetworkMode), o.Network, "none")
}
