//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/sandbox"
)

// idleFor is how long sandboxes are idle before their memory is measured.
const idleFor = 2 * time.Second

// memory measures the proportional set size of idle sandboxes. It makes several, because shared memory, such as the
// program of the engine, is divided among them.
func memory(ctx context.Context, b *bench) {
	boxes := make([]*sandbox.Sandbox, b.times(8, 4))
	defer closing(func() error { return closeAll(boxes) })
	for i := range boxes {
		boxes[i], _ = firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, b.backend, sandbox.Spec{}) })
	}
	pause(ctx, idleFor)
	var total usage
	for _, sb := range boxes {
		total = total.plus(b.usage(sb.ID()))
	}
	mb := func(v int64) float64 { return float64(v) / 1e6 / float64(len(boxes)) }
	each := mb(total.all())
	b.report([]row{{
		Name:     "memory",
		What:     fmt.Sprintf("memory of an idle sandbox, PSS, %d alive", len(boxes)),
		Measured: each,
		Unit:     "MB",
		Target:   "≤ 40 MB",
		Reached:  reached(each <= 40),
		Note: fmt.Sprintf("sentry %.1f, gofer %.1f, processes inside %.1f MB",
			mb(total.sentry), mb(total.gofer), mb(total.stubs)),
	}})
}

// usage is the PSS of the processes of a sandbox, in bytes.
type usage struct{ sentry, gofer, stubs int64 }

func (u usage) plus(v usage) usage {
	return usage{u.sentry + v.sentry, u.gofer + v.gofer, u.stubs + v.stubs}
}

func (u usage) all() int64 { return u.sentry + u.gofer + u.stubs }

func (b *bench) usage(id string) (u usage) {
	var st struct {
		GoferPid int `json:"goferPid"`
		Sandbox  struct {
			Pid int `json:"pid"`
		} `json:"sandbox"`
	}
	check(atomicfile.ReadJSON(filepath.Join(b.dir, "data/gvisor/engine", id+"_sandbox:"+id+".state"), &st))
	u.sentry = must(pss(st.Sandbox.Pid))
	u.gofer = must(pss(st.GoferPid))
	// Stubs come in pairs that share one address space, which must not be counted twice.
	var counted []int
	for _, pid := range descendants(st.Sandbox.Pid) {
		if sharesMemory(pid, counted) {
			continue
		}
		n, err := pss(pid)
		if err != nil {
			continue // the process has ended
		}
		counted = append(counted, pid)
		u.stubs += n
	}
	return u
}

func pss(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no Pss", pid)
}

// descendants returns the descendants of pid.
func descendants(pid int) []int {
	var all []int
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range names {
		data, _ := os.ReadFile(name)
		for _, text := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// sharesMemory reports whether pid shares its address space with one of the others.
func sharesMemory(pid int, others []int) bool {
	const kcmpVM = 1
	for _, other := range others {
		if r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), kcmpVM, 0, 0, 0); e == 0 && r == 0 {
			return true
		}
	}
	return false
}

func processors() int { return runtime.NumCPU() }
