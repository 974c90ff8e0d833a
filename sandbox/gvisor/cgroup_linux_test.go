//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestParseCgroupMounts(t *testing.T) {
	const (
		v1mem = "40 31 0:35 / /sys/fs/cgroup/memory rw,nosuid shared:1 - cgroup cgroup rw,memory\n"
		v1cpu = "41 31 0:36 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
		v2    = "42 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
		other = "22 1 0:20 / /proc rw - proc proc rw\nnonsense\n\n"
	)
	tests := map[string]struct {
		mounts  string
		unified bool
		trees   int
		fails   bool
	}{
		"v1":                {other + v1mem + v1cpu, false, 2, false},
		"hybrid":            {v1mem + v1cpu + v2, false, 2, false},
		"v2":                {other + v2, true, 1, false},
		"v1 without memory": {v1cpu + v2, true, 1, false},
		"none":              {other, false, 0, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h, err := parseCgroupMounts(test.mounts)
			if test.fails {
				if !errors.Is(err, errNoCgroups) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || h.unified != test.unified || len(h.trees()) != test.trees {
				t.Errorf("got %+v, %v", h, err)
			}
		})
	}
}

// TestLimitsAreWritten uses a plain directory instead of the kernel's, because a machine has only one version of
// cgroups.
func TestLimitsAreWritten(t *testing.T) {
	const memory, hard = 256 << 20, "536870912" // with the reserve
	tests := map[string]struct {
		unified bool
		want    map[string]string // content of each file
	}{
		"v2": {true, map[string]string{
			"cgroup.subtree_control":             "+cpu +memory +pids",
			"recluse/cgroup.subtree_control":     "+cpu +memory +pids",
			"recluse/one/cgroup.subtree_control": "+cpu +memory +pids",
			"recluse/one/memory.max":             hard,
			"recluse/one/memory.swap.max":        "0",
			"recluse/one/cpu.max":                "50000 100000",
			"recluse/one/app/cpu.max":            "42500 100000",
			"recluse/one/app/cpu.weight":         "10",
			"recluse/one/pids.max":               "2048",
		}},
		"v1": {false, map[string]string{
			"recluse/one/memory.limit_in_bytes":       hard,
			"recluse/one/memory.memsw.limit_in_bytes": hard,
			"recluse/one/cpu.cfs_period_us":           "100000",
			"recluse/one/cpu.cfs_quota_us":            "50000",
			"recluse/one/app/cpu.cfs_period_us":       "100000",
			"recluse/one/app/cpu.cfs_quota_us":        "42500",
			"recluse/one/app/cpu.shares":              "102",
			"recluse/one/pids.max":                    "2048",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file := range test.want { // on a real host the kernel makes them
				path := filepath.Join(root, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			host := &cgroupHost{unified: test.unified, mounts: map[string]string{"": root}}
			if !test.unified {
				host.mounts = map[string]string{"memory": root, "cpu": root, "cpuacct": root, "pids": root}
			}
			g, err := host.create("one", cgroupLimits{memory: memory, cpus: 0.5, pids: 2048})
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range test.want {
				if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v; want %q", file, got, err, want)
				}
			}
			if !isDir(g.dir("cpu", cgroupEngine)) {
				t.Error("the cgroup of the engine is missing")
			}
			if !g.limitsApplied() {
				t.Error("the limits do not count as applied")
			}
			file, none := "cpu.cfs_quota_us", "-1\n"
			if test.unified {
				file, none = "cpu.max", "max 100000\n"
			}
			if err := writeCgroup(g.dir("cpu", cgroupApp), file, none); err != nil || g.limitsApplied() {
				t.Errorf("%v; the limits count as applied although one is missing", err)
			}
			if err := os.Remove(filepath.Join(g.dir("pids"), "pids.max")); err != nil {
				t.Fatal(err)
			}
			if err := g.limit(cgroupLimits{pids: 1}); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a limit that cannot be set: %v", err)
			}
		})
	}
}

