// Package diskuse reports how much space a file system has, and how much files take.
package diskuse

import (
	"io/fs"
	"path/filepath"
)

// Space is the space of a file system.
type Space struct {
	Total int64 // bytes
	Free  int64 // bytes that this user can still write
}

const (
	lowShare    = 20       // free space is low below this part of the file system, 1/lowShare,
	lowMin      = 1 << 30  // but not below this,
	lowMax      = 10 << 30 // and not above this;
	tinyShare   = 10       // on a small file system, below 1/tinyShare of it
	fullPercent = 10       // it counts as full below this part of the threshold
)

// threshold returns the free bytes below which space is low.
func (s Space) threshold() int64 {
	return min(max(s.Total/lowShare, lowMin), lowMax, s.Total/tinyShare)
}

// Low reports whether so little is free that somebody should free some.
func (s Space) Low() bool { return s.Free < s.threshold() }

// Full reports whether so little is free that new work should go elsewhere.
func (s Space) Full() bool { return s.Free < s.threshold()*fullPercent/100 }

// Tree returns the bytes that a file, or everything below a directory, takes on disk. A file with several names counts
// once. Files that share blocks count with all of them. What cannot be read counts as nothing.
func Tree(path string) int64 {
	var sum int64
	seen := map[fileID]bool{}
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile, or not readable for this user
		}
		if info, err := d.Info(); err == nil {
			id, n := measure(info)
			if !id.shared || !seen[id] {
				sum += n
			}
			if id.shared {
				seen[id] = true
			}
		}
		return nil
	})
	return sum
}

// fileID identifies a file that may have several names.
type fileID struct {
	device, inode uint64
	shared        bool // it has several names
}
