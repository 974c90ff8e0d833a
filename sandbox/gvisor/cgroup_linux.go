//go:build linux

package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"
)

// Limits that hold without losing the sandbox need more than a limit on a cgroup. What the kernel sees of a sandbox are the
// sentry (gVisor's kernel, a process of ours), its gofer, and the stubs: processes whose address spaces are those of the processes
// inside. Left alone, the host's kernel gets both judgements wrong:
//
//   - Memory. At the limit it kills what is biggest, and that is often the sentry: its text, its view of the guest's memory and
//     every page it copied for a process count as its own. Measured at 256 MiB: one hog cost the sandbox at the third try,
//     five forked hogs at the first.
//   - CPU. Spinning processes inside share the quota evenly with sentry and guest: with about 70 of them and one CPU a ping
//     took 0.26 s, at worst 1.1 s.
//
// All stubs are cloned from one, the source stub, and a clone inherits cgroup and oom_score_adj. So adopt moves that one (and
// those that exist) into a cgroup of their own with less CPU than the whole, and offers them to the out-of-memory killer
// first; the guest's own stub stays with the sentry. A ping then took at most 0.06 s with about 180 spinning, and the kernel
// chose a hog in 30 of 30 tries with one, two and five of them.
//
// The kernel remains a poor judge. Killing a stub frees nothing until the sentry has given the pages back, so it kills on: a hundred
// small hogs cost the sandbox, one hog at a tight limit the source stub, after which nothing inside can be executed; and what the
// sentry copied for a process (a pipe, a read) still counts as the sentry's. Hence the guest must watch the memory itself and kill the offender
// at the limit; the cgroup's limit is higher by memoryReserve and only catches what the guest missed.
//
//	/recluse/<id>          the limits of the whole
//	/recluse/<id>/engine   sentry, gofer, the guest's stub
//	/recluse/<id>/app      all other stubs
//
// The same on cgroup v1 and v2; v2 wants processes in leaves only.
const (
	cgroupBase   = "recluse"
	cgroupEngine = "engine"
	cgroupApp    = "app"
)

const (
	// appShare is the part of the CPU quota that the commands' processes may use together: the rest keeps sentry and guest
	// answering.
	appShare = 0.85
	// appWeight is the commands' weight against sentry and guest when there is no quota, a tenth (v1 shares, v2 weight).
	appShares, appWeight = 102, 10
	// stubScore is the stubs' oom_score_adj: the highest, so that everything but the sentry is taken first.
	stubScore = "1000"
	// cgroupGone bounds the wait for a cgroup to become empty.
	cgroupGone = 5 * time.Second
	// cgroupPoll is how often that is looked at.
	cgroupPoll = 2 * time.Millisecond
	// adoptRounds bounds how often adopt looks again for stubs made while it worked.
	adoptRounds = 8
)

// memoryReserve is what the cgroup allows above the limit the guest keeps: what a fast hog takes in the time the guest
// needs to end it (30 to 60 MB were seen), what killed processes hold until gVisor has given it back, and the engine's own memory
// (30 MB). With 128 MiB a hundred processes of 20 MB each still reached it, and at its limit a cgroup crawls: 115 s instead of 10.
func memoryReserve(limit int64) int64 { return max(256<<20, limit/2) }

// controllers are those we use where they are; memory and cpu must be.
var controllers = []string{"memory", "cpu", "cpuacct", "pids"}

// errNoCgroups says why there are no cgroups to use.
var errNoCgroups = errors.New("cgroup limits are not available")

// cgroupHost is the host's cgroup file systems.
type cgroupHost struct {
	unified bool
	// mounts is where the v1 hierarchies of the controllers we use are mounted, by controller; for v2 the one mount, by "".
	mounts map[string]string
}

// cgroupLimits are a sandbox's limits; zero is none.
type cgroupLimits struct {
	memory int64   // bytes, what commands may use
	cpus   float64 // processors
	pids   int64   // host processes and threads; a backstop far above what RLIMIT_NPROC allows inside, for hitting it ends the sandbox
}

// findCgroups finds the host's cgroup file systems and tries whether we may use them. The error wraps errNoCgroups and says why not.
func findCgroups() (*cgroupHost, error) {
	h, err := mountedCgroups()
	if err != nil {
		return nil, err
	}
	if err := h.probe(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCgroups, err)
	}
	return h, nil
}

// mountedCgroups finds the host's cgroup file systems.
func mountedCgroups() (*cgroupHost, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCgroups, err)
	}
	return parseCgroupMounts(string(mountinfo))
}

