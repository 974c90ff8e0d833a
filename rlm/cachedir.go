package rlm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/llm"
)

// CacheDir is the usual name of a directory with cached replies, next to the directory of the runs.
const CacheDir = "replies"

// OpenCache returns a cache that also stores its replies in a directory, for the runs of later programs. The directory
// has at most the given number of bytes. When it is full, the least recently used replies are removed. Several programs
// may use the directory at the same time.
func OpenCache(dir string, bytes int64) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "open cache", Err: err}
	}
	c := NewCache(min(bytes, DefaultCacheBytes))
	c.disk = &cacheDir{dir: dir, limit: bytes}
	c.disk.trim()
	return c, nil
}

// replyOverhead is the approximate size of a file besides the text of the reply. trim uses the actual sizes.
const replyOverhead = 256

// cacheDir stores replies on disk. The name of a file is the hash of the key. Errors are ignored: if a reply cannot be
// read or written, the call is made again. A nil *cacheDir stores nothing.
type cacheDir struct {
	dir   string
	limit int64

	mu   sync.Mutex
	size int64 // guarded by mu; approximate, because other programs also write to the directory
}

func (d *cacheDir) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:])+".json")
}

// get returns a stored reply, or nil.
func (d *cacheDir) get(key string) *llm.Reply {
	if d == nil {
		return nil
	}
	p := d.path(key)
	r := &llm.Reply{}
	if atomicfile.ReadJSON(p, r) != nil {
		return nil // missing, or damaged: then put overwrites the file
	}
	now := time.Now()
	_ = os.Chtimes(p, now, now) // trim removes the files with the oldest times
	return r
}

// put stores a reply, unless it is larger than a quarter of the limit.
func (d *cacheDir) put(key string, r *llm.Reply) {
	if d == nil || int64(len(r.Text)) > d.limit/4 || atomicfile.WriteJSON(d.path(key), r) != nil {
		return
	}
	d.mu.Lock()
	d.size += int64(len(r.Text)) + replyOverhead
	full := d.size > d.limit
	d.mu.Unlock()
	if full {
		d.trim()
	}
}

// trim removes the least recently used replies if the directory exceeds its limit. It removes more than necessary, down
// to three quarters of the limit, so that it seldom runs.
func (d *cacheDir) trim() {
	d.mu.Lock()
	defer d.mu.Unlock()
	type file struct {
		path string
		size int64
		used time.Time
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return
	}
	var files []file
	d.size = 0
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, file{filepath.Join(d.dir, e.Name()), info.Size(), info.ModTime()})
			d.size += info.Size()
		}
	}
	if d.size <= d.limit {
		return
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	for _, f := range files {
		if d.size <= d.limit/4*3 {
			return
		}
		if os.Remove(f.path) == nil {
			d.size -= f.size
		}
	}
}
