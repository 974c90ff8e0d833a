//go:build linux

package memory

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// machine is the processes and the memory of a sandbox. Tests use a fake: the real one stops all processes it can see.
type machine interface {
	usage() (usage, bool)
	// tasks returns the number of threads, including those of the guest; 0: unknown.
	tasks() int
	list() ([]proc.Process, error)
	pids() ([]int, error)
	process(pid int) (proc.Process, bool)
	// footprint returns the memory of a process in bytes, and the number of its pipes and sockets.
	footprint(pid int) (bytes int64, channels int)
	signal(pid int, s syscall.Signal) error
	// stopAll stops all processes except own with one system call, where that is possible.
	stopAll(own map[int]bool)
}

// usage is the memory usage as the kernel reports it.
type usage struct {
	total  int64
	used   int64 // includes files in memory; may exceed total
	cached int64 // files, as the kernel reports them
	kernel int64 // at least this much belongs to no process or file: memory of the kernel, or not yet released
}

// Size is the memory of a sandbox in bytes.
type Size struct {
	Total, Used int64
	Cached      int64 // files
}

// Current returns the memory of the sandbox; zero: unknown. For caches see NewEnforcer.
func Current(caches bool) Size {
	u, _ := kernel{caches}.usage()
	if c, ok := container(cgroups); ok && c.Total < u.total {
		return c
	}
	return Size{Total: u.total, Used: min(u.used, u.total), Cached: u.cached}
}

// kernel is the machine that the guest runs on.
type kernel struct {
	caches bool // see NewEnforcer
}

func (kernel) list() ([]proc.Process, error) { return proc.List() }

func (kernel) pids() ([]int, error) { return proc.PIDs() }

func (kernel) process(pid int) (proc.Process, bool) { return proc.Get(pid) }

func (kernel) signal(pid int, s syscall.Signal) error { return unix.Kill(pid, s) }

func (kernel) footprint(pid int) (bytes int64, channels int) {
	// Resident memory is most of it. It is counted once for each process that shares it. The rest is memory in open
	// files.
	held, n := proc.HeldMemory(pid)
	return held + proc.Resident(pid), n
}

func (kernel) tasks() int {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int(si.Procs)
}

func (kernel) stopAll(own map[int]bool) {
	if os.Getpid() != 1 {
		return // there may be processes of others
	}
	// One call also stops processes that are just being started. The nannies are continued at once.
	_ = unix.Kill(-1, syscall.SIGSTOP) // fails in an empty sandbox, which is harmless
	for pid := range own {
		_ = unix.Kill(pid, syscall.SIGCONT)
	}
}

func (k kernel) usage() (usage, bool) {
	// First of all: in gVisor, this call also makes the kernel stop counting the files of a restored sandbox as memory
	// (cmd/recluse-engine, disk.go).
	var si unix.Sysinfo_t
	sized := unix.Sysinfo(&si) == nil
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return usage{}, false
	}
	defer f.Close()
	buf := make([]byte, 2<<10)
	n, err := f.Read(buf)
	if err != nil {
		return usage{}, false
	}
	if k.caches {
		return parseAvailable(buf[:n])
	}
	u, ok := parseMeminfo(buf[:n])
	if !ok {
		return usage{}, false
	}
	// gVisor counts the pages of its memory file only from time to time, less often the more there are. The size of the
	// file is always current, but does not include the heap of gVisor's kernel.
	if sized {
		u.used = max(u.used, int64((si.Totalram-si.Freeram)*uint64(max(si.Unit, 1))))
	}
	return u, true
}

// field returns a value of /proc/meminfo in bytes.
func field(meminfo []byte, name string) (int64, bool) {
	i := bytes.Index(meminfo, []byte(name))
	if i < 0 {
		return 0, false
	}
	w := bytes.Fields(meminfo[i+len(name):])
	if len(w) == 0 {
		return 0, false
	}
	kb, err := strconv.ParseInt(string(w[0]), 10, 64)
	return kb << 10, err == nil
}

func parseMeminfo(text []byte) (usage, bool) {
	total, ok1 := field(text, "MemTotal:")
	free, ok2 := field(text, "MemFree:")
	if !ok1 || !ok2 {
		return usage{}, false
	}
	// In gVisor MemFree is never negative, even if more is used than there is. The figures for processes and files are
	// exact.
	anon, _ := field(text, "AnonPages:")
	mapped, _ := field(text, "Mapped:")
	cached, _ := field(text, "Cached:")
	return usage{
		total:  total,
		used:   max(total-free, anon+mapped),
		cached: cached,
		kernel: max(total-free-anon-mapped, 0),
	}, true
}

// parseAvailable is parseMeminfo for a kernel that keeps files of disks in memory.
func parseAvailable(text []byte) (usage, bool) {
	total, ok1 := field(text, "MemTotal:")
	available, ok2 := field(text, "MemAvailable:")
	if !ok1 || !ok2 {
		return usage{}, false
	}
	anon, _ := field(text, "AnonPages:")
	files, _ := field(text, "Shmem:")
	used := total - available
	cached, _ := field(text, "Cached:")
	return usage{total: total, used: used, cached: cached, kernel: max(used-anon-files, 0)}, true
}
