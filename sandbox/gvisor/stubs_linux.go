//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// moveStubs moves the processes of commands into another cgroup than sentry and guest (see the comment at the top of
// cgroup_linux.go). sandboxPid is the sandbox process of the engine, guestPath the suffix of the path of the guest's
// program. It must be called after the guest has answered, because only then is its program mapped, and before the
// guest has started many processes. It takes about 20 ms on v1 (a grace period of the kernel). A second call changes
// nothing.
func (g *cgroup) moveStubs(sandboxPid int, guestPath string) error {
	seen := map[int]bool{}
	for range moveRounds {
		fresh := false
		// Parents before children: a stub that is cloned meanwhile comes from a stub that was already moved, or is
		// found in the next round.
		for _, pid := range descendants(sandboxPid) {
			if seen[pid] {
				continue
			}
			seen[pid], fresh = true, true
			if mapsFile(pid, guestPath) {
				continue
			}
			if err := g.moveStub(pid); err != nil {
				return fmt.Errorf("stub %d: %w", pid, err)
			}
		}
		if !fresh {
			break
		}
	}
	if len(seen) == 0 {
		return fmt.Errorf("sandbox process %d has no stubs", sandboxPid)
	}
	return nil
}

func (g *cgroup) moveStub(pid int) error {
	text := strconv.Itoa(pid)
	err := writeCgroup(filepath.Join("/proc", text), "oom_score_adj", stubScore)
	if err == nil {
		err = writeCgroup(g.dir("cpu", cgroupApp), "cgroup.procs", text)
	}
	// A process that has ended meanwhile need not be moved.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// descendants returns the PIDs of the descendants of pid, parents before children. It returns none if pid has ended.
func descendants(pid int) []int {
	var all []int
	for next := childrenOf(pid); len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, p := range next {
			below = append(below, childrenOf(p)...)
		}
		next = below
	}
	return all
}

// childrenOf returns the children of all threads of a process. Kernels with CONFIG_PROC_CHILDREN list them in one file
// per thread (all kernels that support checkpoints, so those of every distribution). With other kernels, all processes
// are searched.
func childrenOf(pid int) []int {
	names, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/children"))
	var children []int
	for _, name := range names {
		data, _ := os.ReadFile(name)
		for _, text := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(text); err == nil {
				children = append(children, child)
			}
		}
	}
	if len(names) > 0 {
		return children
	}
	all, _ := proc.List()
	for _, p := range all {
		if p.PPID == pid {
			children = append(children, p.PID)
		}
	}
	return children
}

// mapsFile reports whether the process has a file mapped whose path ends in suffix.
func mapsFile(pid int, suffix string) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(strings.TrimRight(line, "\n"), suffix) {
			return true
		}
	}
	return false
}
