package config

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// Docker configures the docker backend.
type Docker struct {
	Host              string   `key:"host" doc:"address of the Docker engine: unix://, tcp://, npipe:// or ssh://; empty: DOCKER_HOST, else the context"`
	Context           string   `key:"context" doc:"context of the docker command; empty: DOCKER_CONTEXT, else the current one"`
	Image             string   `key:"image" doc:"image of sandboxes without their own"`
	Pull              string   `key:"pull" oneof:"missing always never" doc:"when images are pulled from their registry"`
	Runtime           string   `key:"runtime" doc:"runtime of the Docker engine, by name; auto: one with its own kernel if there is one, else the default"`
	Network           string   `key:"network" doc:"network of the Docker engine that sandboxes join, such as bridge, which nothing filters; refused in production; empty: none, so that network policies apply"`
	UnsafeHostNetwork bool     `key:"unsafe_host_network" doc:"allow the network host, which shows all listening ports of the Docker engine's machine; refused in production"`
	UnsafeRoot        bool     `key:"unsafe_root" doc:"allow specs in which code runs as root; the reported isolation is one level lower; refused in production"`
	UnlimitedDisk     bool     `key:"unlimited_disk" doc:"allow a writable root where the Docker engine cannot limit its size, and volumes, whose size it never limits, so that code can fill the engine's disk"`
	Volumes           []string `key:"volumes" doc:"named volumes to show inside, as name:path or name:path:rw"`
	UnsafeHostConfig  bool     `key:"unsafe_host_config" doc:"allow callers on this machine to set a host_config for a sandbox; the reported isolation is one level lower; refused in production"`
	HostConfig        string   `key:"host_config" doc:"JSON of the Docker API (HostConfig) that overrides ours; the reported isolation is one level lower"`
	Instance          string   `key:"instance" doc:"name that separates the sandboxes of several servers on one Docker engine; empty: this user on this machine"`
}

// Options returns the options of the docker backend.
func (d Docker) Options() (docker.Options, error) {
	o := docker.Options{
		Host:              d.Host,
		Context:           d.Context,
		Image:             d.Image,
		Pull:              docker.Pull(d.Pull),
		Runtime:           d.Runtime,
		Network:           d.Network,
		UnsafeHostNetwork: d.UnsafeHostNetwork,
		UnsafeRoot:        d.UnsafeRoot,
		UnlimitedDisk:     d.UnlimitedDisk,
		UnsafeHostConfig:  d.UnsafeHostConfig,
		Instance:          d.Instance,
		HostConfig:        json.RawMessage(d.HostConfig),
	}
	for _, text := range d.Volumes {
		parts := strings.Split(text, ":")
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "rw" && parts[2] != "ro" {
			return o, &v1.Error{
				Code:    CodeInvalid,
				Op:      "read docker.volumes",
				Message: fmt.Sprintf("invalid volume %q: want name:path or name:path:rw", text),
			}
		}
		writable := len(parts) == 3 && parts[2] == "rw"
		o.Volumes = append(o.Volumes, docker.Volume{Name: parts[0], Path: parts[1], Writable: writable})
	}
	return o, nil
}

// defaultDocker returns the default configuration of the docker backend.
func defaultDocker() Docker {
	return Docker{Image: docker.DefaultImage, Pull: string(docker.PullMissing), Runtime: docker.RuntimeAuto}
}
