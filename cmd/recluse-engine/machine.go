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

// machineFile is the file beside config.json of a bundle with the size of the machine to show inside. A bundle that was
// made by another engine, such as Docker, has no such file. In that case the memory limit is read from the guest's
// configuration in config.json, because the guest keeps code below that limit. The limit of the bundle itself is
// higher, unless the user has set a lower one.
const (
	machineFile = "machine.json"
	guestConfig = "RECLUSE_GUEST_CONFIG" // as in internal/guest/launch, which must not be linked into this program
)

// machine is the size of a machine. Zero means the value that gVisor would show.
type machine struct {
	Memory int64 `json:"memory"`
	CPUs   int   `json:"cpus"`
}

// showMachine makes the sandbox process show the size of its machine. gVisor reads memory and processors from the
// cgroup that it makes itself. We make the cgroups, because that is faster and keeps commands apart from the kernel, so
// the size has to be passed by flags.
func showMachine() {
	boot := slices.Index(os.Args, "boot")
	if os.Args[0] != "runsc-sandbox" || boot < 0 {
		return
	}
	// The second exec runs in an empty root without a bundle; it has the flags of the first.
	m := machineOf(bundleOf(os.Args))
	if i := slices.Index(os.Args, "--total-memory"); i > 0 && i+1 < len(os.Args) && m.Memory > 0 {
		// Never show more than gVisor would.
		if own, err := strconv.ParseInt(os.Args[i+1], 10, 64); err != nil || m.Memory < own {
			os.Args[i+1] = strconv.FormatInt(m.Memory, 10)
		}
	}
	if m.CPUs > 0 {
		os.Args = slices.Insert(os.Args, boot+1, "--cpu-num="+strconv.Itoa(min(m.CPUs, runtime.NumCPU())))
	}
}

// machineOf reads the size of the machine from a bundle.
func machineOf(dir string) (m machine) {
	if data, err := os.ReadFile(filepath.Join(dir, machineFile)); err == nil {
		if json.Unmarshal(data, &m) != nil {
			return machine{}
		}
		return m
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return machine{}
	}
	var config struct {
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
	}
	if json.Unmarshal(data, &config) != nil {
		return machine{}
	}
	for _, kv := range config.Process.Env {
		if text, ok := strings.CutPrefix(kv, guestConfig+"="); ok {
			var guest struct {
				Memory int64 `json:"memory"`
			}
			if json.Unmarshal([]byte(text), &guest) == nil {
				m.Memory = guest.Memory
			}
		}
	}
	return m
}
