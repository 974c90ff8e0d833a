package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
)

const digestPrefix = "sha256:"

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

func (s *Store) imageDir(hex string) string { return s.path("images", hex) }
func (s *Store) lockFile(hex string) string { return s.path("locks", hex) }

// prepare makes the directories of the cache. Only this user can access them, because an image may have files of any
// mode and owner.
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

// open returns the unpacked image of a digest, or nil if it does not exist or is corrupt.
func (s *Store) open(hex, arch string) (*Image, error) {
	dir := s.imageDir(hex)
	manifest, err := os.ReadFile(s.usedFile(hex))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cacheError(err)
	}
	var m v1.Manifest
	if hashOf(manifest).Hex != hex || json.Unmarshal(manifest, &m) != nil {
		return nil, nil //nolint:nilerr // corrupt: it is unpacked again
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil || hashOf(raw) != m.Config.Digest {
		return nil, nil //nolint:nilerr // corrupt: it is unpacked again
	}
	if st, err := os.Lstat(filepath.Join(dir, "rootfs")); err != nil || !st.IsDir() {
		return nil, nil //nolint:nilerr // corrupt: it is unpacked again
	}
	cfg, err := parseConfig(raw, arch)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(s.usedFile(hex), now, now) // at worst, Prune removes it too early
	return &Image{
		Digest: digestPrefix + hex,
		RootFS: filepath.Join(dir, "rootfs"),
		Config: Config{Env: cfg.Config.Env, WorkingDir: cfg.Config.WorkingDir, User: cfg.Config.User},
	}, nil
}

// refRecord is the content of a file in refs/.
type refRecord struct {
	Ref    string `json:"ref"`
	Arch   string `json:"arch"`
	Digest string `json:"digest"`
}

func (s *Store) refFile(key, arch string) string {
	return s.path("refs", hashOf([]byte(key+"\x00"+arch)).Hex+".json")
}

// saveRef stores the digest of a reference.
func (s *Store) saveRef(key, arch, hex string) error {
	if old, ok := s.loadRef(key, arch); ok && old == hex {
		return nil
	}
	r := refRecord{Ref: key, Arch: arch, Digest: digestPrefix + hex}
	return cacheError(atomicfile.WriteJSON(s.refFile(key, arch), r))
}

// loadRef returns the last stored digest of a reference.
func (s *Store) loadRef(key, arch string) (hex string, ok bool) {
	var r refRecord
	if atomicfile.ReadJSON(s.refFile(key, arch), &r) != nil || r.Ref != key || r.Arch != arch {
		return "", false
	}
	hex, ok = strings.CutPrefix(r.Digest, digestPrefix)
	return hex, ok && isHex(hex)
}

func isHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// sweep removes directories in tmp/ that a crash left for a digest.
//
// Preconditions: the digest's lock is held.
func (s *Store) sweep(hex string) {
	left, _ := filepath.Glob(s.path("tmp", hex+"-*"))
	for _, dir := range left {
		os.RemoveAll(dir) // after an error, the next sweep tries again
	}
}

// sweepAll calls sweep for all digests that no process is unpacking.
func (s *Store) sweepAll() {
	entries, _ := os.ReadDir(s.path("tmp"))
	for _, e := range entries {
		hex, _, _ := strings.Cut(e.Name(), "-")
		if lock, err := filelock.Try(s.lockFile(hex)); err == nil {
			s.sweep(hex)
			lock.Release()
		}
	}
}

// Prune removes the images that were not used for a time and for which keep returns false, and what killed processes
// were unpacking. removing is called with each image and its directory before it is removed.
func (s *Store) Prune(idle time.Duration, keep func(hex string) bool, removing func(hex, dir string)) error {
	s.sweepAll()
	entries, err := os.ReadDir(s.path("images"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{cacheError(err)}
	for _, e := range entries {
		hex := e.Name()
		lock, err := filelock.Try(s.lockFile(hex))
		if err != nil {
			continue // another process unpacks it
		}
		info, err := os.Lstat(s.usedFile(hex))
		if err == nil && time.Since(info.ModTime()) > idle && !keep(hex) {
			removing(hex, s.imageDir(hex))
			errs = append(errs, s.discard(hex))
		}
		lock.Release()
	}
	return errors.Join(errs...)
}

// usedFile returns the file of an image whose modification time is that of its last use.
func (s *Store) usedFile(hex string) string { return filepath.Join(s.imageDir(hex), "manifest.json") }

// discard moves an image from images/ to tmp/ and removes it there.
//
// Preconditions: the digest's lock is held.
func (s *Store) discard(hex string) error {
	tmp, err := os.MkdirTemp(s.path("tmp"), hex+"-")
	if err != nil {
		return cacheError(err)
	}
	err = os.Rename(s.imageDir(hex), filepath.Join(tmp, "image"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return cacheError(errors.Join(err, os.RemoveAll(tmp)))
}