// parseCgroupMounts reads the cgroup mounts from the text of a mountinfo file. A host that has both needed controllers on v1 is
// driven as v1.
func parseCgroupMounts(mountinfo string) (*cgroupHost, error) {
	v1, v2 := map[string]string{}, ""
	lines := bufio.NewScanner(strings.NewReader(mountinfo))
	for lines.Scan() {
		// 36 35 98:0 /root /mountpoint options optional... - type source superoptions
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			v2 = l[4]
		case "cgroup":
			for _, option := range strings.Split(r[2], ",") {
				if slices.Contains(controllers, option) {
					v1[option] = l[4]
				}
			}
		}
	}
	if v1["memory"] != "" && v1["cpu"] != "" {
		return &cgroupHost{mounts: v1}, nil
	}
	if v2 != "" {
		return &cgroupHost{unified: true, mounts: map[string]string{"": v2}}, nil
	}
	return nil, fmt.Errorf("%w: no hierarchy with the controllers memory and cpu is mounted", errNoCgroups)
}

// probe tries what create will do.
func (h *cgroupHost) probe() error {
	id := "probe-" + strconv.Itoa(os.Getpid())
	g, err := h.create(id, cgroupLimits{memory: 256 << 20, cpus: 1})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cgroupGone)
	defer cancel()
	return g.remove(ctx)
}

// trees are the mount points of all hierarchies, each once.
func (h *cgroupHost) trees() []string {
	var trees []string
	for _, m := range h.mounts {
		trees = append(trees, m)
	}
	slices.Sort(trees)
	return slices.Compact(trees)
}

// tree is the mount point of the hierarchy that has the controller.
func (h *cgroupHost) tree(controller string) string {
	if h.unified {
		return h.mounts[""]
	}
	return h.mounts[controller]
}

// cgroup is one sandbox's cgroups. It holds nothing open: open returns it again in another process.
type cgroup struct {
	host *cgroupHost
	id   string
}

// open returns the cgroups of a sandbox that exists.
func (h *cgroupHost) open(id string) *cgroup { return &cgroup{host: h, id: id} }

// create makes the cgroups of a new sandbox and sets its limits.
func (h *cgroupHost) create(id string, l cgroupLimits) (_ *cgroup, err error) {
	g := h.open(id)
	cu := cleanup.Make(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cgroupGone)
		defer cancel()
		err = errors.Join(err, g.remove(ctx))
	})
	defer cu.Clean()
	for _, tree := range h.trees() {
		if err := makeCgroup(filepath.Join(tree, cgroupBase, id)); err != nil {
			return nil, err
		}
	}
	if h.unified {
		root := h.mounts[""]
		for _, dir := range []string{root, filepath.Join(root, cgroupBase), filepath.Join(root, cgroupBase, id)} {
			if err := writeCgroup(dir, "cgroup.subtree_control", "+cpu +memory +pids"); err != nil {
				return nil, fmt.Errorf("passing controllers on to %s/*: %w", dir, err)
			}
		}
	}
	for _, tree := range h.trees() {
		for _, name := range []string{cgroupEngine, cgroupApp} {
			err := os.Mkdir(filepath.Join(tree, cgroupBase, id, name), 0o755)
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		}
	}
	if err := g.limit(l); err != nil {
		return nil, err
	}
	cu.Release()
	return g, nil
}

// start starts cmd inside the engine's cgroup.
//
// A process that is moved, or started and then moved, costs a grace period of the kernel (10 to 16 ms here). Started there at once it
// costs nothing: with CLONE_INTO_CGROUP on v2, and on v1 by a thread of ours that moved only itself ("0" in
// tasks), forks, and ends.
func (g *cgroup) start(cmd *exec.Cmd) error {
	if g.host.unified {
		dir, err := os.Open(g.dir("", cgroupEngine))
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(dir.Fd())
		return startSlack(cmd)
	}
	done := make(chan error, 1)
	go g.startOnThread(cmd, done)
	return <-done
}

// startOnThread moves the calling thread into the engine's cgroup, starts cmd from it, and ends the thread with the goroutine.
func (g *cgroup) startOnThread(cmd *exec.Cmd, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread never ends, and would take the whole process along in the eyes of whoever looks. While it is
		// locked here, the next goroutine gets another one.
		defer runtime.UnlockOSThread()
		next := make(chan error, 1)
		go g.startOnThread(cmd, next)
		done <- <-next
		return
	}
	// Never unlocked: so the thread ends, and no other code of ours runs in the sandbox's cgroup.
	for _, tree := range g.host.trees() {
		if err := writeCgroup(filepath.Join(tree, cgroupBase, g.id, cgroupEngine), "tasks", "0"); err != nil {
			done <- err
			return
		}
	}
	done <- startSlack(cmd)
}

