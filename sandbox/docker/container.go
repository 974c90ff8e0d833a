package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// plan is a container that is about to be made.
type plan struct {
	record
	facts   *facts
	options SpecOptions
	image   client.ImageInspectResult
	volume  string // with the guest
	token   string

	oomScore int           // of what is run
	counted  []agent.Tmpfs // file systems in memory that the guest mounts
}

// userSpace says that processes inside are not the host kernel's own: its limits then hit the sandbox and not the offender, and the guest
// keeps them instead.
func (f *facts) userSpace() bool { return f.level >= sandbox.IsolationKernel }

// guestConfig is what the guest is told at its birth.
func (p *plan) guestConfig() agent.Config {
	l := p.Spec.Limits
	c := agent.Config{
		Token: p.token, UID: -1, GID: -1, Home: sandbox.DefaultHome, Dir: sandbox.DefaultHome, State: stateDir,
		Socket: socketName(p.ID), Peer: p.bridge().UID,
		OpenFiles: l.OpenFiles, CPUs: int(math.Ceil(l.CPUs)), Filter: true,
	}
	if p.Restored != "" {
		c.Unpack = archivePath
	}
	if p.facts.userSpace() {
		// Users are counted for each sandbox alone there.
		c.Processes, c.Memory = l.Processes, l.Memory
		if p.facts.ownGuest() {
			c.UID, c.GID, c.Tmpfs = p.User.UID, p.User.GID, p.counted
		}
	} else {
		c.Threads, c.OOMScore = guestThreads, p.oomScore
	}
	if ic := p.image.Config; ic != nil {
		c.Env = slices.Clone(ic.Env)
		if ic.WorkingDir != "" && ic.WorkingDir != "/" {
			c.Dir = ic.WorkingDir
		}
	}
	if p.Spec.Dir != "" {
		c.Dir = p.Spec.Dir
	}
	if p.User.Name != "" {
		c.Env = append(c.Env, "USER="+p.User.Name, "LOGNAME="+p.User.Name)
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
	hostname := p.Spec.Hostname
	if hostname == "" {
		hostname = p.ID
	}
	return &container.Config{
		Hostname: hostname, Image: p.image.ID, Labels: labels, WorkingDir: "/",
		User:       p.guestUser(),
		Entrypoint: []string{guestDir + "/" + bundle.GuestName}, Cmd: []string{},
		Env:         []string{agent.ConfigEnv + "=" + string(guest)},
		Healthcheck: p.noHealthcheck(),
		StopSignal:  "SIGKILL", // whoever stops it need not wait
	}, nil
}

// memoryReserve is what the engine allows above the limit that the guest keeps where the container has a kernel of its own: that kernel's memory, and
// what is taken until the guest has ended who takes it. The guest has no share of the processors to itself there, so that is more than with our own
// gVisor: a hundred processes of 30 MB that start at once took up to 350 MB above a limit of 256, and the engine would have ended the sandbox.
func memoryReserve(limit int64) int64 { return max(512<<20, limit/2) }

// runtimeName is what the engine is told; nothing means its default.
func (b *Backend) runtimeName(f *facts) string {
	if b.opts.Runtime == "" {
		return ""
	}
	return f.runtime
}

// profile is what the engine is told about the walls. All of it can be changed by Options.HostConfig, and nothing of it silently.
func (b *Backend) profile(p *plan) (*container.HostConfig, error) {
	l := p.Spec.Limits
	no := false
	memory, pids := l.Memory, int64(l.Processes+processReserve)
	if p.facts.userSpace() {
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
		Tmpfs: tmpfs(l, p.facts, p.User),
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
	hc.CapAdd = p.facts.grant(hc.CapAdd)
	p.counted = p.count(hc)
	return hc, nil
}

func (b *Backend) network() string { return b.opts.network() }

// inMemory are file systems in memory: who has which part of the disk, and the files it may have.
type inMemory struct {
	path        string
	share       int64 // one in how many
	mode, flags string
	guest       bool // it is the guest's own
}

var filesInMemory = []inMemory{
	{path: sandbox.DefaultHome, share: 2, mode: "0750", flags: "exec"}, // compiled parts of packages are loaded from there
	{path: "/tmp", share: 4, mode: "1777", flags: "exec"},
	{path: "/var/tmp", share: 16, mode: "1777", flags: "exec"},
	{path: "/dev/shm", share: 16, mode: "1777", flags: "noexec"},
	{path: stateDir, share: 8, mode: "0755", flags: "noexec", guest: true},
}

// inodes is how many files there may be in all of them: each costs memory that no size counts, so their number is bounded by what it may take.
func inodes(l sandbox.Limits) int64 {
	const perFile = 2 << 10
	return max(1024, l.Memory/8/perFile)
}

// owner is whose a file system is. Runtimes give a mount the mode of the directory below it, whatever is asked for, so the user has to own it.
func (m inMemory) owner(f *facts, user sandbox.User) sandbox.User {
	if m.guest && f.ownGuest() {
		return sandbox.User{}
	}
	return user
}

// tmpfs shares the disk out among the file systems in memory.
func tmpfs(l sandbox.Limits, f *facts, user sandbox.User) map[string]string {
	all := map[string]string{}
	for _, m := range filesInMemory {
		u := m.owner(f, user)
		all[m.path] = fmt.Sprintf("rw,nosuid,nodev,%s,size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d", m.flags, l.Disk/m.share, inodes(l)/m.share, m.mode, u.UID, u.GID)
		if f.podman { // which knows neither the number of files nor users by number; U is the container's own
			all[m.path] = fmt.Sprintf("rw,nosuid,nodev,%s,size=%d,mode=%s,U", m.flags, l.Disk/m.share, m.mode)
		}
	}
	return all
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
	if !b.local() {
		return backend.NotSupported(Name, "mount a directory of this machine in an engine on another one", "copy files in, or use a named volume of the engine")
	}
	policy := hostpath.Default()
	policy.Allow = b.opts.AllowMounts
	policy.Refuse(b.dir, "recluse's notes on sandboxes")
	for i, m := range spec.Mounts {
		resolved, err := policy.Judge(m.Host)
		if err != nil {
			return hostpath.MountError(m.Host, err)
		}
		spec.Mounts[i].Host = resolved
	}
	return nil
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
