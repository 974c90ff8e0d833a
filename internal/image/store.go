package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	api "github.com/recluse-dev/recluse/api/v1"
)

const (
	leaseFile    = "lease"
	lockPollMin  = 5 * time.Millisecond
	lockPollMax  = 200 * time.Millisecond
	digestPrefix = "sha256:"
)

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

func (s *Store) imageDir(hex string) string { return s.path("images", hex) }

// prepare makes the cache's directories. They are for this user alone: an image may hold files of any mode and owner.
func (s *Store) prepare() error {
	if s.Dir == "" {
		return errorf(Cache, "set Store.Dir", "no cache directory is set")
	}
	for _, dir := range []string{"images", "refs", "locks", "tmp"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return cacheError(err)
		}
	}
	return nil
}

// open returns the unpacked image of a digest, or nil when it is not there or damaged.
func (s *Store) open(hex, arch string) (*Image, error) {
	dir := s.imageDir(hex)
	manifest, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cacheError(err)
	}
	var m v1.Manifest
	if hashOf(manifest).Hex != hex || json.Unmarshal(manifest, &m) != nil {
		return nil, nil //nolint:nilerr // damaged: made anew
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil || hashOf(raw) != m.Config.Digest {
		return nil, nil //nolint:nilerr // damaged: made anew
	}
	if st, err := os.Lstat(filepath.Join(dir, "rootfs")); err != nil || !st.IsDir() {
		return nil, nil //nolint:nilerr // damaged: made anew
	}
	cfg, err := parseConfig(raw, arch)
	if err != nil {
		return nil, err
	}
	return &Image{
		Digest: digestPrefix + hex,
		RootFS: filepath.Join(dir, "rootfs"),
		Config: Config{
			Env: cfg.Config.Env, WorkingDir: cfg.Config.WorkingDir, User: cfg.Config.User,
			Entrypoint: cfg.Config.Entrypoint, Cmd: cfg.Config.Cmd, Labels: cfg.Config.Labels, Created: cfg.Created.Time,
		},
		dir: dir,
	}, nil
}

// refRecord is one file in refs/.
type refRecord struct {
	Ref    string    `json:"ref"`
	Arch   string    `json:"arch"`
	Digest string    `json:"digest"`
	Time   time.Time `json:"time"`
}

func (s *Store) refFile(key, arch string) string {
	return s.path("refs", hashOf([]byte(key+"\x00"+arch)).Hex+".json")
}

