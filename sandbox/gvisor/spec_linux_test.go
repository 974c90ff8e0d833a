//go:build linux

package gvisor

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// memoryFS is a tmpfs mount. The engine has no limit of inodes here; a real guest mounts its own tmpfs for that reason.
func memoryFS(target string, options ...string) specs.Mount {
	return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: append([]string{"nosuid", "nodev"}, options...)}
}

func TestSpec(t *testing.T) {
	b := bundleSpec{
		root: "/r", hostname: "h", argv: []string{"/guest"}, env: []string{"A=b"}, openFiles: 100,
		binds:  []bind{{Source: "/usr", Target: "/usr"}, {Source: "/data", Target: "/data", Writable: true}},
		mounts: []specs.Mount{memoryFS("/tmp", "size=1048576", "mode=1777", "noexec")}, memory: 1 << 29, cpus: 0.5,
		capabilities: guestCapabilities,
	}
	s := b.spec()
	if !s.Root.Readonly || s.Process.User.UID != 0 || s.Hostname != "h" {
		t.Errorf("spec %+v", s)
	}
	options := map[string][]string{}
	for _, m := range s.Mounts {
		options[m.Destination] = m.Options
	}
	for target, want := range map[string]string{"/usr": "ro nosuid nodev", "/data": "rw nosuid nodev", "/tmp": "size=1048576 mode=1777 noexec nosuid"} {
		for option := range strings.FieldsSeq(want) {
			if !slices.Contains(options[target], option) {
				t.Errorf("%s lacks %s: %v", target, option, options[target])
			}
		}
	}
	if m := b.size(); m != (machineSize{Memory: 1 << 29, CPUs: 2}) {
		t.Errorf("machine %+v", m)
	}
	if caps := s.Process.Capabilities; len(caps.Inheritable)+len(caps.Ambient) != 0 {
		t.Error("programs that the guest executes would inherit capabilities")
	}
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if cpuQuota(0.000001) != minCPUQuota {
		t.Error("a quota below the minimum of the kernel")
	}
}
