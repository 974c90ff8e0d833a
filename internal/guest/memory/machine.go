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

// machine is the processes and the memory of a sandbox. Tests use one of their own: the real one stops everything it sees.
type machine interface {
	usage() (usage, bool)
	// tasks returns how many threads there are, ours included; 0: unknown.
	tasks() int
	list() ([]proc.Process, error)
	pids() ([]int, error)
	process(pid int) (proc.Process, bool)
	// footprint returns the bytes that a process has, and how many pipes and sockets.
	footprint(pid int) (bytes int64, channels int)
	signal(pid int, s syscall.Signal) error
	// stopAll stops everything but own with one call, where that is possible.
	stopAll(own map[int]bool)
}

// usage is the kernel's account of the memory.
type usage struct {
	total  int64
	used   int64 // files in memory included; may be more than there is
	kernel int64 // at least this much belongs neither to a process nor to a file: the kernel's own, and what it has not yet returned
}

// Total returns how much memory the sandbox shows; 0: unknown.
func Total() int64 {
	u, _ := kernel{}.usage()
	return u.total
}

// kernel is the machine that the guest runs on.
type kernel struct{}

func (kernel) list() ([]proc.Process, error) { return proc.List() }

func (kernel) pids() ([]int, error) { return proc.PIDs() }

func (kernel) process(pid int) (proc.Process, bool) { return proc.Get(pid) }

func (kernel) signal(pid int, s syscall.Signal) error { return unix.Kill(pid, s) }

func (kernel) footprint(pid int) (bytes int64, channels int) {
	// Most of it is resident, as often as it is shared; some is only held open.
	held, n := proc.Held(pid)
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
		return // then there are others here, too
	}
	// One call stops also those that are being born. The nannies continue at once.
	_ = unix.Kill(-1, syscall.SIGSTOP) // an empty sandbox is no failure
	for pid := range own {
		_ = unix.Kill(pid, syscall.SIGCONT)
	}
}

func (kernel) usage() (usage, bool) {
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
	u, ok := parseMeminfo(buf[:n])
	if !ok {
		return usage{}, false
	}
	// gVisor counts the pages of its file only now and then, the more rarely the more there are. The file's size can be asked for at any
	// time; only the kernel's heap is not in it.
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		u.used = max(u.used, int64((si.Totalram-si.Freeram)*uint64(max(si.Unit, 1))))
	}
	return u, true
}

func parseMeminfo(text []byte) (usage, bool) {
	field := func(name string) (int64, bool) {
		i := bytes.Index(text, []byte(name))
		if i < 0 {
			return 0, false
		}
		w := bytes.Fields(text[i+len(name):])
		if len(w) == 0 {
			return 0, false
		}
		kb, err := strconv.ParseInt(string(w[0]), 10, 64)
		return kb << 10, err == nil
	}
	total, ok1 := field("MemTotal:")
	free, ok2 := field("MemFree:")
	if !ok1 || !ok2 {
		return usage{}, false
	}
	// gVisor never shows less than nothing as free. What processes and files have is shown as it is.
	anon, _ := field("AnonPages:")
	mapped, _ := field("Mapped:")
	return usage{total: total, used: max(total-free, anon+mapped), kernel: max(total-free-anon-mapped, 0)}, true
}
