package config

import (
	"encoding/json"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// Docker configures the backend whose sandboxes are containers.
type Docker struct {
	Host              string   `key:"host" doc:"address of the engine: unix://, tcp://, npipe:// or ssh://; empty: DOCKER_HOST, else the context"`
	Context           string   `key:"context" doc:"a context of the docker command; empty: DOCKER_CONTEXT, else the one in use"`
	Image             string   `key:"image" doc:"image of sandboxes for which none is named"`
	Pull              string   `key:"pull" oneof:"missing always never" doc:"when images are fetched from their registry"`
	Runtime           string   `key:"runtime" doc:"the engine's name of a runtime; auto: one with a kernel of its own where the engine has it, else its default"`
	Network           string   `key:"network" doc:"network of sandboxes, e.g. bridge; empty: none at all"`
	UnsafeHostNetwork bool     `key:"unsafe_host_network" doc:"allow the network host, which shows everything that listens on the engine's machine; never in production"`
	UnsafeRoot        bool     `key:"unsafe_root" doc:"allow code that is root inside, where somebody asks for that user; the isolation is then reported a level lower; never in production"`
	Volumes           []string `key:"volumes" doc:"named volumes of the engine to show inside, name:path, or name:path:rw"`
	UnsafeHostConfig  bool     `key:"unsafe_host_config" doc:"allow callers on this machine to give a sandbox a host config of its own; the isolation is then reported a level lower; never in production"`
	HostConfig        string   `key:"host_config" doc:"JSON of the engine's API (HostConfig) that is laid over the profile; the isolation is then reported a level lower"`
	Instance          string   `key:"instance" doc:"sets the sandboxes of several servers on one engine apart; empty: this user's on this machine"`
}

// Options gives the backend's options as its package wants them.
func (d Docker) Options() (docker.Options, error) {
	o := docker.Options{
		Host: d.Host, Context: d.Context, Image: d.Image, Pull: docker.Pull(d.Pull), Runtime: d.Runtime, Network: d.Network,
		UnsafeHostNetwork: d.UnsafeHostNetwork, UnsafeRoot: d.UnsafeRoot, UnsafeHostConfig: d.UnsafeHostConfig, Instance: d.Instance, HostConfig: json.RawMessage(d.HostConfig),
	}
	for _, text := range d.Volumes {
		parts := strings.Split(text, ":")
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "rw" && parts[2] != "ro" {
			return o, &v1.Error{Code: CodeInvalid, Op: "read docker.volumes", Message: text + " is not name:path, or name:path:rw"}
		}
		o.Volumes = append(o.Volumes, docker.Volume{Name: parts[0], Path: parts[1], Writable: len(parts) == 3 && parts[2] == "rw"})
	}
	return o, nil
}

// defaultDocker is what holds where nothing is said.
func defaultDocker() Docker {
	return Docker{Image: docker.DefaultImage, Pull: string(docker.PullMissing), Runtime: docker.RuntimeAuto}
}
