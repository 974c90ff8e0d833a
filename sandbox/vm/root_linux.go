package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/hostroot"
)

// rootVersion is incremented when this file builds a different image from the same files.
const rootVersion = "1"

// squashTool makes root images. It reads archives since version 4.5.
const squashTool = "mksquashfs"

// notCopied are parts of the host's /usr that programs in a sandbox do not need.
var notCopied = []string{"usr/lib/modules", "usr/lib/firmware", "usr/src", "usr/share/doc", "usr/share/man"}

// source is a root file system to be made into an image.
type source struct {
	what  string // for people
	trees []tree
	// links are symbolic links, and files the files that we write, by path inside.
	links, files map[string]string
	// public means that files that not everyone may read are left out, and that everything belongs to root.
	public bool
}

// tree is a file or directory of this host and its path inside.
type tree struct {
	path, target string
	skip         []string // paths inside
}

// hostSource returns the root file system made from the programs of this host.
func hostSource() (*source, error) {
	s := &source{what: "the host's /usr", links: map[string]string{"etc/mtab": "/proc/self/mounts"}, public: true}
	s.files = map[string]string{}
	for name, text := range hostroot.OwnEtc() {
		s.files["etc/"+name] = text
	}
	for _, top := range hostroot.Tops {
		info, err := os.Lstat("/" + top)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			if s.links[top], err = os.Readlink("/" + top); err != nil {
				return nil, err
			}
		case info.IsDir():
			s.trees = append(s.trees, tree{path: "/" + top, target: top})
		}
	}
	s.trees = append(s.trees, tree{path: "/usr", target: "usr", skip: notCopied})
	for _, pattern := range hostroot.Etc {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			s.trees = append(s.trees, tree{path: f, target: f[1:]})
		}
	}
	return s, nil
}

// dirSource returns the root file system in a directory, such as an unpacked image.
func dirSource(what, dir string) (*source, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &source{what: what, links: map[string]string{}}
	for _, e := range entries {
		if e.Name() != "home" && !slices.Contains(hostroot.OwnTops, e.Name()) {
			s.trees = append(s.trees, tree{path: filepath.Join(dir, e.Name()), target: e.Name()})
		}
	}
	if !slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		return nil, errors.New("it contains no directory")
	}
	return s, nil
}

// walk calls f for every file, link and directory of the trees that belongs in the image, in a fixed order. Parents
// come before their entries.
func (s *source) walk(ctx context.Context, f func(path, target string, info fs.FileInfo) error) error {
	for _, t := range s.trees {
		err := filepath.WalkDir(t.path, func(path string, d fs.DirEntry, err error) error {
			if cancelled := ctx.Err(); cancelled != nil {
				return cancelled
			}
			if s.public && errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(t.path, path)
			if err != nil {
				return err
			}
			target := filepath.Join(t.target, rel)
			if slices.Contains(t.skip, target) {
				return fs.SkipDir
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			switch kind := info.Mode().Type(); {
			case kind == 0 && s.public && info.Mode().Perm()&0o004 == 0:
				return nil
			case kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink:
				return nil // devices, pipes and sockets
			}
			return f(path, target, info)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fingerprint returns a name for the state of the files.
func (s *source) fingerprint(ctx context.Context) (name string, bytes int64, err error) {
	h := sha256.New()
	fmt.Fprintln(h, rootVersion, s.public, s.trees)
	for _, m := range []map[string]string{s.links, s.files} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(h, "%q %q\n", k, m[k])
		}
	}
	err = s.walk(ctx, func(path, target string, info fs.FileInfo) error {
		link := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			link, _ = os.Readlink(path)
		case info.Mode().IsRegular():
			bytes += info.Size()
		}
		mtime := info.ModTime().UnixNano()
		if info.IsDir() {
			mtime = 0 // its entries are in the list
		}
		_, err := fmt.Fprintf(h, "%q %v %d %d %q\n", target, info.Mode(), info.Size(), mtime, link)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:16], bytes, err
}

// write writes the files as an archive. done is called with the number of bytes so far.
func (s *source) write(ctx context.Context, w io.Writer, done func(int64)) error {
	t := tar.NewWriter(w)
	made := map[string]bool{}
	add := func(h *tar.Header) error {
		if made[h.Name] {
			return nil
		}
		made[h.Name] = true
		h.Format = tar.FormatPAX
		return t.WriteHeader(h)
	}
	var dirs func(name string) error
	dirs = func(name string) error {
		if name == "." || made[name] {
			return nil
		}
		if err := dirs(path.Dir(name)); err != nil {
			return err
		}
		return add(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755})
	}
	var total int64
	err := s.walk(ctx, func(file, target string, info fs.FileInfo) error {
		if err := dirs(path.Dir(target)); err != nil {
			return err
		}
		n, err := s.copyEntry(t, add, file, target, info)
		total += n
		done(total)
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range hostroot.Dirs {
		if err := dirs(name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		if err := add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: s.links[name], Mode: 0o777}); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		err := add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(s.files[name])), Mode: 0o644})
		if err == nil {
			_, err = io.WriteString(t, s.files[name])
		}
		if err != nil {
			return err
		}
	}
	return t.Close()
}

