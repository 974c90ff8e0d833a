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
	"strconv"
	"strings"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/hostroot"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// The default root file system is a skeleton: empty directories, links such as bin -> usr/bin, and a minimal /etc. The
// programs are the host's own /usr, bound read-only. Package hostroot lists what is visible of the host.

// hostRootVersion is incremented when this file builds a different root from the same host.
const hostRootVersion = "5"

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
//
// With packages, it also contains what the package manager needs.
func buildHostRoot(ctx context.Context, cache, source string, packages bool) (*hostRoot, error) {
	entries, binds, err := surveyHost(source)
	if err == nil && packages {
		var more []hostEntry
		var db []bind
		if more, db, err = surveyPackages(source); err == nil {
			entries, binds = append(entries, more...), append(binds, db...)
		}
	}
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
	text   string // if path is empty: the content
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
	found, err := surveyEtc(source, hostroot.Etc)
	return append(entries, found...), binds, err
}

// surveyEtc returns the entries of /etc that match patterns, sorted.
func surveyEtc(source string, patterns []string) ([]hostEntry, error) {
	var entries []hostEntry
	for _, pattern := range patterns {
		matches, err := filepath.Glob(filepath.Join(source, "etc", pattern))
		if err != nil {
			return nil, err
		}
		for _, match := range matches {
			found, err := surveyTree(source, match)
			if err != nil {
				return nil, err
			}
			entries = append(entries, found...)
		}
	}
	slices.SortFunc(entries, func(a, b hostEntry) int { return strings.Compare(a.target, b.target) })
	return slices.CompactFunc(entries, func(a, b hostEntry) bool { return a.target == b.target }), nil
}

// password matches a URL with a user name or a password.
var password = lazyregexp.New(`://[^/\s]*@`)

// surveyPackages returns what the package manager needs beside the programs: its sources and records, and the accounts
// of the system, to which packages give files. A host without Debian's package manager has none of it.
func surveyPackages(source string) ([]hostEntry, []bind, error) {
	db := filepath.Join(source, hostroot.PackageDB)
	if !isDir(db) {
		return nil, nil, nil
	}
	entries, err := surveyEtc(source, hostroot.PackageEtc)
	if err != nil {
		return nil, nil, err
	}
	entries = slices.DeleteFunc(entries, func(e hostEntry) bool {
		if !e.mode.IsRegular() || !strings.Contains(e.target, "/sources.list") {
			return false
		}
		text, err := os.ReadFile(e.path)
		return err != nil || password().Match(text)
	})
	for _, dir := range hostroot.PackageDirs {
		entries = append(entries, hostEntry{target: dir, mode: fs.ModeDir})
	}
	own := hostroot.OwnEtc()
	for _, name := range []string{"passwd", "group"} {
		text, err := os.ReadFile(filepath.Join(source, "etc", name))
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, hostEntry{target: "etc/" + name, text: own[name] + systemAccounts(string(text), own[name])})
	}
	return entries, []bind{{Source: db, Target: "/" + hostroot.PackageDB}}, nil
}

// systemAccounts returns the rows of a passwd or group file that belong to the system and are not in own, without
// passwords, descriptions and members.
func systemAccounts(file, own string) string {
	const firstUser = 1000
	var out strings.Builder
	for line := range strings.Lines(file) {
		row := strings.Split(strings.TrimSpace(line), ":")
		if len(row) < 4 || strings.Contains("\n"+own, "\n"+row[0]+":") {
			continue
		}
		if id, err := strconv.Atoi(row[2]); err != nil || id <= 0 || id >= firstUser {
			continue
		}
		row[1] = "x"
		if len(row) == 4 {
			row[3] = "" // members
		} else {
			row[4] = "" // description
		}
		out.WriteString(strings.Join(row, ":") + "\n")
	}
	return out.String()
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
		_ = enc.Encode([]any{e.path, e.target, e.mode, e.size, e.mtime, e.link, e.text})
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
	for _, e := range entries {
		if e.text != "" {
			if err := os.WriteFile(filepath.Join(dir, e.target), []byte(e.text), 0o644); err != nil {
				return err
			}
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
	if e.text != "" {
		return nil // it replaces one of our own files
	}
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
