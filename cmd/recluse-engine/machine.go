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

// machineFile stands beside a bundle's config.json and says what size of machine to show inside. Where an engine that is not ours has made the bundle there is
// none; but what the guest was told is in config.json, and that it keeps code below so much memory. The limit of the bundle itself stands above that, unless
// somebody has chosen a lower one.
const (
	machineFile = "machine.json"
	guestConfig = "RECLUSE_GUEST_CONFIG" // as in internal/guest/launch, of which nothing is to be linked in here
)

// machine is the size of one; zero is what gVisor would show.
type machine struct {
	Memory int64 `json:"memory"`
	CPUs   int   `json:"cpus"`
}

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
	m := machineOf(dir) // in the second exec, already in its empty root, there is none: it has the flags from the first
	if i := slices.Index(os.Args, "--total-memory"); i > 0 && i+1 < len(os.Args) && m.Memory > 0 {
		if own, err := strconv.ParseInt(os.Args[i+1], 10, 64); err != nil || m.Memory < own { // no more than there is
			os.Args[i+1] = strconv.FormatInt(m.Memory, 10)
		}
	}
	if m.CPUs > 0 {
		os.Args = slices.Insert(os.Args, boot+1, "--cpu-num="+strconv.Itoa(min(m.CPUs, runtime.NumCPU())))
	}
}

// machineOf reads what a bundle says of its machine.
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