// makeCgroup makes dir and its parent. Another process may remove the empty parent in between.
func makeCgroup(dir string) error {
	var err error
	for range 10 {
		if err = os.Mkdir(dir, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err = os.Mkdir(filepath.Dir(dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return err
}

// path is the engine's cgroup as an OCI spec names it.
func (g *cgroup) path() string { return "/" + filepath.Join(cgroupBase, g.id, cgroupEngine) }

// dir is the sandbox's cgroup in the hierarchy that has the controller, or one below it.
func (g *cgroup) dir(controller string, below ...string) string {
	parts := append([]string{g.host.tree(controller), cgroupBase, g.id}, below...)
	return filepath.Join(parts...)
}

// limit sets the limits of the whole and of the commands' part.
func (g *cgroup) limit(l cgroupLimits) error {
	var errs []error
	set := func(dir, file, value string) { errs = append(errs, writeCgroup(dir, file, value)) }
	if l.memory > 0 {
		hard := strconv.FormatInt(l.memory+memoryReserve(l.memory), 10)
		if g.host.unified {
			set(g.dir("memory"), "memory.max", hard)
			// Absent without swap accounting, and then there is nothing to forbid.
			_ = writeCgroup(g.dir("memory"), "memory.swap.max", "0")
		} else {
			set(g.dir("memory"), "memory.limit_in_bytes", hard)
			_ = writeCgroup(g.dir("memory"), "memory.memsw.limit_in_bytes", hard)
		}
	}
	if l.cpus > 0 {
		whole := cpuQuota(l.cpus)
		app := max(int64(float64(whole)*appShare), minCPUQuota)
		for dir, quota := range map[string]int64{g.dir("cpu"): whole, g.dir("cpu", cgroupApp): app} {
			if g.host.unified {
				set(dir, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod))
			} else {
				set(dir, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod))
				set(dir, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
			}
		}
	}
	if g.host.unified {
		set(g.dir("cpu", cgroupApp), "cpu.weight", strconv.Itoa(appWeight))
	} else {
		set(g.dir("cpu", cgroupApp), "cpu.shares", strconv.Itoa(appShares))
	}
	if l.pids > 0 && (g.host.unified || g.host.mounts["pids"] != "") {
		set(g.dir("pids"), "pids.max", strconv.FormatInt(l.pids, 10))
	}
	return errors.Join(errs...)
}

// settled reports whether the processors are limited, which is the last that is done about a sandbox's limits. Where that cannot be told, nothing can
// be done about it either.
func (g *cgroup) settled() bool {
	file, none := "cpu.cfs_quota_us", "-1"
	if g.host.unified {
		file, none = "cpu.max", "max"
	}
	for _, dir := range []string{g.dir("cpu"), g.dir("cpu", cgroupApp)} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil && strings.HasPrefix(string(text), none) {
			return false
		}
	}
	return true
}

// remove ends what is left in the sandbox's cgroups and removes them, and the common parent when it is empty. What is not there is
// fine.
func (g *cgroup) remove(ctx context.Context) error {
	var errs []error
	for _, tree := range g.host.trees() {
		dir := filepath.Join(tree, cgroupBase, g.id)
		for _, sub := range []string{filepath.Join(dir, cgroupApp), filepath.Join(dir, cgroupEngine), dir} {
			errs = append(errs, removeCgroup(ctx, sub))
		}
		// Others may be in it.
		_ = unix.Rmdir(filepath.Join(tree, cgroupBase))
	}
	return errors.Join(errs...)
}

// removeCgroup removes one cgroup, killing the processes in it. They are a sandbox's and nobody else's.
func removeCgroup(ctx context.Context, dir string) error {
	deadline := time.Now().Add(cgroupGone)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s: %w", dir, err)
		}
		killMembers(dir)
		select {
		case <-ctx.Done():
			return fmt.Errorf("cgroup %s: %w", dir, context.Cause(ctx))
		case <-time.After(cgroupPoll):
		}
	}
}

// killMembers kills the processes in a cgroup. On v1 cgroup.procs also lists processes of which only a thread is there, and such
// is a process of ours that has just started an engine (startOnThread): the main thread's place decides.
func killMembers(dir string) {
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	place := "/" + filepath.Join(cgroupBase, cgroupOwner(dir)) + "/"
	for _, text := range strings.Fields(string(procs)) {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		places, _ := os.ReadFile(filepath.Join("/proc", text, "cgroup"))
		if strings.Contains(string(places), place) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// cgroupOwner is the id of the sandbox whose cgroup, or one below it, dir is.
func cgroupOwner(dir string) string {
	if name := filepath.Base(dir); name != cgroupApp && name != cgroupEngine {
		return name
	}
	return filepath.Base(filepath.Dir(dir))
}

// writeCgroup writes a kernel file, which must exist.
func writeCgroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
