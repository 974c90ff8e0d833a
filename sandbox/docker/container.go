package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// plan describes a container that is about to be created.
type plan struct {
	record
	facts   *dockerengine.Facts
	options SpecOptions
	image   client.ImageInspectResult
	volume  string   // name of the volume with the guest
	volumes []Volume // with their names in the engine

	limited      bool // the engine limits the size of the writable root
	fromWritable bool // the image is a snapshot of a writable root

	filtered bool // the guest forwards connections, and the container has no other network

	oomScore   int            // oom_score_adj of everything that runs
	guestTmpfs []launch.Tmpfs // tmpfs that the guest mounts
}

// guestConfig returns the configuration that the guest reads at its start.
func (p *plan) guestConfig() launch.Config {
	var img backendkit.ImageConfig
	if ic := p.image.Config; ic != nil {
		img.Env = slices.Clone(ic.Env)
		if ic.WorkingDir != "/" {
			img.Dir = ic.WorkingDir
		}
	}
	if p.User.Name != "" {
		img.Env = append(img.Env, "USER="+p.User.Name, "LOGNAME="+p.User.Name)
	}
	c := backendkit.GuestConfig(p.Record, stateDir, img)
	c.Socket, c.Peer, c.Filter = socketName(p.ID), p.bridge().UID, true
	c.Network = p.filtered
	if p.Writable {
		c.Env = append(slices.Clone(backendkit.InstallEnv), c.Env...)
	}
	if p.Restored != "" && !p.fromWritable {
		c.Unpack = archivePath
	}
	if !p.facts.UserSpace() {
		c.Threads, c.OOMScore = guestThreads, p.oomScore
		return c
	}
	// With its own kernel, a sandbox has its own count of processes for each user, so the guest can enforce the
	// limit.
	c.Processes, c.Memory = p.Spec.Limits.Processes, p.Spec.Limits.Memory
	if ownGuest(p.facts) {
		c.Tmpfs = p.guestTmpfs
		backendkit.SetUser(&c, p.Spec, p.User)
	}
	return c
}

// socketName returns the name of the guest's socket. It is an abstract socket, without a file. Sandboxes that share a
// network namespace also share these names, so the name contains the ID.
func socketName(id string) string { return "@recluse-" + id }

// containerConfig returns the Config of the container. Preconditions: profile was called before.
func (p *plan) containerConfig(labels map[string]string) (*container.Config, error) {
	guest, err := json.Marshal(p.guestConfig())
	if err != nil {
		return nil, err
	}
	return &container.Config{
		Hostname:    cmp.Or(p.Spec.Hostname, p.ID),
		Image:       p.image.ID,
		Labels:      labels,
		WorkingDir:  "/",
		User:        p.guestUser(),
		Entrypoint:  []string{guestDir + "/" + bundle.GuestName},
		Cmd:         []string{},
		Env:         []string{launch.ConfigEnv + "=" + string(guest)},
		Healthcheck: p.noHealthcheck(),
		StopSignal:  "SIGKILL", // so that docker stop does not wait
	}, nil
}

// memoryReserve returns the memory that the Docker engine allows above the limit, if the container has its own kernel
// and the guest enforces the limit. It is for the memory of that kernel, and for memory that processes allocate
// before the guest has killed them. The guest has no reserved CPU share there, so the reserve is larger than that of
// our gvisor backend. Measured: a hundred processes of 30 MB that started at once used up to 350 MB above a limit of
// 256 MB. Without the reserve, the Docker engine would have killed the sandbox.
func memoryReserve(limit int64) int64 { return max(512<<20, limit/2) }

// runtimeName returns the runtime for the Docker API; empty means the engine's default.
func (b *Backend) runtimeName(f *dockerengine.Facts) string {
	if b.opts.Runtime == "" {
		return ""
	}
	return f.Runtime
}

