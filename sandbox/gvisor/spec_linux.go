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

// cpuPeriod is the period of CPU quotas in microseconds. It is the kernel's default.
const cpuPeriod = 100_000

// minCPUQuota is the smallest quota that the kernel accepts, in microseconds.
const minCPUQuota = 1_000

// guestCapabilities are the capabilities of the guest. They apply only inside the sandbox; the host's kernel never sees
// them. The guest mounts tmpfs with inode limits, sets the hostname after a restore (SYS_ADMIN), switches to the UID of
// commands, kills and inspects their processes, and can fork when their UID cannot. It answers DNS queries on port 53,
// gives lo an address, and redirects connections to itself (NET_ADMIN, NET_RAW). Where code may be root, it makes user
// namespaces that have a root (SETFCAP). Commands have no capabilities, and root has those of privilege.ForCode.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
	"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP",
}

// bundleSpec describes a sandbox. write turns it into an OCI bundle for the engine.
type bundleSpec struct {
	root         string // directory of the root file system on the host
	parts        []bind // host directories that are parts of the root file system
	binds        []bind // host directories and files visible inside, as file systems of their own
	disk         *disk  // the writable layer of the root; nil: the root is read-only
	volumes      []volumeMount
	hostname     string   // name of the machine inside
	argv         []string // command line of the guest
	env          []string // environment of the guest, KEY=value
	openFiles    uint64   // RLIMIT_NOFILE of the guest; 0: the engine's default
	cgroup       string   // cgroup that the engine is started in, for information; empty: none
	memory       int64    // bytes, shown inside as the machine's memory; 0: that of the host
	cpus         float64  // shown inside as the number of processors, rounded up, at least 2; 0: that of the host
	capabilities []string // capabilities of the guest
	emptyCgroups bool     // gVisor makes no cgroups of its own

	mounts []specs.Mount // additional mounts, after /proc and the binds
}

// bind makes a host path visible inside: without set-uid programs and devices, and read-only unless Writable is set.
type bind struct {
	Source   string `json:"source"` // on the host
	Target   string `json:"target"` // inside, absolute
	Writable bool   `json:"writable,omitempty"`
}

// spec returns the OCI runtime spec.
func (b *bundleSpec) spec() *specs.Spec {
	caps := b.capabilities
	s := &specs.Spec{
		Version:  specs.Version,
		Hostname: b.hostname,
		Root:     &specs.Root{Path: b.root, Readonly: b.disk == nil},
		Process: &specs.Process{
			Args: b.argv,
			Env:  b.env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding:  caps,
				Effective: caps,
				Permitted: caps,
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
	if b.emptyCgroups {
		// With cgroups of its own, gVisor checks a new process against the limit of only one of them, at random. The
		// one that the guest makes to limit processes must be the only one.
		s.Annotations = map[string]string{"dev.gvisor.flag.in-sandbox-cgroup": "v2"}
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
			Destination: m.Target,
			Type:        "bind",
			Source:      m.Source,
			Options:     []string{"rbind", access, "nosuid", "nodev"},
		})
	}
	s.Mounts = append(s.Mounts, b.mounts...)
	return s
}

// cpuQuota returns the quota for a number of processors, in microseconds per cpuPeriod.
func cpuQuota(cpus float64) int64 {
	return max(int64(math.Round(cpus*cpuPeriod)), minCPUQuota)
}

// machineFile is the file from which cmd/recluse-engine reads the size of the machine to show inside. Runsc itself
// would read it from cgroups that it made.
const machineFile = "machine.json"

// minCPUs is the smallest number of processors shown inside. With one processor, programs omit locks that they need in
// gVisor.
const minCPUs = 2

// machineSize is the content of machineFile. Zero means the host's value.
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

// partsFile is the file from which cmd/recluse-engine reads the parts of the root file system.
const partsFile = "root.json"

// onHost returns the parts with their mount points on the host.
func (b *bundleSpec) onHost() []bind {
	parts := []bind{}
	for _, p := range b.parts {
		parts = append(parts, bind{Source: p.Source, Target: filepath.Join(b.root, p.Target)})
	}
	return parts
}

// write writes config.json and the files for cmd/recluse-engine into dir.
func (b *bundleSpec) write(dir string) error {
	files := map[string]any{"config.json": b.spec(), machineFile: b.size()}
	if b.disk != nil {
		files[partsFile] = b.onHost()
	}
	if len(b.volumes) > 0 {
		files[volumesFile] = b.volumes
	}
	for name, content := range files {
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
