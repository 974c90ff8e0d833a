//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/hostroot"
)

// The default root file system is a skeleton: empty directories, links such as bin -> usr/bin, and a minimal /etc. The
// programs are the host's own /usr, bound read-only. Package hostroot lists what is visible of the host.

// hostRootVersion is incremented when this file builds a different root from the same host.
const hostRootVersion = "4"

// hostRootName is the prefix of the directories of built roots.
const hostRootName = "host-"

// hostRoot is a built root file system.
type hostRoot struct {
	dir   string // read-only root directory of the sandbox
	binds []bind // bind mounts on the root

	entries []hostEntry // host files that were copied into the root
}

// buildHostRoot returns the root file system made from the host at source (normally "/"), below cache. It is built once
// for each state of the host. A changed host gets another directory, and sandboxes that use an older root keep it.
// Several processes may call it at the same time.
func buildHostRoot(ctx context.Context, cache, source string) (*hostRoot, error) {
	entries, binds, err := surveyHost(source)
	if err != nil {
		return nil, err
	}
	return buildRoot(ctx, cache, entries, binds)
}

// buildRoot returns a root made of our skeleton, copies of the entries, and mount points for the binds.
func buildRoot(ctx context.Context, cache string, entries []hostEntry, binds []bind) (*hostRoot, error) {
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, err
	}
	sum := fingerprint(entries, binds)
	dir := filepath.Join(cache, hostRootName+sum)
	root := &hostRoot{dir: dir, binds: binds, entries: entries}
	touch(dir)
	if isDir(dir) {
		return root, nil
	}

	lock, err := filelock.Acquire(ctx, filepath.Join(cache, ".lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if isDir(dir) {
		return root, nil
	}
	temp, err := os.MkdirTemp(cache, backendkit.NewPrefix)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := fillRoot(temp, entries, binds); err != nil {
		return nil, fmt.Errorf("build root file system: %w", err)
	}
	if err := openToAll(temp); err != nil {
		return nil, err
	}
	if err := os.Rename(temp, dir); err != nil {
		return nil, err
	}
	return root, nil
}

// pruneHostRoots removes the built roots for which keep returns false. keep must return true for the root of every
// sandbox and snapshot.
func pruneHostRoots(ctx context.Context, cache string, keep func(dir string) bool) error {
	lock, err := filelock.Acquire(ctx, filepath.Join(cache, ".lock"))
	if err != nil {
		return err
	}
	defer lock.Release()
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(cache, e.Name())
		// An incomplete root whose builder died: a living builder would hold the lock.
		stale := strings.HasPrefix(e.Name(), backendkit.NewPrefix)
		if stale || (strings.HasPrefix(e.Name(), hostRootName) && !keep(dir)) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// hostEntry is one file, link or directory of the host that is copied into the root.
type hostEntry struct {
	path   string // on the host
	target string // inside, relative to the root
	mode   fs.FileMode
	size   int64
	mtime  int64
	link   string
}

// surveyHost returns the host files at source to copy, and the directories to bind.
func surveyHost(source string) ([]hostEntry, []bind, error) {
	usr := filepath.Join(source, "usr")
	if !isDir(usr) {
		return nil, nil, fmt.Errorf("default root file system: %s is not a directory", usr)
	}
	binds := []bind{{Source: usr, Target: "/usr"}}
	var entries []hostEntry
	for _, name := range hostroot.Tops {
		path := filepath.Join(source, name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return nil, nil, err
			}
			entries = append(entries, hostEntry{path: path, target: name, mode: fs.ModeSymlink, link: link})
		case info.IsDir():
			binds = append(binds, bind{Source: path, Target: "/" + name})
		}
	}
	etc := filepath.Join(source, "etc")
	for _, pattern := range hostroot.Etc {
		matches, err := filepath.Glob(filepath.Join(etc, pattern))
		if err != nil {
			return nil, nil, err
		}
		for _, match := range matches {
			found, err := surveyTree(source, match)
			if err != nil {
				return nil, nil, err
			}
			entries = append(entries, found...)
		}
	}
	slices.SortFunc(entries, func(a, b hostEntry) int { return strings.Compare(a.target, b.target) })
	entries = slices.CompactFunc(entries, func(a, b hostEntry) bool { return a.target == b.target })
	return entries, binds, nil
}

// surveyTree lists the files, links and directories at and below top. Unreadable entries are skipped: the root of an
// ordinary user does not contain them.
func surveyTree(source, top string) ([]hostEntry, error) {
	var entries []hostEntry
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		target, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		e := hostEntry{path: path, target: target, mode: info.Mode(), mtime: info.ModTime().UnixNano()}
		switch {
		case info.IsDir():
			e.mtime = 0 // its entries are in the list
		case info.Mode()&fs.ModeSymlink != 0:
			if e.link, err = os.Readlink(path); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			// A file that not everyone may read is not for sandboxes (ssl/private and the like).
			if info.Mode().Perm()&0o004 == 0 {
				return nil
			}
			e.size = info.Size()
		default:
			return nil
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// fingerprint returns a name for the state of the host that a root is built from.
func fingerprint(entries []hostEntry, binds []bind) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode([]any{hostRootVersion, binds}) // writing to a hash never fails
	for _, e := range entries {
		_ = enc.Encode([]any{e.path, e.target, e.mode, e.size, e.mtime, e.link})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// fillRoot builds the skeleton in dir.
func fillRoot(dir string, entries []hostEntry, binds []bind) error {
	for _, name := range hostroot.Dirs {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, b := range binds {
		if err := os.MkdirAll(filepath.Join(dir, b.Target), 0o755); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := copyEntry(dir, e); err != nil {
			return err
		}
	}
	for name, text := range hostroot.OwnEtc() {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// Some hosts lack this link, but programs that read the mount table expect it.
	return os.Symlink("/proc/self/mounts", filepath.Join(dir, "etc/mtab"))
}

// openToAll makes a tree readable for everyone, independent of the umask.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if mode&0o100 != 0 { // directories and programs
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// copyEntry copies one entry of the host into the root at dir.
func copyEntry(dir string, e hostEntry) error {
	target := filepath.Join(dir, e.target)
	if e.mode.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if e.mode&fs.ModeSymlink != 0 {
		return os.Symlink(e.link, target)
	}
	in, err := os.Open(e.path)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|e.mode.Perm()&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