// profile returns the HostConfig of the container, which defines its isolation. Options.HostConfig can change all of
// it, and the reported isolation then changes too.
func (b *Backend) profile(p *plan) (*container.HostConfig, error) {
	l := p.Spec.Limits
	no := false
	memory, pids := l.Memory, int64(l.Processes+processReserve)
	if p.facts.UserSpace() {
		memory += memoryReserve(l.Memory)
		pids = int64(4*l.Processes + 1024)
	}
	hc := &container.HostConfig{
		Runtime:        b.runtimeName(p.facts),
		NetworkMode:    container.NetworkMode(b.network()),
		Init:           &no,
		LogConfig:      container.LogConfig{Type: "none"},
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CapDrop:        []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges"},
		ReadonlyRootfs: !p.Writable,
		IpcMode:        container.IPCModePrivate,
		Resources: container.Resources{
			Memory: memory, MemorySwap: memory, // equal: no swap
			CPUPeriod: cpuPeriod,
			CPUQuota:  max(1000, int64(math.Round(l.CPUs*cpuPeriod))),
			PidsLimit: &pids,
		},
		Tmpfs:       p.tmpfs(),
		MaskedPaths: maskedPaths(p.facts),
		Mounts: []mount.Mount{{
			Type:          mount.TypeVolume,
			Source:        p.volume,
			Target:        guestDir,
			ReadOnly:      true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}},
	}
	if p.limited {
		size := p.Spec.Limits.Disk
		if p.facts.Storage == "btrfs" { // its limit includes the image
			size += p.image.Size
		}
		hc.StorageOpt = sizeOption(size)
	}
	if p.filtered {
		// The guest answers DNS queries. Otherwise the engine would copy the host's resolv.conf, which exposes the host's
		// DNS servers.
		hc.DNS, hc.DNSSearch = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, []string{"."}
		// The guest, which has no capabilities with runc, answers DNS queries and listens on the ports of names.
		hc.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	for _, v := range p.volumes {
		hc.Mounts = append(hc.Mounts, mount.Mount{
			Type:     mount.TypeVolume,
			Source:   v.Name,
			Target:   v.Path,
			ReadOnly: !v.Writable,
		})
	}
	for _, m := range p.Spec.Mounts {
		hc.Mounts = append(hc.Mounts, mount.Mount{
			Type:        mount.TypeBind,
			Source:      m.Host,
			Target:      m.Path,
			ReadOnly:    !m.Writable,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	if err := b.applyHostConfigs(hc, p.options); err != nil {
		return nil, err
	}
	hc.CapAdd = addGuestCapabilities(p.facts, hc.CapAdd)
	p.guestTmpfs = p.remountedTmpfs(hc)
	return hc, nil
}

// ownMasks are files in which the host's kernel shows details of its machine to a container and which no engine
// masks: boot parameters and disks. /proc/meminfo and /proc/cpuinfo stay visible, because programs read them.
var ownMasks = []string{"/proc/cmdline", "/proc/partitions", "/proc/diskstats", "/proc/swaps"}

// maskedPaths returns the files of the host's kernel to mask: those that engines mask by default, because our list
// replaces theirs, and ownMasks. It returns nil, which means the engine's default, if the kernel is not the host's,
// and for Podman, whose API has no such list.
func maskedPaths(f *dockerengine.Facts) []string {
	if f.UserSpace() || f.Podman {
		return nil
	}
	all := append([]string{
		"/proc/acpi",
		"/proc/asound",
		"/proc/interrupts",
		"/proc/kcore",
		"/proc/keys",
		"/proc/latency_stats",
		"/proc/sched_debug",
		"/proc/scsi",
		"/proc/timer_list",
		"/proc/timer_stats",
		"/sys/devices/virtual/powercap",
		"/sys/firmware",
	}, ownMasks...)
	for cpu := range f.CPUs {
		all = append(all, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return all
}

func (b *Backend) network() string { return b.opts.network() }

// inMemory returns the tmpfs mounts with their owners. Runtimes set the mode of the underlying directory and ignore
// the requested mode, so the user must own the mount.
func (p *plan) inMemory() []backendkit.Tmpfs {
	all := backendkit.TmpfsLayout(p.Spec.Limits, stateDir, p.WorkDir)
	if p.Writable {
		all = nil
		for _, t := range backendkit.TmpfsBesideDisk(p.Spec.Limits, stateDir) {
			all = append(all, backendkit.Tmpfs{Tmpfs: t, Guest: t.Path == stateDir})
		}
	}
	for i := range all {
		if !all[i].Guest || !ownGuest(p.facts) {
			all[i].UID, all[i].GID = p.User.UID, p.User.GID
		}
	}
	return all
}

// tmpfs returns the tmpfs mounts in the format of the Docker API.
func (p *plan) tmpfs() map[string]string {
	all := map[string]string{}
	for _, m := range p.inMemory() {
		flags := "rw,nosuid,nodev,noexec"
		if m.Exec {
			flags = "rw,nosuid,nodev,exec"
		}
		text := fmt.Sprintf("%s,size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d", flags, m.Size, m.Inodes, m.Mode, m.UID, m.GID)
		if p.facts.Podman { // Podman supports neither nr_inodes nor numeric owners; U means the container's user
			text = fmt.Sprintf("%s,size=%d,mode=%s,U", flags, m.Size, m.Mode)
		}
		all[m.Path] = text
	}
	return all
}

// noHealthcheck returns a health check that disables the one of the image. If the image has none, Podman gets nil,
// because it would make a timer even for NONE.
func (p *plan) noHealthcheck() *container.HealthConfig {
	if p.facts.Podman && (p.image.Config == nil || p.image.Config.Healthcheck == nil) {
		return nil
	}
	return &container.HealthConfig{Test: []string{"NONE"}}
}

// judgeMounts resolves the host directories to mount, and refuses forbidden ones.
func (b *Backend) judgeMounts(spec *sandbox.Spec) error {
	var both sandbox.Spec
	both.Mounts, both.Volumes = spec.Mounts, slices.Concat(b.opts.Volumes, spec.Volumes)
	if err := both.WithDefaults().Check(); err != nil { // duplicate paths
		return err
	}
	if len(spec.Mounts) == 0 {
		return nil
	}
	if !b.cli.Local() {
		return backend.NotSupported(
			Name,
			"mount a directory of this machine, because the Docker engine is on another machine",
			"copy files in, or use a named volume of the Docker engine",
		)
	}
	policy := hostpath.Default()
	policy.Allow = b.opts.AllowMounts
	policy.Refuse(b.dir, "the directory of recluse's notes on sandboxes")
	var err error
	spec.Mounts, err = policy.Resolve(spec.Mounts)
	return err
}

// verifyMounts verifies that the Docker engine has mounted the directories that were checked: the engine resolves the
// paths again, and another program may have replaced a directory in between. Where the engine's processes are not
// visible, as on macOS, this cannot be verified.
func (b *Backend) verifyMounts(ctx context.Context, r record) error {
	if len(r.Spec.Mounts) == 0 {
		return nil
	}
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	root := filepath.Join("/proc", strconv.Itoa(res.Container.State.Pid), "root")
	if _, err := os.Stat(root); err != nil {
		return nil //nolint:nilerr // this user may not read it
	}
	for _, m := range r.Spec.Mounts {
		want, err := os.Stat(m.Host)
		if err != nil {
			return hostpath.MountError(m.Host, err)
		}
		got, err := os.Stat(filepath.Join(root, m.Path))
		if err != nil {
			continue // only gVisor's kernel knows the mounts
		}
		if !os.SameFile(want, got) {
			return hostpath.MountError(m.Host, errors.New("the directory was replaced while the sandbox started"))
		}
	}
	return nil
}

// The host's kernel protects the first process of a container from signals of its own user. gVisor's kernel does not.
// So in a sandbox with its own kernel the guest runs as root, as with our gvisor backend, and code can neither stop
// it nor take its file descriptors. These privileges do not exist for the host's kernel. In a sandbox on the host's
// kernel, no process has privileges.

// guestCapabilities are the capabilities that the guest needs to run code as another user, to supervise it, to mount
// its tmpfs (SYS_ADMIN), to answer DNS queries on port 53, to redirect connections to itself (NET_ADMIN, NET_RAW), and
// to make user namespaces that have a root (SETFCAP). Processes that the guest runs do not have them; root has those of
// privilege.ForCode.
var guestCapabilities = []string{
	"CAP_CHOWN",
	"CAP_DAC_OVERRIDE",
	"CAP_FOWNER",
	"CAP_FSETID",
	"CAP_KILL",
	"CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE",
	"CAP_NET_RAW",
	"CAP_SETFCAP",
	"CAP_SETGID",
	"CAP_SETUID",
	"CAP_SETPCAP",
	"CAP_SYS_ADMIN",
	"CAP_SYS_PTRACE",
	"CAP_SYS_RESOURCE",
}

// ownGuest reports whether the guest runs as another user than code. It does not with Podman, because Podman makes
// the container's user the owner of every tmpfs.
func ownGuest(f *dockerengine.Facts) bool { return f.UserSpace() && !f.Podman }

// addGuestCapabilities adds the guest's capabilities to those of a host config. Without them the guest could not run
// anything.
func addGuestCapabilities(f *dockerengine.Facts, caps []string) []string {
	if !ownGuest(f) {
		return caps
	}
	for _, c := range guestCapabilities {
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	return caps
}

// remountedTmpfs returns the tmpfs that the guest mounts again, on top of those of the engine. An engine does not pass
// the limit of inodes to gVisor, and a million files would exhaust the memory of the sandbox. Paths at which a host
// config, a volume or the image mounts something else are skipped.
func (p *plan) remountedTmpfs(hc *container.HostConfig) []launch.Tmpfs {
	if !ownGuest(p.facts) {
		return nil
	}
	ours, others := p.tmpfs(), targets(*hc)
	for target := range hc.Tmpfs {
		if ours[target] == "" {
			others = append(others, target)
		}
	}
	if ic := p.image.Config; ic != nil {
		others = slices.AppendSeq(others, maps.Keys(ic.Volumes))
	}
	var all []launch.Tmpfs
	for _, m := range p.inMemory() {
		taken := slices.ContainsFunc(others, func(target string) bool {
			target = path.Clean("/" + target)
			return target == m.Path || strings.HasPrefix(target, m.Path+"/")
		})
		if !taken && hc.Tmpfs[m.Path] == ours[m.Path] {
			all = append(all, m.Tmpfs)
		}
	}
	return all
}
