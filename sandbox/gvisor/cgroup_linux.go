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

// A limit on a single cgroup is not enough to enforce limits without losing the sandbox. What the host's kernel sees of
// a sandbox are the sentry (gVisor's kernel, a process of ours), its gofer, and the stubs: processes whose address
// spaces are those of the processes inside. Without further measures, the host's kernel decides wrongly in two
// respects:
//
//   - Memory. At the limit it kills the biggest process, which is often the sentry: its text, its view of the guest's
//     memory and every page it copied for a process count as its own. Measured at 256 MiB: one memory hog killed the
//     sandbox at the third try, five forked hogs at the first.
//   - CPU. Busy processes inside share the quota evenly with sentry and guest. With about 70 of them and one CPU, a
//     ping took 0.26 s, at worst 1.1 s.
//
// All stubs are cloned from one process, the source stub, and a clone inherits cgroup and oom_score_adj. Therefore
// moveStubs moves the source stub and all existing stubs into their own cgroup with less CPU than the whole sandbox,
// and makes them the first choice of the OOM killer. The guest's own stub stays with the sentry. With that, a ping took
// at most 0.06 s with about 180 busy processes, and the kernel killed a hog in 30 of 30 tries with one, two and five
// hogs.
//
// The kernel's choice is still poor. Killing a stub frees nothing until the sentry has returned the pages, so the
// kernel kills more: a hundred small hogs killed the sandbox, and one hog at a tight limit killed the source stub,
// after which nothing inside can be executed. Memory that the sentry copied for a process (a pipe, a read) still counts
// as the sentry's. Therefore the guest watches the memory itself and kills the offender at the limit. The limit of the
// cgroup is higher by memoryReserve and only applies to what the guest missed.
//
//	/recluse/<id>          limits of the whole sandbox
//	/recluse/<id>/engine   sentry, gofer, the guest's stub
//	/recluse/<id>/app      all other stubs
//
// The layout is the same on cgroup v1 and v2. v2 allows processes only in leaves.
const (
	cgroupBase   = "recluse"
	cgroupEngine = "engine"
	cgroupApp    = "app"
)

const (
	// appShare is the part of the CPU quota that the processes of commands may use together. The rest keeps sentry and
	// guest responsive.
	appShare = 0.85
	// appShares (v1) and appWeight (v2) are the CPU weight of commands if there is no quota: a tenth of that of sentry
	// and guest.
	appShares, appWeight = 102, 10
	// stubScore is the oom_score_adj of the stubs. It is the highest value, so that the kernel kills every stub before
	// the sentry.
	stubScore = "1000"
	// cgroupGone is how long to wait for a cgroup to become empty.
	cgroupGone = 5 * time.Second
	// cgroupPoll is the time between two checks whether a cgroup is empty.
	cgroupPoll = 2 * time.Millisecond
	// moveRounds is how often moveStubs looks for stubs that were made while it worked.
	moveRounds = 8
)

// memoryReserve returns how much the limit of the cgroup is above the limit that the guest enforces. The reserve covers
// what a fast hog allocates until the guest has killed it (30 to 60 MB were measured), what killed processes hold until
// gVisor has freed it, and the engine's own memory (30 MB). With a reserve of 128 MiB, a hundred processes of 20 MB
// each still reached the limit of the cgroup, where everything becomes slow: 115 s instead of 10 s.
func memoryReserve(limit int64) int64 { return max(256<<20, limit/2) }

// controllers are the cgroup controllers in use. memory and cpu are required.
var controllers = []string{"memory", "cpu", "cpuacct", "pids"}

// errNoCgroups is wrapped by all errors that say why there are no cgroups to use.
var errNoCgroups = errors.New("cgroup limits are not available")

// cgroupHost describes the cgroup file systems of the host.
type cgroupHost struct {
	unified bool
	// mounts maps each controller in use to the mount point of its v1 hierarchy. For v2 it has one entry, with the key
	// "".
	mounts map[string]string
}

// cgroupLimits are the limits of a sandbox. Zero means no limit.
type cgroupLimits struct {
	memory int64   // bytes that commands may use
	cpus   float64 // processors
	// pids limits processes and threads on the host. It is a backstop far above what RLIMIT_NPROC allows inside,
	// because reaching it ends the sandbox.
	pids int64
}

// findCgroups returns the cgroup file systems of the host, after it has tried to use them. The error wraps
// errNoCgroups.
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

// mountedCgroups returns the mounted cgroup file systems of the host.
func mountedCgroups() (*cgroupHost, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCgroups, err)
	}
	return parseCgroupMounts(string(mountinfo))
}

// parseCgroupMounts returns the cgroup mounts in the text of a mountinfo file. If both required controllers are on v1,
// v1 is used.
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

// probe makes and removes the cgroups of a sandbox.
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

// trees returns the mount points of all hierarchies, without duplicates.
func (h *cgroupHost) trees() []string {
	var trees []string
	for _, m := range h.mounts {
		trees = append(trees, m)
	}
	slices.Sort(trees)
	return slices.Compact(trees)
}