// limited starts a sandbox with limits and moves its stubs, or restores it from image.
func limited(t testing.TB, id string, l cgroupLimits, image string) (*box, *cgroup) {
	t.Helper()
	testneed.Root(t, "making cgroups")
	host, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	g, err := host.create(id, l)
	if err != nil {
		t.Fatal(err)
	}
	// This runs after the removal of the sandbox.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cgroupGone)
		defer cancel()
		if err := g.remove(ctx); err != nil {
			t.Error(err)
		}
		for _, tree := range host.trees() {
			if isDir(filepath.Join(tree, cgroupBase, id)) {
				t.Errorf("cgroup of %s is left in %s", id, tree)
			}
		}
	})
	x := b.prepare(id, func(s *bundleSpec) { s.memory, s.cpus = l.memory, l.cpus })
	b.eng.cgroups = true
	if err := x.start(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	x.expect("echo ok", "ok")
	st, err := b.eng.state(id)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.moveStubs(st.Sandbox.Pid, shell); err != nil {
		t.Fatal(err)
	}
	return x, g
}

// This tests only the backstop: the stand-in does not watch the memory as the guest does. Therefore it uses one hog,
// and checks that the kernel killed the hog and not sentry or guest. On a busy machine, the sentry may get no processor
// for so long that the kernel kills it too, because no memory was freed.
func TestKernelKillsTheHog(t *testing.T) {
	var lost error
	for i := range 5 {
		x, g := limited(t, "hog"+itoa(i)+"-"+itoa(os.Getpid()), cgroupLimits{memory: 128 << 20, cpus: 1, pids: 4000}, "")
		if lost = killHog(t, x, g); lost == nil {
			return
		}
		t.Log(lost)
	}
	t.Error(lost)
}

// killHog runs one hog up to the limit. It returns an error if the sandbox was lost.
func killHog(t *testing.T, x *box, g *cgroup) error {
	t.Helper()
	status, err := x.try(`python3 -c 'exec("b=[]\nwhile True: b.append(bytearray(8<<20))")' 2>/dev/null; echo $?`)
	if err == nil && status != "137" {
		t.Errorf("the hog ended with %s", status)
	}
	alive := ""
	if err == nil {
		alive, err = x.try("echo alive")
	}
	if err != nil {
		return err
	}
	if alive != "alive" {
		t.Errorf("the guest answered %q", alive)
	}
	u, err := g.usage()
	if err != nil || u.oomKills == 0 || u.peak < 128<<20 || u.memory == 0 || u.cpu == 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	return nil
}

func TestOurOwnThreadsStayOutside(t *testing.T) {
	_, g := limited(t, "out-"+itoa(os.Getpid()), cgroupLimits{memory: 512 << 20, cpus: 1}, "")
	// The thread that started the engine exits soon after.
	for deadline := time.Now().Add(answerWait); ; time.Sleep(time.Millisecond) {
		threads, err := os.ReadFile(filepath.Join(g.dir("memory", cgroupEngine), "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains("\n"+string(threads), "\n"+itoa(os.Getpid())+"\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a thread of ours is still in the sandbox's cgroup")
		}
	}
}

// A process that has only a thread in the cgroup must survive the removal: it may be this program.
func TestRemoveSparesItsCaller(t *testing.T) {
	testneed.Root(t, "making cgroups")
	host, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		g, err := host.create("spare-"+itoa(os.Getpid())+"-"+itoa(i), cgroupLimits{memory: 64 << 20, cpus: 1})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		if err := g.start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := g.remove(t.Context()); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the process in the cgroup was not killed")
		}
	}
}

