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

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// The default root file system is a skeleton: empty directories, links such as bin -> usr/bin, and a minimal /etc. The
// programs are the host's own /usr, bound read-only. Nothing else of the host is visible: no /home, /root, /var, /run,
// and of /etc only what hostEtc lists.

// hostRootVersion changes when this file builds something else from the same host.
const hostRootVersion = "4"

// userName is the name of the commands' user inside.
const userName = "user"

// hostRootName is the prefix of the built roots' directories.
const hostRootName = "host-"

// hostTops are the top-level names that hold programs. With a merged /usr they are links into it, elsewhere directories of
// their own.
var hostTops = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// hostEtc are the entries of the host's /etc that programs need and that tell nothing about the host. Patterns, relative to /etc.
var hostEtc = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"alternatives",
	"ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted",
	"localtime", "timezone", "locale.alias",
	"debian_version", "os-release", "lsb-release", "redhat-release",
	"python3", "python3.*", "matplotlibrc", "fonts",
	"perl", "java-*", "mime.types", "magic", "magic.mime", "services", "protocols", "terminfo", "inputrc",
}

// skeletonDirs are made empty in every root: mount points and what programs expect to exist.
var skeletonDirs = []string{
	".recluse", "dev", "etc", "home/user", "mnt", "opt", "proc", "root", "run/recluse", "shared", "srv", "sys", "tmp", "usr", "var/lib", "var/log", "var/tmp",
}

// hostRoot is a built root file system.
type hostRoot struct {
	dir   string // to be the sandbox's root, read-only
	binds []bind // what belongs onto it

	entries []hostEntry // what was copied
}

// buildHostRoot returns the root file system made from the host at source (normally "/"), below cache. It is built once per
// state of the host; another state gets another directory, and sandboxes that run on an older one keep it. Any number of
// processes may call it at once.
func buildHostRoot(ctx context.Context, cache, source string) (*hostRoot, error) {
	entries, binds, err := surveyHost(source)
	if err != nil {
		return nil, err
	}
	return buildRoot(ctx, cache, entries, binds)
}

// buildRoot makes a root of our skeleton, copies of the entries and mount points for the binds.
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
	temp, err := os.MkdirTemp(cache, newPrefix)
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

// pruneHostRoots removes built roots that keep does not want: it is given each root's directory, and must say yes for
// those that a sandbox or a snapshot is made on.
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
		// Half built ones of processes that died: their builder would hold the lock.
		stale := strings.HasPrefix(e.Name(), newPrefix)
		if stale || (strings.HasPrefix(e.Name(), hostRootName) && !keep(dir)) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// hostEntry is one file, link or directory of the host that is copied.
type hostEntry struct {
	path   string // on the host
	target string // inside, relative to the root
	mode   fs.FileMode
	size   int64
	mtime  int64
	link   string
}

// surveyHost lists what is to be copied from the host at source and what is to be bound.
func surveyHost(source string) ([]hostEntry, []bind, error) {
	usr := filepath.Join(source, "usr")
	if !isDir(usr) {
		return nil, nil, fmt.Errorf("default root file system: %s is no directory", usr)
	}
	binds := []bind{{Source: usr, Target: "/usr"}}
	var entries []hostEntry
	for _, name := range hostTops {
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
	for _, pattern := range hostEtc {
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

// surveyTree lists the files, links and directories at and below top. What we may not read is left out: an ordinary user
// gets a root without it.
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
			e.mtime = 0 // its entries say all
		case info.Mode()&fs.ModeSymlink != 0:
			if e.link, err = os.Readlink(path); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			// Readable for all, or it is not for what runs in a sandbox (ssl/private and the like).
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

// fingerprint names the state of the host that a root is built from.
func fingerprint(entries []hostEntry, binds []bind) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode([]any{hostRootVersion, binds}) // a hash takes everything
	for _, e := range entries {
		_ = enc.Encode([]any{e.path, e.target, e.mode, e.size, e.mtime, e.link})
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// fillRoot builds the skeleton in dir.
func fillRoot(dir string, entries []hostEntry, binds []bind) error {
	for _, name := range skeletonDirs {
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
	for name, text := range ownEtc() {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// A link that is absent on some hosts and expected by programs that read the mount table.
	return os.Symlink("/proc/self/mounts", filepath.Join(dir, "etc/mtab"))
}

// openToAll lets everybody inside read a tree and enter its directories, whatever the umask was.
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
		if mode&0o100 != 0 { // directories, and programs
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// ownEtc are the files of /etc that we write ourselves.
func ownEtc() map[string]string {
	return map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			fmt.Sprintf("%s:x:%d:%d::%s:/bin/bash\n", userName, v1.DefaultUID, v1.DefaultUID, v1.DefaultHome) +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         fmt.Sprintf("root:x:0:\ntty:x:5:\n%s:x:%d:\nnogroup:x:65534:\n", userName, v1.DefaultUID),
		"hosts":         "127.0.0.1 localhost recluse\n::1 localhost\n",
		"hostname":      "recluse\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"host.conf":     "multi on\n",
		"resolv.conf":   "",
		"shells":        "/bin/sh\n/bin/bash\n",
		"machine-id":    "",
	}
}

// copyEntry makes one entry of the host in the root at dir.
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
