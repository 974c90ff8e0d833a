//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

var _ backend.DiskUser = (*Backend)(nil)

// imageAge is how long an image stays after its last use if nothing here refers to it: another data directory may.
const imageAge = 30 * 24 * time.Hour

// DiskUse implements backend.DiskUser.
func (b *Backend) DiskUse(context.Context) ([]v1.DiskUse, error) {
	all := backendkit.DiskUse(b.dir, Name)
	disks := b.diskBytes()
	for i, u := range all {
		if u.Kind == v1.DiskSandbox {
			all[i].Bytes += disks[u.Name]
		}
	}
	return all, nil
}

// diskBytes returns the bytes on the disks of sandboxes that run. A disk is a file without a name, which only the
// processes of its sandbox hold open.
func (b *Backend) diskBytes() map[string]int64 {
	found := map[string]int64{}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range processes {
		line, _ := os.ReadFile(name) // it may have ended
		args := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
		id := args[len(args)-1]
		if !slices.Contains(args, "boot") || !slices.Contains(args, "--root="+filepath.Join(b.dir, "engine")) {
			continue
		}
		seen := map[uint64]bool{}
		files, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "fd", "*"))
		for _, file := range files {
			link, _ := os.Readlink(file)
			info, err := os.Stat(file)
			if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(link, "/memfd:") {
				continue
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 && !seen[st.Ino] {
				seen[st.Ino] = true
				found[id] += st.Blocks * 512
			}
		}
	}
	return found
}

// Reclaim implements backend.DiskUser.
func (b *Backend) Reclaim(context.Context) ([]v1.DiskUse, error) {
	var r reclaimed
	b.sweepFiles(&r)
	used := b.recordText()
	err := b.images.Prune(imageAge, func(hex string) bool { return bytes.Contains(used, []byte(hex)) },
		func(_, dir string) { r.add(v1.DiskImage, dir) })
	return r.all, err
}

// recordText returns the records of everything that may use an image. They contain the paths of the images.
func (b *Backend) recordText() []byte {
	var all []byte
	for _, depth := range []string{"*.json", "*/*.json"} {
		files, _ := filepath.Glob(filepath.Join(filepath.Dir(b.dir), "*", "*", "*", depth))
		for _, file := range files {
			text, _ := os.ReadFile(file)
			all = append(all, text...)
		}
	}
	return all
}