// copyEntry adds one file of the host to an archive, and returns its size.
func (s *source) copyEntry(
	t *tar.Writer, add func(*tar.Header) error, file, target string, info fs.FileInfo,
) (int64, error) {
	h := &tar.Header{Name: target, ModTime: info.ModTime(), Mode: int64(info.Mode().Perm())}
	if s.public {
		h.Mode |= 0o444
		if h.Mode&0o100 != 0 {
			h.Mode |= 0o111
		}
	} else if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
		return 0, add(h)
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(file)
		if err != nil {
			return 0, err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, link
		return 0, add(h)
	}
	f, err := os.Open(file)
	if s.public && errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := add(h); err != nil {
		return 0, err
	}
	_, err = io.CopyN(t, f, h.Size)
	if err != nil {
		err = fmt.Errorf("%s changed while it was read: %w", file, err)
	}
	return h.Size, err
}

// rootImage returns the file name of the image of a root file system, which is built once. name is that of its content;
// empty: its fingerprint.
func (b *Backend) rootImage(ctx context.Context, s *source, name string) (string, error) {
	var bytes int64
	if name == "" {
		var err error
		if name, bytes, err = s.fingerprint(ctx); err != nil {
			return "", err
		}
	}
	file := "root-" + name + ".squashfs"
	target := filepath.Join(b.dir, "images", file)
	if _, err := os.Stat(target); err == nil {
		return file, nil
	}
	lock, err := filelock.Acquire(ctx, filepath.Join(b.dir, "setup.lock"))
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if _, err := os.Stat(target); err == nil {
		return file, nil
	}
	temp, err := b.newTemp(filepath.Dir(target))
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	made := filepath.Join(temp, "root")
	if err := b.squash(ctx, s, made, bytes); err != nil {
		return "", err
	}
	if err := os.Chmod(made, 0o644); err != nil {
		return "", err
	}
	return file, os.Rename(made, target)
}

// squash makes an image.
func (b *Backend) squash(ctx context.Context, s *source, to string, bytesTotal int64) error {
	cmd := exec.CommandContext(ctx, squashTool, "-", to, "-tar", "-noappend", "-comp", "lz4", "-no-xattrs", "-quiet",
		"-no-progress", "-root-mode", "755", "-root-uid", "0", "-root-gid", "0")
	var log bytes.Buffer
	cmd.Stderr, cmd.Stdout = &log, &log
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = s.write(ctx, in, func(n int64) {
		if b.opts.Progress != nil {
			b.opts.Progress("root file system from "+s.what, n, bytesTotal)
		}
	})
	if err != nil {
		_ = cmd.Process.Kill() // an archive that ends early would look complete
	}
	err = errors.Join(err, in.Close())
	if wait := cmd.Wait(); err == nil && wait != nil || err != nil && ctx.Err() == nil && errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%s: %w: %.500s", squashTool, wait, log.String())
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}
