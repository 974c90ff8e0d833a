//go:build linux

// Package proc reads the process table from /proc. The guest needs it to find
// everything that a command started and whoever uses the most memory.
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

// Process is one row of the table. A pid may be used again; pid and Start together are not.
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
	// Threads is how many it has.
	Threads int
}

// List gives the processes that are visible, zombies included. One that vanishes
// while the table is read is left out.
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

// PIDs gives the numbers alone, which costs a fraction of the rows.
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

// Get reads one row.
func Get(pid int) (Process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	// The name stands in brackets and may itself hold anything, so look for the last one.
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || shut < open {
		return Process{}, false
	}
	f := bytes.Fields(b[shut+1:])
	if len(f) < 20 {
		return Process{}, false
	}
	p := Process{PID: pid, Name: strings.ToValidUTF8(string(b[open+1:shut]), "?"), State: f[0][0]}
	p.PPID, _ = strconv.Atoi(string(f[1]))
	p.Group, _ = strconv.Atoi(string(f[2]))
	p.Session, _ = strconv.Atoi(string(f[3]))
	p.Threads, _ = strconv.Atoi(string(f[17]))
	p.Start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	p.Zombie = p.State == 'Z' || p.State == 'X'
	return p, true
}

// Descendants gives every process below root, itself not among them, zombies left out.
// A zombie's own children are found too.
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

// Command returns the command line of a process, cut to a readable length, or its name in brackets.
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

// commandLine reads the arguments of a process. While a process executes another program, the Linux kernel shows no
// arguments for a moment, so an empty answer is asked for again.
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

// Resident gives the resident bytes of a process, 0 when it has gone.
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

// Held gives the bytes that a process keeps in files without a name, and how many ends of sockets and pipes it has open. What waits in those cannot be
// seen, and is in nobody's resident set.
func Held(pid int) (bytes int64, channels int) {
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

// HeldFiles gives the absolute paths of the files that any process has mapped, open or
// as its program, each once, sorted. Deleted and nameless ones are left out.
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
