package dockerengine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// killContainer kills what is in a container's cgroup: its processes, or those of the kernel that runs them. The name
// of the cgroup contains the container's id with every engine and both versions of cgroups.
func killContainer(container string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is right
	for _, file := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || !mentions(file, container) {
			continue
		}
		p, err := os.FindProcess(pid) // means this very process, so that it can be looked at again
		if err != nil {
			continue
		}
		if mentions(file, container) {
			_ = p.Kill() // it may have ended, or not be ours to kill
		}
		_ = p.Release()
	}
}

func mentions(file, text string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.Contains(string(b), text)
}