// tree returns the mount point of the hierarchy that has the controller.
func (h *cgroupHost) tree(controller string) string {
	if h.unified {
		return h.mounts[""]
	}
	return h.mounts[controller]
}

// cgroup represents the cgroups of one sandbox. It holds no open files, so any process can use them by ID.
type cgroup struct {
	host *cgroupHost
	id   string
}

// open returns the cgroups of an existing sandbox.
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
				return nil, fmt.Errorf("enable controllers in %s/*: %w", dir, err)
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

// start starts cmd in the engine's cgroup.
//
// Moving a process into a cgroup, even right after its start, costs an RCU grace period of the kernel (10 to 16 ms
// here). Starting it in the cgroup costs nothing. On v2, CLONE_INTO_CGROUP does that. On v1, a thread of this program
// moves only itself ("0" in tasks), forks, and exits.
func (g *cgroup) start(cmd *exec.Cmd) error {
	if g.host.unified {
		dir, err := os.Open(g.dir("", cgroupEngine))
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		cmd.SysProcAttr.UseCgroupFD = true
		cmd.SysProcAttr.CgroupFD = int(dir.Fd())
		return startWithSlack(cmd)
	}
	done := make(chan error, 1)
	go g.startOnThread(cmd, done)
	return <-done
}

// startOnThread moves the calling thread into the engine's cgroup and starts cmd from it. The thread exits with the
// goroutine.
func (g *cgroup) startOnThread(cmd *exec.Cmd, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread never exits, and /proc/PID/cgroup shows its cgroup as that of the whole process. While it is
		// locked here, the next goroutine runs on another thread.
		defer runtime.UnlockOSThread()
		next := make(chan error, 1)
		go g.startOnThread(cmd, next)
		done <- <-next
		return
	}
	// The thread is never unlocked. Therefore it exits, and no other code of this program runs in the cgroup of the
	// sandbox.
	for _, tree := range g.host.trees() {
		if err := writeCgroup(filepath.Join(tree, cgroupBase, g.id, cgroupEngine), "tasks", "0"); err != nil {
			done <- err
			return
		}
	}
	done <- startWithSlack(cmd)
}

// makeCgroup makes dir and its parent. It retries, because another process may remove the empty parent in between.
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

// path returns the path of the engine's cgroup for an OCI spec.
func (g *cgroup) path() string { return "/" + filepath.Join(cgroupBase, g.id, cgroupEngine) }

// dir returns the directory of the sandbox's cgroup, or of a cgroup below it, in the hierarchy that has the controller.
func (g *cgroup) dir(controller string, below ...string) string {
	parts := append([]string{g.host.tree(controller), cgroupBase, g.id}, below...)
	return filepath.Join(parts...)
}

// limit sets the limits of the whole sandbox and of its commands.
func (g *cgroup) limit(l cgroupLimits) error {
	var errs []error
	set := func(dir, file, value string) { errs = append(errs, writeCgroup(dir, file, value)) }
	if l.memory > 0 {
		hard := strconv.FormatInt(l.memory+memoryReserve(l.memory), 10)
		if g.host.unified {
			set(g.dir("memory"), "memory.max", hard)
			// The file is missing without swap accounting; then there is no swap to limit.
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

// limitsApplied reports whether the CPU limits are set, which are the last limits that a new sandbox gets. If the files
// cannot be read, it reports true, because then nothing can be set either.
func (g *cgroup) limitsApplied() bool {
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

// remove kills the processes in the cgroups of the sandbox and removes the cgroups, and their parent if it is empty.
// Missing cgroups are not an error.
func (g *cgroup) remove(ctx context.Context) error {
	var errs []error
	for _, tree := range g.host.trees() {
		dir := filepath.Join(tree, cgroupBase, g.id)
		for _, sub := range []string{filepath.Join(dir, cgroupApp), filepath.Join(dir, cgroupEngine), dir} {
			errs = append(errs, removeCgroup(ctx, sub))
		}
		// It fails while other sandboxes exist.
		_ = unix.Rmdir(filepath.Join(tree, cgroupBase))
	}
	return errors.Join(errs...)
}

// removeCgroup removes one cgroup after killing the processes in it, which all belong to one sandbox.
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

// killMembers kills the processes in a cgroup. On v1, cgroup.procs also lists processes that have only a thread in the
// cgroup, such as our own program when it has just started an engine (startOnThread). Therefore the cgroup of the main
// thread decides.
func killMembers(dir string) {
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	own := "/" + filepath.Join(cgroupBase, cgroupOwner(dir)) + "/"
	for _, text := range strings.Fields(string(procs)) {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		groups, _ := os.ReadFile(filepath.Join("/proc", text, "cgroup"))
		if strings.Contains(string(groups), own) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// cgroupOwner returns the ID of the sandbox to which the cgroup dir belongs.
func cgroupOwner(dir string) string {
	if name := filepath.Base(dir); name != cgroupApp && name != cgroupEngine {
		return name
	}
	return filepath.Base(filepath.Dir(dir))
}

// writeCgroup writes a value to an existing file of the kernel.
func writeCgroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