// unifiedTree returns a tree of cgroup v2, and mounts one if necessary. An existing mount is used unchanged, because a
// second mount would change its options.
func unifiedTree(t *testing.T) string {
	t.Helper()
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mountinfo)) {
		if strings.Contains(line, " - cgroup2 ") {
			return strings.Fields(line)[4]
		}
	}
	dir := t.TempDir()
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		testneed.Lacking(t, "cgroup v2:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Hosts with controllers on v1 can have an empty v2 hierarchy. It is enough to test the start of a process in it.
func TestStartIntoUnified(t *testing.T) {
	testneed.Root(t, "making cgroups")
	host := &cgroupHost{unified: true, mounts: map[string]string{"": unifiedTree(t)}}
	g := host.open("v2-" + itoa(os.Getpid()))
	if err := errors.Join(makeCgroup(g.dir("")), os.Mkdir(g.dir("", cgroupEngine), 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if err := g.start(cmd); err != nil {
		t.Fatal(err)
	}
	places, err := os.ReadFile(filepath.Join("/proc", itoa(cmd.Process.Pid), "cgroup"))
	if err != nil || !strings.Contains(string(places), "0::"+g.path()) {
		t.Errorf("started in %s, %v", places, err)
	}
	if err := g.remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process in the cgroup was not killed")
	}
	if isDir(g.dir("")) {
		t.Error("the cgroup still exists")
	}
}

func TestGuestAnswersWhileOthersSpin(t *testing.T) {
	x, _ := limited(t, "spin-"+itoa(os.Getpid()), cgroupLimits{memory: 512 << 20, cpus: 1}, "")
	x.expect("for i in $(seq 40); do (while :; do :; done) & done; echo ok", "ok")
	for range 5 {
		x.expect("echo ok", "ok")
	}
}

func TestStubsAreSeparated(t *testing.T) {
	x, g := limited(t, "stub-"+itoa(os.Getpid()), cgroupLimits{memory: 512 << 20, cpus: 1}, "")
	x.expect("sleep 60 & echo ok", "ok")
	st, err := x.eng.state(x.id)
	if err != nil {
		t.Fatal(err)
	}
	app, err := os.ReadFile(filepath.Join(g.dir("cpu", cgroupApp), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	members := strings.Fields(string(app))
	// The source stub, and at least the pair of the sleeping process.
	if len(members) < 2 {
		t.Errorf("too few processes %v in %s", members, cgroupApp)
	}
	for _, pid := range members {
		score, err := os.ReadFile(filepath.Join("/proc", pid, "oom_score_adj"))
		if err == nil && strings.TrimSpace(string(score)) != stubScore {
			t.Errorf("stub %s has score %s", pid, score)
		}
		if n := atoi(t, pid); n == st.Sandbox.Pid || n == st.GoferPid {
			t.Errorf("the engine's own process %d is in the cgroup of commands", n)
		}
	}
}

// cgroupUsage are the counters of the kernel for a sandbox.
type cgroupUsage struct {
	memory   int64         // bytes in use
	peak     int64         // highest number of bytes in use; 0: unknown
	oomKills int64         // processes that the host's kernel killed at the memory limit
	cpu      time.Duration // used by all processes; 0: unknown
}

// usage reads the counters.
func (g *cgroup) usage() (cgroupUsage, error) {
	var u cgroupUsage
	var err error
	if g.host.unified {
		if u.memory, err = readCgroupInt(g.dir("memory"), "memory.current"); err != nil {
			return u, err
		}
		u.peak, _ = readCgroupInt(g.dir("memory"), "memory.peak") // since Linux 5.19
		if u.oomKills, err = readCgroupKey(g.dir("memory"), "memory.events", "oom_kill"); err != nil {
			return u, err
		}
		usec, _ := readCgroupKey(g.dir("cpu"), "cpu.stat", "usage_usec")
		u.cpu = time.Duration(usec) * time.Microsecond
		return u, nil
	}
	if u.memory, err = readCgroupInt(g.dir("memory"), "memory.usage_in_bytes"); err != nil {
		return u, err
	}
	u.peak, _ = readCgroupInt(g.dir("memory"), "memory.max_usage_in_bytes")
	// On v1, a kill is counted in the cgroup of the killed process, not in its parents.
	for _, below := range [][]string{nil, {cgroupEngine}} {
		n, err := readCgroupKey(g.dir("memory", below...), "memory.oom_control", "oom_kill")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return u, err
		}
		u.oomKills += n
	}
	if g.host.mounts["cpuacct"] != "" {
		nsec, _ := readCgroupInt(g.dir("cpuacct"), "cpuacct.usage")
		u.cpu = time.Duration(nsec)
	}
	return u, nil
}

func readCgroupInt(dir, file string) (int64, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// readCgroupKey reads one value from a file with "key value" lines.
func readCgroupKey(dir, file, key string) (int64, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s in %s: %w", key, dir, fs.ErrNotExist)
}
