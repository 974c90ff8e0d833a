//go:build linux

package gvisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// cpuPeriod is the period of CPU quotas, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// minCPUQuota is the smallest quota the kernel takes, in microseconds.
const minCPUQuota = 1_000

// guestCapabilities are the guest's own, inside the sandbox only: the host's kernel never sees them. It mounts tmpfs with inode limits,
// sets the host name after a restore (SYS_ADMIN), changes to the commands' uid, ends and looks at
// their processes and may fork when their uid may not. Commands get none of them.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// bundleSpec is what a sandbox is made from; write turns it into an OCI bundle for the engine.
type bundleSpec struct {
	root         string   // directory of the root file system on the host
	binds        []bind   // host directories and files visible inside
	hostname     string   // name of the machine inside
	argv         []string // the guest
	env          []string // its environment, KEY=value
	openFiles    uint64   // RLIMIT_NOFILE of the guest, 0 for the engine's default
	cgroup       string   // the cgroup it is started in, for the record; "" for none
	memory       int64    // bytes, shown inside as the machine's memory; 0 for the host's
	cpus         float64  // shown inside as the number of processors, rounded up, at least 2; 0 for the host's
	capabilities []string // of the guest

	mounts []specs.Mount // besides /proc and the binds, and after them
}

// bind makes a host path visible inside. Read-only, no set-uid programs and no devices unless said otherwise.
type bind struct {
	Source   string `json:"source"` // on the host
	Target   string `json:"target"` // inside, absolute
	Writable bool   `json:"writable,omitempty"`
}

// spec builds the OCI runtime spec.
func (b *bundleSpec) spec() *specs.Spec {
	caps := b.capabilities
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: b.hostname,
		Root:     &specs.Root{Path: b.root, Readonly: true},
		Process: &specs.Process{
			Args: b.argv,
			Env:  b.env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
		},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{
			CgroupsPath: b.cgroup,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
			},
		},
	}
	if b.openFiles > 0 {
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: b.openFiles, Soft: b.openFiles}}
	}
	for _, m := range b.binds {
		access := "ro"
		if m.Writable {
			access = "rw"
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: m.Target, Type: "bind", Source: m.Source,
			Options: []string{"rbind", access, "nosuid", "nodev"},
		})
	}
	s.Mounts = append(s.Mounts, b.mounts...)
	return s
}

// cpuQuota is the number of microseconds per cpuPeriod for so many processors.
func cpuQuota(cpus float64) int64 {
	return max(int64(math.Round(cpus*cpuPeriod)), minCPUQuota)
}

// machineFile tells cmd/recluse-engine what size of machine to show inside. Runsc itself reads that from cgroups it made.
const machineFile = "machine.json"

// minCPUs is the least number of processors shown: with one, programs leave out locks that gVisor needs them to have.
const minCPUs = 2

// machineSize is the content of machineFile; zero is the host's own.
type machineSize struct {
	Memory int64 `json:"memory,omitempty"`
	CPUs   int   `json:"cpus,omitempty"`
}

func (b *bundleSpec) size() machineSize {
	m := machineSize{Memory: b.memory}
	if b.cpus > 0 {
		m.CPUs = max(int(math.Ceil(b.cpus)), minCPUs)
	}
	return m
}

// write puts config.json and machineFile into dir.
func (b *bundleSpec) write(dir string) error {
	for name, content := range map[string]any{"config.json": b.spec(), machineFile: b.size()} {
		data, err := json.Marshal(content)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
