//go:build linux

// Package proc reads the process table from /proc. The guest uses it to find all processes that a command started, and
// the processes that use the most memory.
package proc

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one row of the table. A pid may be reused; the pair of PID and Start is unique.
type Process struct {
	PID  int
	PPID int
	// Group and Session are the ids of its process group and session.
	Group   int
	Session int
	Start   uint64 // clock ticks since boot
	State   byte
	Name    string
	Zombie  bool
	// Threads is the number of threads.
	Threads int
	Kernel  bool // a thread of the kernel, which a machine shows
}

// kernelThread is the kernel's flag PF_KTHREAD of a task.
const kernelThread = 0x00200000

// List returns all visible processes, including zombies. A process that ends while the table is read is left out.
func List() ([]Process, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, pid := range pids {
		if p, ok := Get(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// PIDs returns only the pids, which costs a fraction of List.
func PIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// stat returns the name of a process, and the fields of its row after it, of which there are at least 20. nil: it has
// ended.
func stat(pid int) (name string, f [][]byte) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", nil
	}
	// The name is in parentheses and may contain any character, so search for the last closing one.
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || shut < open {
		return "", nil
	}
	if f = bytes.Fields(b[shut+1:]); len(f) < 20 {
		return "", nil
	}
	return string(b[open+1 : shut]), f
}

// Get returns one row of the table.
func Get(pid int) (Process, bool) {
	name, f := stat(pid)
	if f == nil {
		return Process{}, false
	}
	p := Process{PID: pid, Name: strings.ToValidUTF8(name, "?"), State: f[0][0]}
	p.PPID, _ = strconv.Atoi(string(f[1]))
	p.Group, _ = strconv.Atoi(string(f[2]))
	p.Session, _ = strconv.Atoi(string(f[3]))
	flags, _ := strconv.ParseUint(string(f[6]), 10, 64)
	p.Kernel = flags&kernelThread != 0
	p.Threads, _ = strconv.Atoi(string(f[17]))
	p.Start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	p.Zombie = p.State == 'Z' || p.State == 'X'
	return p, true
}

// Descendants returns all processes below root, without root and without zombies. Children of zombies are included.
func Descendants(root int) ([]Process, error) {
	all, err := List()
	if err != nil {
		return nil, err
	}
	children := map[int][]Process{}
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var out []Process
	queue := []int{root}
	for len(queue) > 0 {
		for _, c := range children[queue[0]] {
			queue = append(queue, c.PID)
			if !c.Zombie {
				out = append(out, c)
			}
		}
		queue = queue[1:]
	}
	return out, nil
}

// Command returns the command line of a process, cut to a readable length, or its name in brackets if it has none.
func Command(p Process) string {
	b := commandLine(p.PID)
	if len(b) == 0 {
		return "[" + p.Name + "]"
	}
	const longest = 200
	s := strings.ToValidUTF8(string(bytes.TrimRight(bytes.ReplaceAll(b, []byte{0}, []byte{' '}), " ")), "?")
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}

// commandLine returns the arguments of a process. While a process executes another program, the Linux kernel shows no
// arguments for a moment, so an empty result is retried.
func commandLine(pid int) []byte {
	for range 5 {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil || len(b) > 0 {
			return b
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// CPUTime returns the processor time of the process root, of all below it, and of their children that have ended.
func CPUTime(root int) time.Duration {
	all, err := Descendants(root)
	if err != nil {
		return 0
	}
	ticks := int64(0)
	for _, p := range append(all, Process{PID: root}) {
		if _, f := stat(p.PID); f != nil {
			for _, n := range f[11:15] { // in user and system mode, and the same of its children
				one, _ := strconv.ParseInt(string(n), 10, 64)
				ticks += one
			}
		}
	}
	return time.Duration(ticks) * tick
}

// Resident returns the resident memory of a process in bytes, or 0 if it has ended.
func Resident(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(string(f[1]), 10, 64)
	return n * int64(os.Getpagesize())
}

// HeldMemory returns the bytes that a process keeps in unnamed files, and the number of its open socket and pipe ends.
// The data in those is not visible, and is in no resident set.
func HeldMemory(pid int) (bytes int64, channels int) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	for _, fd := range fds {
		target, err := os.Readlink(dir + fd.Name())
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(target, "/memfd:"), strings.HasSuffix(target, " (deleted)"):
			if fi, err := os.Stat(dir + fd.Name()); err == nil {
				if st, ok := fi.Sys().(*syscall.Stat_t); ok {
					bytes += st.Blocks * 512
				}
			}
		case strings.HasPrefix(target, "socket:"), strings.HasPrefix(target, "pipe:"):
			channels++
		}
	}
	return bytes, channels
}

// HeldFiles returns the absolute paths of the files that any process has mapped, has open or runs as its program. The
// paths are unique and sorted. Deleted and unnamed files are left out.
func HeldFiles() []string {
	held := map[string]bool{}
	add := func(p string) {
		if strings.HasPrefix(p, "/") && !strings.HasSuffix(p, " (deleted)") {
			held[p] = true
		}
	}
	all, err := List()
	if err != nil {
		return nil
	}
	for _, p := range all {
		dir := "/proc/" + strconv.Itoa(p.PID)
		if table, err := os.ReadFile(dir + "/maps"); err == nil {
			for _, line := range strings.Split(string(table), "\n") {
				if i := strings.IndexByte(line, '/'); i >= 0 {
					add(line[i:])
				}
			}
		}
		if exe, err := os.Readlink(dir + "/exe"); err == nil {
			add(exe)
		}
		fds, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if target, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil {
				add(target)
			}
		}
	}
	return slices.Sorted(maps.Keys(held))
}
