//go:build linux

package memory

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// cgroups is where a container sees its own cgroup.
const cgroups = "/sys/fs/cgroup"

// container returns the memory of the container in which the guest runs. /proc/meminfo there is that of its host. ok is
// false where there is no limit.
func container(root string) (s Size, ok bool) {
	for _, v := range []struct{ dir, limit, usage, files, shared string }{
		{root, "memory.max", "memory.current", "file", "shmem"},
		{filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"},
	} {
		var used int64
		if s.Total, ok = number(filepath.Join(v.dir, v.limit)); !ok {
			continue
		}
		if used, ok = number(filepath.Join(v.dir, v.usage)); !ok {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(v.dir, "memory.stat"))
		files, shared := entry(stat, v.files), entry(stat, v.shared) // files in memory are part of both
		s.Cached = max(files-shared, 0)
		s.Used = min(max(used-s.Cached, 0), s.Total)
		return s, true
	}
	return Size{}, false
}

// number reads a file with one number.
func number(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// entry returns the number after a name in a file of such lines.
func entry(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == name {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}