// remember writes down what a reference means.
func (s *Store) remember(key, arch, hex string) error {
	if old, ok := s.recall(key, arch); ok && old == hex {
		return nil
	}
	b, err := json.Marshal(refRecord{Ref: key, Arch: arch, Digest: digestPrefix + hex, Time: time.Now().UTC()})
	if err != nil {
		return cacheError(err)
	}
	tmp, err := os.CreateTemp(s.path("tmp"), "ref-")
	if err != nil {
		return cacheError(err)
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), s.refFile(key, arch))
	}
	if err != nil {
		return cacheError(errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// recall says what a reference meant last.
func (s *Store) recall(key, arch string) (hex string, ok bool) {
	r, err := readRef(s.refFile(key, arch))
	if err != nil || r.Ref != key || r.Arch != arch {
		return "", false
	}
	hex, ok = strings.CutPrefix(r.Digest, digestPrefix)
	return hex, ok && isHex(hex)
}

func readRef(file string) (refRecord, error) {
	var r refRecord
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

func isHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// lockedFile is a file with a lock on it.
type lockedFile struct{ f *os.File }

func (l *lockedFile) unlock() { l.f.Close() }

// lock takes the lock of a digest, waiting for it as long as ctx lasts. Locks belong to open files, so they also work between
// goroutines, and die with their process. waiting is called once when somebody else has it.
func (s *Store) lock(ctx context.Context, hex string, waiting func()) (*lockedFile, error) {
	for wait := lockPollMin; ; wait = min(wait*2, lockPollMax) {
		l, err := s.tryLock(hex)
		if l != nil || err != nil {
			return l, err
		}
		if wait == lockPollMin && waiting != nil {
			waiting()
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// tryLock returns nil when somebody else has the lock.
func (s *Store) tryLock(hex string) (*lockedFile, error) {
	file := s.path("locks", hex)
	for {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, cacheError(err)
		}
		ok, err := flock(f, true)
		if err != nil || !ok {
			f.Close()
			return nil, cacheError(err)
		}
		if sameFile(f, file) {
			return &lockedFile{f}, nil
		}
		f.Close() // removed between open and lock, with its image: take the new one
	}
}

// sameFile says whether path still names f.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// sweep removes what a crash has left of a digest.
//
// Preconditions: the digest's lock is held.
func (s *Store) sweep(hex string) {
	left, _ := filepath.Glob(s.path("tmp", hex+"-*"))
	for _, dir := range left {
		os.RemoveAll(dir) // tried again the next time
	}
}

// sweepAll removes what crashes have left of any digest on which nobody is at work.
func (s *Store) sweepAll() {
	entries, _ := os.ReadDir(s.path("tmp"))
	for _, e := range entries {
		hex, _, ok := strings.Cut(e.Name(), "-")
		if !ok || !isHex(hex) {
			// A reference being written takes no time at all.
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
				os.Remove(s.path("tmp", e.Name()))
			}
			continue
		}
		if l, err := s.tryLock(hex); l != nil && err == nil {
			s.sweep(hex)
			if _, err := os.Lstat(s.imageDir(hex)); err != nil {
				os.Remove(s.path("locks", hex)) // while it is held: see tryLock
			}
			l.unlock()
		}
	}
}

// Hold marks the image as in use until the returned file is closed, by every process that has inherited it: pass it on to the
// process that must not lose its root file system. Remove and Prune leave a held image alone.
func (img *Image) Hold() (*os.File, error) {
	file := filepath.Join(img.dir, leaseFile)
	gone := func(err error) error {
		return &api.Error{Code: NotFound, Op: opOf(img.Ref), Message: "it was removed from the cache", Err: err, Remedy: "get it again"}
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, gone(err)
	}
	ok, err := flock(f, false)
	if err != nil || !ok || !sameFile(f, file) {
		f.Close()
		return nil, gone(errors.Join(err, fs.ErrNotExist))
	}
	return f, nil
}

// discard takes an image out of images/ and removes it.
//
// Preconditions: the digest's lock is held.
func (s *Store) discard(hex string) error {
	dir := s.imageDir(hex)
	lease, err := os.OpenFile(filepath.Join(dir, leaseFile), os.O_RDWR, 0)
	if err == nil {
		defer lease.Close()
		ok, err := flock(lease, true)
		if err != nil {
			return cacheError(err)
		}
		if !ok {
			return errorf(InUse, "end the sandboxes that use it first", "a sandbox is using it")
		}
	}
	grave, err := os.MkdirTemp(s.path("tmp"), hex+"-")
	if err != nil {
		return cacheError(err)
	}
	err = os.Rename(dir, filepath.Join(grave, "image"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return cacheError(errors.Join(err, os.RemoveAll(grave)))
}

// Info describes a cached image.
type Info struct {
	Digest   string
	Refs     []string // the references that mean it now; files begin with "file:"
	Bytes    int64    // unpacked
	Entries  int64
	Created  time.Time // when it was unpacked
	LastUsed time.Time // when Get returned it last
}

// List describes the images in the cache, those used last first.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	entries, err := os.ReadDir(s.path("images"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cacheError(err)
	}
	refs := map[string][]string{}
	for _, r := range s.refs() {
		refs[r.Digest] = append(refs[r.Digest], r.Ref)
	}
	var infos []Info
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !isHex(e.Name()) {
			continue
		}
		info := Info{Digest: digestPrefix + e.Name(), Refs: refs[digestPrefix+e.Name()]}
		slices.Sort(info.Refs)
		var m meta
		if b, err := os.ReadFile(filepath.Join(s.imageDir(e.Name()), "meta.json")); err == nil && json.Unmarshal(b, &m) == nil {
			info.Bytes, info.Entries, info.Created = m.Bytes, m.Entries, m.Created
		}
		if st, err := os.Stat(filepath.Join(s.imageDir(e.Name()), leaseFile)); err == nil {
			info.LastUsed = st.ModTime()
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b Info) int { return b.LastUsed.Compare(a.LastUsed) })
	return infos, nil
}

func (s *Store) refs() []refRecord {
	files, _ := filepath.Glob(s.path("refs", "*.json"))
	var all []refRecord
	for _, file := range files {
		if r, err := readRef(file); err == nil {
			all = append(all, r)
		}
	}
	return all
}

// Remove removes an image from the cache, by digest (sha256:…) or by a reference that was used to get it. References to it
// are forgotten. An image that is held is not removed: the error's code is InUse.
func (s *Store) Remove(ctx context.Context, ref string) error {
	digest := ref
	if !strings.HasPrefix(ref, digestPrefix) {
		digest = ""
		key := "file:" + ref // a path that may be gone by now
		if parsed, err := parseReference(ref, false); err == nil {
			key = parsed.key()
		}
		for _, r := range s.refs() {
			if r.Ref == key || r.Ref == ref {
				digest = r.Digest
			}
		}
	}
	hex := strings.TrimPrefix(digest, digestPrefix)
	if !isHex(hex) {
		return &api.Error{Code: NotFound, Op: opOf(ref), Message: "it is not in the cache", Remedy: "list the cache to see what is"}
	}
	if _, err := os.Lstat(s.imageDir(hex)); err != nil {
		return &api.Error{Code: NotFound, Op: opOf(ref), Message: "it is not in the cache", Remedy: "list the cache to see what is"}
	}
	return s.remove(ctx, hex, ref)
}

func (s *Store) remove(ctx context.Context, hex, ref string) error {
	l, err := s.lock(ctx, hex, nil)
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := s.discard(hex); err != nil {
		var e *api.Error
		if errors.As(err, &e) {
			e.Op = opOf(ref)
		}
		return err
	}
	for _, r := range s.refs() {
		if r.Digest == digestPrefix+hex {
			os.Remove(s.refFile(r.Ref, r.Arch)) // a reference to nothing is treated as none
		}
	}
	os.Remove(s.path("locks", hex)) // while it is held: see tryLock
	return nil
}

// PruneOptions say what Prune may remove.
type PruneOptions struct {
	UnusedFor time.Duration            // only images that no Get has returned for so long
	Keep      func(digest string) bool // images that must stay, for instance because a snapshot needs them; nil keeps none
}

// Prune removes images that nobody uses and what crashes have left behind. It returns what it removed, also with an error.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) ([]Info, error) {
	s.sweepAll()
	infos, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var removed []Info
	var errs []error
	for _, info := range infos {
		if time.Since(info.LastUsed) < opts.UnusedFor || (opts.Keep != nil && opts.Keep(info.Digest)) {
			continue
		}
		err := s.remove(ctx, strings.TrimPrefix(info.Digest, digestPrefix), info.Digest)
		switch {
		case api.CodeOf(err) == InUse:
		case err != nil:
			errs = append(errs, err)
		default:
			removed = append(removed, info)
		}
	}
	return removed, errors.Join(errs...)
}
