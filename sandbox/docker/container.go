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

// plan is a container that is about to be made.
type plan struct {
	record
	facts   *dockerengine.Facts
	options SpecOptions
	image   client.ImageInspectResult
	volume  string // with the guest

	oomScore int            // of what is run
	counted  []launch.Tmpfs // file systems in memory that the guest mounts
}

// guestConfig is what the guest is told at its birth.
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
	if p.Restored != "" {
		c.Unpack = archivePath
	}
	if !p.facts.UserSpace() {
		c.Threads, c.OOMScore = guestThreads, p.oomScore
		return c
	}
	// Users are counted for each sandbox alone there.
	c.Processes, c.Memory = p.Spec.Limits.Processes, p.Spec.Limits.Memory
	if ownGuest(p.facts) {
		c.UID, c.GID, c.Tmpfs = p.User.UID, p.User.GID, p.counted
	}
	return c
}

// socketName is the guest's socket. It has no file; sandboxes that are made to share a network have the names in common too, hence the id.
func socketName(id string) string { return "@recluse-" + id }

// containerConfig is the container as such. The profile comes before it.
func (p *plan) containerConfig(labels map[string]string) (*container.Config, error) {
	guest, err := json.Marshal(p.guestConfig())
	if err != nil {
		return nil, err
	}
	return &container.Config{
		Hostname: cmp.Or(p.Spec.Hostname, p.ID), Image: p.image.ID, Labels: labels, WorkingDir: "/",
		User:       p.guestUser(),
		Entrypoint: []string{guestDir + "/" + bundle.GuestName}, Cmd: []string{},
		Env:         []string{launch.ConfigEnv + "=" + string(guest)},
		Healthcheck: p.noHealthcheck(),
		StopSignal:  "SIGKILL", // whoever stops it need not wait
	}, nil
}

// memoryReserve is what the engine allows above the limit that the guest keeps where the container has a kernel of its own: that kernel's memory, and
// what is taken until the guest has ended who takes it. The guest has no share of the processors to itself there, so that is more than with our own
// gVisor: a hundred processes of 30 MB that start at once took up to 350 MB above a limit of 256, and the engine would have ended the sandbox.
func memoryReserve(limit int64) int64 { return max(512<<20, limit/2) }

// runtimeName is what the engine is told; nothing means its default.
func (b *Backend) runtimeName(f *dockerengine.Facts) string {
	if b.opts.Runtime == "" {
		return ""
	}
	return f.Runtime
}

