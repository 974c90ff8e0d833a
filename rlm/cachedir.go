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

// CacheDir is the usual name of a directory with replies, beside that of the runs.
const CacheDir = "replies"

// OpenCache makes a cache whose replies also lie in a directory, where the runs of later programs find them. The directory is bounded to so
// many bytes: when it is full, those go that nobody has asked for longest. Several programs may use it at once.
func OpenCache(dir string, bytes int64) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "open cache", Err: err}
	}
	c := NewCache(min(bytes, DefaultCacheBytes))
	c.disk = &cacheDir{dir: dir, limit: bytes}
	c.disk.trim()
	return c, nil
}

// aboutReply is what a file has besides the text, about. Whoever trims looks at the files themselves.
const aboutReply = 256

// cacheDir keeps replies on disk, each in a file that is named by what was asked. It saves money and is no record: what cannot be read or written
// is asked for again. A nil one keeps nothing.
type cacheDir struct {
	dir   string
	limit int64

	mu   sync.Mutex
	size int64 // guarded by mu; about, since others write there too
}

func (d *cacheDir) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:])+".json")
}

// get gives a kept reply, nil when there is none.
func (d *cacheDir) get(key string) *llm.Reply {
	if d == nil {
		return nil
	}
	p := d.path(key)
	r := &llm.Reply{}
	if atomicfile.ReadJSON(p, r) != nil {
		return nil // not there; one that is damaged is written anew
	}
	now := time.Now()
	_ = os.Chtimes(p, now, now) // else it goes earlier
	return r
}

// put keeps a reply.
func (d *cacheDir) put(key string, r *llm.Reply) {
	if d == nil || int64(len(r.Text)) > d.limit/4 || atomicfile.WriteJSON(d.path(key), r) != nil {
		return
	}
	d.mu.Lock()
	d.size += int64(len(r.Text)) + aboutReply
	full := d.size > d.limit
	d.mu.Unlock()
	if full {
		d.trim()
	}
}

// trim removes the replies that were not asked for longest when there are too many, and some more, so that it is seldom done.
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
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	for _, f := range files {
		if d.size <= d.limit/4*3 {
			return
		}
		if os.Remove(f.path) == nil {
			d.size -= f.size
		}
	}
}
