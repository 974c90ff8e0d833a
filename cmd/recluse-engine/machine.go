//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// machineFile stands beside a bundle's config.json and says what size of machine to show inside.
const machineFile = "machine.json"

// showMachine makes the sandbox process show the size of its machine. gVisor takes memory and processors from the cgroup that
// it makes itself; we make the cgroups, because that is faster and keeps commands apart from the kernel, so the size has to come another way.
func showMachine() {
	boot := slices.Index(os.Args, "boot")
	if os.Args[0] != "runsc-sandbox" || boot < 0 {
		return
	}
	var dir string
	for _, a := range os.Args {
		if d, ok := strings.CutPrefix(a, "--bundle="); ok {
			dir = d
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, machineFile))
	if err != nil {
		return // the second exec, already in its empty root: it has the flags from the first
	}
	var m struct {
		Memory int64 `json:"memory"`
		CPUs   int   `json:"cpus"`
	}
	if json.Unmarshal(data, &m) != nil {
		return
	}
	if i := slices.Index(os.Args, "--total-memory"); i > 0 && i+1 < len(os.Args) && m.Memory > 0 {
		os.Args[i+1] = strconv.FormatInt(m.Memory, 10)
	}
	if m.CPUs > 0 {
		os.Args = slices.Insert(os.Args, boot+1, "--cpu-num="+strconv.Itoa(min(m.CPUs, runtime.NumCPU())))
	}
}
