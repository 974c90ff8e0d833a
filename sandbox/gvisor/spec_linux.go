//go:build linux

package gvisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// cpuPeriod is the period of CPU quotas, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// minCPUQuota is the smallest quota the kernel takes, in microseconds.
const minCPUQuota = 1_000

// guestCapabilities are the guest's own, inside the sandbox only: the host's kernel never sees them. It mounts tmpfs with inode limits, puts
// commands into pid namespaces, sets the host name after a restore (SYS_ADMIN), changes to the commands' uid, ends and looks at
// their processes and may fork when their uid may not. Commands get none of them.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// bundle is what a sandbox is made from; write turns it into an OCI bundle for the engine.
type bundle struct {
	root         string   // directory of the root file system on the host
	writable     bool     // whether the root file system may be changed
	binds        []bind   // host directories and files visible inside
	tmpfs        []tmpfs  // memory file systems
	hostname     string   // name of the machine inside
	argv         []string // the guest
	env          []string // its environment, KEY=value
	openFiles    uint64   // RLIMIT_NOFILE of the guest, 0 for the engine's default
	cgroup       string   // cgroup that the engine makes, "" for none
	memory       int64    // bytes, 0 for no limit; shown inside as the machine's memory
	cpus         float64  // 0 for no limit; the number of processors inside is this, rounded up, at least 2
	capabilities []string // of the guest
}

// bind makes a host path visible inside. Read-only, no set-uid programs and no devices unless said otherwise.
type bind struct {
	Source   string `json:"source"` // on the host
	Target   string `json:"target"` // inside, absolute
	Writable bool   `json:"writable,omitempty"`
}

// tmpfs is a memory file system. The engine knows no limit of inodes here: the guest mounts over it with one
// (each empty file costs the sandbox 2 kB that no size limit counts).
type tmpfs struct {
	target string
	size   int64 // bytes
	mode   uint32
	uid    int
	gid    int
	noexec bool
}

// spec builds the OCI runtime spec.
func (b *bundle) spec() *specs.Spec {
	caps := b.capabilities
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: b.hostname,
		Root:     &specs.Root{Path: b.root, Readonly: !b.writable},
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
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
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
	for _, t := range b.tmpfs {
		options := []string{
			"nosuid", "nodev",
			"size=" + strconv.FormatInt(t.size, 10), "mode=" + strconv.FormatUint(uint64(t.mode), 8),
			"uid=" + strconv.Itoa(t.uid), "gid=" + strconv.Itoa(t.gid),
		}
		if t.noexec {
			options = append(options, "noexec")
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: t.target, Type: "tmpfs", Source: "tmpfs", Options: options})
	}
	if b.cgroup != "" {
		s.Linux.Resources = b.resources()
	}
	return s
}

// resources are the limits the engine sets on its cgroup, and shows inside.
func (b *bundle) resources() *specs.LinuxResources {
	var r specs.LinuxResources
	if b.memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &b.memory}
	}
	if b.cpus > 0 {
		quota, period := cpuQuota(b.cpus), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return &r
}

// cpuQuota is the number of microseconds per cpuPeriod for so many processors.
func cpuQuota(cpus float64) int64 {
	return max(int64(math.Round(cpus*cpuPeriod)), minCPUQuota)
}

// write puts config.json into dir.
func (b *bundle) write(dir string) error {
	data, err := json.Marshal(b.spec())
	if err != nil {
		return fmt.Errorf("engine configuration: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
