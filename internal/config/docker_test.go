package config

import (
	"reflect"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

func TestDockerOptions(t *testing.T) {
	c, _, err := load(t, `docker:
  host: unix:///run/x.sock
  context: far
  image: mine:1
  pull: never
  runtime: runsc
  network: host
  unsafe_host_network: true
  unsafe_root: true
  unsafe_host_config: true
  volumes: [data:/data, cache:/cache:rw]
  host_config: '{"CpuShares": 7}'
  instance: one
`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Docker.Options()
	want := docker.Options{
		Host: "unix:///run/x.sock", Context: "far", Image: "mine:1", Pull: docker.PullNever, Runtime: "runsc", Network: "host", UnsafeHostNetwork: true, UnsafeRoot: true, UnsafeHostConfig: true,
		Volumes: []docker.Volume{{Name: "data", Path: "/data"}, {Name: "cache", Path: "/cache", Writable: true}}, HostConfig: []byte(`{"CpuShares": 7}`), Instance: "one",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"data", "data:/x:yes", "a:b:c:d"} {
		if _, err := (Docker{Volumes: []string{bad}}).Options(); v1.CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