// profile is what the engine is told about the walls. All of it can be changed by Options.HostConfig, and nothing of it silently.
func (b *Backend) profile(p *plan) (*container.HostConfig, error) {
	l := p.Spec.Limits
	no := false
	memory, pids := l.Memory, int64(l.Processes+processReserve)
	if p.facts.UserSpace() {
		memory += memoryReserve(l.Memory)
		pids = int64(4*l.Processes + 1024)
	}
	hc := &container.HostConfig{
		Runtime: b.runtimeName(p.facts), NetworkMode: container.NetworkMode(b.network()), Init: &no,
		LogConfig: container.LogConfig{Type: "none"}, RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true, IpcMode: container.IPCModePrivate,
		Resources: container.Resources{
			Memory: memory, MemorySwap: memory, // together: no swap
			CPUPeriod: cpuPeriod, CPUQuota: max(1000, int64(math.Round(l.CPUs*cpuPeriod))), PidsLimit: &pids,
		},
		Tmpfs:       p.tmpfs(),
		MaskedPaths: maskedPaths(p.facts),
		Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: p.volume, Target: guestDir, ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		}},
	}
	patch, err := b.patch(p.options)
	if err != nil {
		return nil, err
	}
	if cmp.Or(string(patch.NetworkMode), b.network()) == "none" {
		// The engine would tell the names of the host's servers, which are of no use and nobody's business.
		hc.DNS, hc.DNSSearch = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, []string{"."}
	}
	for _, v := range slices.Concat(b.opts.Volumes, p.Spec.Volumes) {
		hc.Mounts = append(hc.Mounts, mount.Mount{Type: mount.TypeVolume, Source: v.Name, Target: v.Path, ReadOnly: !v.Writable})
	}
	for _, m := range p.Spec.Mounts {
		hc.Mounts = append(hc.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: m.Host, Target: m.Path, ReadOnly: !m.Writable, BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	if err := b.layOver(hc, p.options); err != nil {
		return nil, err
	}
	hc.CapAdd = grant(p.facts, hc.CapAdd)
	p.counted = p.count(hc)
	return hc, nil
}

// ownMasks are files in which the host's kernel shows its machine to a container and which no engine hides: how it was booted, and its disks.
// /proc/meminfo and /proc/cpuinfo stay, because programs read them.
var ownMasks = []string{"/proc/cmdline", "/proc/partitions", "/proc/diskstats", "/proc/swaps"}

// maskedPaths returns what is hidden of the host's kernel: what engines hide by themselves, since a list of ours replaces theirs, and ownMasks. It is
// nil, the engine's own list, where the kernel is not the host's, and for Podman, which has no such list in its API.
func maskedPaths(f *dockerengine.Facts) []string {
	if f.UserSpace() || f.Podman {
		return nil
	}
	all := append([]string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
		"/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}, ownMasks...)
	for cpu := range f.CPUs {
		all = append(all, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return all
}

func (b *Backend) network() string { return b.opts.network() }

// inMemory are the file systems in memory, with their owners. Runtimes give a mount the mode of the directory below it,
// whatever is asked for, so the user has to own it.
func (p *plan) inMemory() []backendkit.Tmpfs {
	all := backendkit.TmpfsLayout(p.Spec.Limits, stateDir, p.WorkDir)
	for i := range all {
		if !all[i].Guest || !ownGuest(p.facts) {
			all[i].UID, all[i].GID = p.User.UID, p.User.GID
		}
	}
	return all
}

// tmpfs returns them for the engine.
func (p *plan) tmpfs() map[string]string {
	all := map[string]string{}
	for _, m := range p.inMemory() {
		flags := "rw,nosuid,nodev,noexec"
		if m.Exec {
			flags = "rw,nosuid,nodev,exec"
		}
		text := fmt.Sprintf("%s,size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d", flags, m.Size, m.Inodes, m.Mode, m.UID, m.GID)
		if p.facts.Podman { // which knows neither the number of files nor users by number; U is the container's own
			text = fmt.Sprintf("%s,size=%d,mode=%s,U", flags, m.Size, m.Mode)
		}
		all[m.Path] = text
	}
	return all
}

// noHealthcheck keeps the image's health check from running beside us. Podman would make a timer also for one that
// says NONE.
func (p *plan) noHealthcheck() *container.HealthConfig {
	if p.facts.Podman && (p.image.Config == nil || p.image.Config.Healthcheck == nil) {
		return nil
	}
	return &container.HealthConfig{Test: []string{"NONE"}}
}

// judgeMounts resolves this machine's directories that are to be seen inside, and refuses those that must not be.
func (b *Backend) judgeMounts(spec *sandbox.Spec) error {
	var both sandbox.Spec
	both.Mounts, both.Volumes = spec.Mounts, slices.Concat(b.opts.Volumes, spec.Volumes)
	if err := both.WithDefaults().Check(); err != nil { // two at one place
		return err
	}
	if len(spec.Mounts) == 0 {
		return nil
	}
	if !b.cli.Local() {
		return backend.NotSupported(Name, "mount a directory of this machine in an engine on another one", "copy files in, or use a named volume of the engine")
	}
	policy := hostpath.Default()
	policy.Allow = b.opts.AllowMounts
	policy.Refuse(b.dir, "recluse's notes on sandboxes")
	var err error
	spec.Mounts, err = policy.Resolve(spec.Mounts)
	return err
}

// shown makes sure that the engine has mounted what was judged: it takes names, and somebody may have been quicker. Where the engine's processes
// cannot be looked at, as on macOS, that cannot be told.
func (b *Backend) shown(ctx context.Context, r record) error {
	if len(r.Spec.Mounts) == 0 {
		return nil
	}
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	root := filepath.Join("/proc", strconv.Itoa(res.Container.State.Pid), "root")
	if _, err := os.Stat(root); err != nil {
		return nil //nolint:nilerr // not ours to look at
	}
	for _, m := range r.Spec.Mounts {
		want, err := os.Stat(m.Host)
		if err != nil {
			return hostpath.MountError(m.Host, err)
		}
		got, err := os.Stat(filepath.Join(root, m.Path))
		if err != nil {
			continue // gVisor's kernel knows its mounts alone
		}
		if !os.SameFile(want, got) {
			return hostpath.MountError(m.Host, errors.New("something else was put in its place while the sandbox started"))
		}
	}
	return nil
}

// The host's kernel protects a container's first process from signals of its own user; gVisor's does not. So with a kernel of its own a sandbox
// has a guest that is root inside, as it is with our own gVisor, and code can neither stop it nor take its descriptors away. The host's
// kernel never sees these rights. On that kernel itself nobody inside has any.

// guestCapabilities are what the guest needs to run code as another user, to look after it, and to mount what its files are in (SYS_ADMIN). Nothing that
// it runs has them.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE",
	"CAP_SYS_RESOURCE",
}

// ownGuest reports that the guest is another user than code. Podman gives file systems in memory to the container's
// user alone.
func ownGuest(f *dockerengine.Facts) bool { return f.UserSpace() && !f.Podman }

// grant adds the guest's capabilities to those that a host config names, without which it could not run anything.
func grant(f *dockerengine.Facts, caps []string) []string {
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

// count gives the file systems in memory that the guest mounts once more, over the engine's: gVisor does not hear from an engine how many files
// there may be in them, and a million would cost the sandbox. Where a host config, a volume or the image has put something else, that stays.
func (p *plan) count(hc *container.HostConfig) []launch.Tmpfs {
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
