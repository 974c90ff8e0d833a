package client

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// sendTree copies a directory of this machine into the session as a tar archive.
func (c *copier) sendTree(ctx context.Context, src, dst string) error {
	r, w := io.Pipe()
	walked := make(chan error, 1)
	go func() {
		err := c.archive(w, src, dst)
		w.CloseWithError(err)
		walked <- err
	}()
	stats, err := c.files.Upload(ctx, dst, r, v1.TarOptions{Parents: true, Exclusive: c.opts.NoClobber})
	r.CloseWithError(io.ErrClosedPipe)
	if werr := <-walked; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		return werr // the cause; err only reports that the archive is incomplete
	}
	if err != nil {
		return err
	}
	c.Bytes += stats.Bytes
	c.note(stats)
	return nil
}

// archive writes the directory src as a tar archive, which is unpacked at dst. Links are archived as links.
func (c *copier) archive(w io.Writer, src, dst string) error {
	root, err := os.OpenRoot(src)
	if err != nil {
		return unreadable(src, err)
	}
	defer root.Close()
	t := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return unreadable(filepath.Join(src, name), err)
		}
		return c.entry(t, root, src, dst, name, d)
	})
	if err != nil {
		return err
	}
	return t.Close()
}

func (c *copier) entry(t *tar.Writer, root *os.Root, src, dst, name string, d fs.DirEntry) error {
	fi, err := d.Info()
	if err != nil {
		return unreadable(filepath.Join(src, name), err)
	}
	link := ""
	switch {
	case d.Type() == fs.ModeSymlink:
		if link, err = root.Readlink(name); err != nil {
			return unreadable(filepath.Join(src, name), err)
		}
	case !d.IsDir() && !d.Type().IsRegular():
		c.Skipped = append(c.Skipped, filepath.Join(src, name)+": not a regular file, directory or link")
		return nil
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return unreadable(filepath.Join(src, name), err)
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	h.Mode &= 0o777
	if d.IsDir() {
		h.Name += "/"
	}
	if !d.Type().IsRegular() {
		return t.WriteHeader(h)
	}
	f, err := root.Open(name)
	if err != nil {
		return unreadable(filepath.Join(src, name), err)
	}
	defer f.Close()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.CopyN(io.MultiWriter(t, sum), f, h.Size)
	if errors.Is(err, io.EOF) {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "copy " + filepath.Join(src, name),
			Message: fmt.Sprintf("the file became shorter while it was read (%d of %d bytes)", n, h.Size),
		}
	}
	c.Files++
	c.Manifest = append(c.Manifest, v1.Uploaded{
		Name:   v1.Text(filepath.Join(src, name)),
		Path:   v1.Text(path.Join(dst, filepath.ToSlash(name))),
		Size:   n,
		SHA256: hex.EncodeToString(sum.Sum(nil)),
	})
	return err
}

// fetchTree copies a directory of the session to this machine.
func (c *copier) fetchTree(ctx context.Context, src, dst string) error {
	if err := os.Mkdir(dst, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return unwritable(dst, err)
	}
	root, err := os.OpenRoot(dst)
	if err != nil {
		return unwritable(dst, err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	var stats *v1.TarStats
	fetched := make(chan error, 1)
	go func() {
		var err error
		stats, err = c.files.Download(ctx, w, src)
		w.CloseWithError(err)
		fetched <- err
	}()
	err = c.unpack(root, dst, strings.Trim(src, "/"), r)
	if err != nil {
		cancel()
	} else {
		_, err = io.Copy(io.Discard, r) // padding after the end of the archive
	}
	r.CloseWithError(io.ErrClosedPipe)
	if ferr := <-fetched; ferr != nil && (err == nil || errors.Is(err, ferr)) {
		return ferr
	}
	if err == nil {
		c.note(stats)
	}
	return err
}

// note adds what the server has skipped, and the files that changed while they were read.
func (c *copier) note(stats *v1.TarStats) {
	for _, n := range stats.Skipped {
		c.Skipped = append(c.Skipped, string(n.Path)+": "+n.Reason)
	}
	c.Changed = append(c.Changed, v1.Strings(stats.Changed)...)
}

// unpack extracts an archive from a sandbox below root. The archive is not trusted: os.Root keeps every path below
// root.
func (c *copier) unpack(root *os.Root, dst, base string, r io.Reader) error {
	t := tar.NewReader(r)
	var dirs []func() error // set the modes of directories last, because a mode may forbid to write into the directory
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return &v1.Error{Code: v1.CodeProtocol, Op: "copy to " + dst, Message: "incomplete archive", Err: err}
		}
		name, ok := within(h.Name, base)
		if !ok {
			c.Skipped = append(c.Skipped, h.Name+": outside of the copied directory")
			continue
		}
		mode := fs.FileMode(h.Mode & 0o777)
		switch h.Typeflag {
		case tar.TypeDir:
			if name == "." {
				continue
			}
			if err := root.MkdirAll(name, 0o777); err != nil {
				return unwritable(filepath.Join(dst, name), err)
			}
			dirs = append(dirs, func() error { return root.Chmod(name, mode|0o700) })
		case tar.TypeReg:
			if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
				return unwritable(filepath.Join(dst, path.Dir(name)), err)
			}
			copyFile := func(w io.Writer) (int64, error) {
				return io.Copy(w, t) //nolint:gosec // G110: the size is that of the user's own files
			}
			err := c.receive(root, path.Join("/", h.Name), name, mode, copyFile) //nolint:gosec // G305: only reported
			if err != nil {
				return err
			}
		case tar.TypeSymlink:
			if err := c.link(root, name, h.Linkname); err != nil {
				return unwritable(filepath.Join(dst, name), err)
			}
		case tar.TypeLink:
			if err := c.hardLink(root, name, h.Linkname, base); err != nil {
				return unwritable(filepath.Join(dst, name), err)
			}
		default:
			c.Skipped = append(c.Skipped, h.Name+": not a regular file, directory or link")
		}
	}
	for _, chmod := range dirs {
		if err := chmod(); err != nil {
			return unwritable(dst, err)
		}
	}
	return nil
}

