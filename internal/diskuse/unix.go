//go:build unix

package diskuse

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// block is the unit of Stat_t.Blocks.
const block = 512

func measure(info fs.FileInfo) (fileID, int64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, info.Size()
	}
	//nolint:unconvert // the types differ between systems
	return fileID{uint64(st.Dev), st.Ino, !info.IsDir() && st.Nlink > 1}, int64(st.Blocks) * block
}

// Of returns the space of the file system of path; ok is false if it is unknown.
func Of(path string) (s Space, ok bool) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Bsize <= 0 {
		return s, false
	}
	//nolint:unconvert // the types differ between systems
	size := int64(st.Bsize)
	return Space{Total: int64(st.Blocks) * size, Free: int64(st.Bavail) * size}, true
}