// within returns the path of an archive entry relative to base, the copied directory. The names of entries are full
// paths. ok is false for an entry outside of base.
func within(name, base string) (string, bool) {
	name = path.Clean(strings.Trim(name, "/"))
	if name == base {
		return ".", true
	}
	if base != "" {
		var ok bool
		if name, ok = strings.CutPrefix(name, base+"/"); !ok {
			return "", false
		}
	}
	return name, filepath.IsLocal(name)
}

// link makes a symbolic link if its target is below root. Other links are skipped, because a program that follows them
// later trusts this directory.
func (c *copier) link(root *os.Root, name, target string) error {
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		c.Skipped = append(c.Skipped, fmt.Sprintf("%s: a link to %s, outside of the copied directory", name, target))
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	err := root.Symlink(target, name)
	if errors.Is(err, fs.ErrExist) && !c.opts.NoClobber {
		if err := root.Remove(name); err != nil {
			return err
		}
		err = root.Symlink(target, name)
	}
	return err
}

// hardLink makes a hard link to a copied file.
func (c *copier) hardLink(root *os.Root, name, target, base string) error {
	old, ok := within(target, base)
	if !ok {
		c.Skipped = append(c.Skipped, fmt.Sprintf("%s: a link to %s, outside of the copied directory", name, target))
		return nil
	}
	if !c.opts.NoClobber {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	c.Files++
	if err := root.Link(old, name); err != nil {
		return err
	}
	entry := c.received[filepath.Join(root.Name(), old)] // empty, without a checksum, if the file existed before the copy
	entry.Name, entry.Path = v1.Text(path.Join("/", base, name)), v1.Text(filepath.Join(root.Name(), name))
	c.list(entry)
	return nil
}

// receive writes one file, whose path in the session is src. It writes to a temporary file and renames it.
func (c *copier) receive(root *os.Root, src, name string, mode fs.FileMode, fill func(io.Writer) (int64, error)) error {
	at := filepath.Join(root.Name(), name)
	if fi, err := root.Lstat(name); err == nil {
		if c.opts.NoClobber {
			return &v1.Error{
				Code:    v1.CodeFileExists,
				Op:      "write " + at,
				Message: "the file exists",
				Remedy:  "copy without no-clobber to replace it",
			}
		}
		if fi.IsDir() {
			return &v1.Error{Code: v1.CodeFileIsDirectory, Op: "write " + at, Message: "is a directory"}
		}
	}
	part := name + randomID(".part-")
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm()|0o600)
	if err != nil {
		return unwritable(at, err)
	}
	sum := sha256.New()
	n, err := fill(io.MultiWriter(f, sum))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		_ = root.Remove(part) // the first error is reported
		return err
	}
	c.Files++
	c.Bytes += n
	c.list(v1.Uploaded{Name: v1.Text(src), Path: v1.Text(at), Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// list adds a file of this machine to the manifest.
func (c *copier) list(u v1.Uploaded) {
	c.Manifest = append(c.Manifest, u)
	c.received[string(u.Path)] = u
}
