//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Stat returns the Info of a file. For a link, it describes the link itself, with its target.
func (f *FS) Stat(ctx context.Context, root, path string) (Info, error) {
	var info Info
	err := f.at(ctx, root, path, lookup{}, func(p *place) error {
		st, err := lstatAt(p.dir, p.base)
		if err != nil {
			return err
		}
		info = newInfo(p.path(), st)
		if isLink(st) {
			info.LinkTarget, err = readlinkAt(p.dir, p.base)
		}
		return err
	})
	return info, fail("stat", path, err)
}

// MkdirOptions are the options of Mkdir.
type MkdirOptions struct {
	Parents bool // make missing parents, and accept an existing directory
}

// Mkdir makes a directory.
func (f *FS) Mkdir(ctx context.Context, root, path string, opts MkdirOptions) error {
	return fail("mkdir", path, f.begin(ctx, func() error { return mkdir(root, path, opts.Parents) }))
}

func mkdir(root, path string, parents bool) error {
	if names, err := split(path); err == nil && path != "" && len(names) == 0 {
		if parents {
			return nil
		}
		return unix.EEXIST
	}
	p, err := locate(root, path, lookup{mkdir: parents, notRoot: true})
	if err != nil {
		return err
	}
	defer p.close()
	err = unix.Mkdirat(int(p.dir.Fd()), p.base, 0o700)
	if errors.Is(err, unix.EEXIST) && parents {
		target, err := locate(root, p.path(), lookup{follow: true})
		if err != nil {
			return err
		}
		defer target.close()
		if st, err := lstatAt(target.dir, target.base); err != nil {
			return err
		} else if !isDir(st) {
			return unix.EEXIST
		}
		return nil
	}
	if err != nil {
		return err
	}
	// Set the mode on the directory that was made, so that neither the umask nor a swapped name matters. If it is
	// missing by now, Mkdir still succeeds, because it was made.
	dir, err := openDirAt(p.dir, p.base)
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	return unix.Fchmod(int(dir.Fd()), 0o755)
}

// MoveOptions are the options of Move.
type MoveOptions struct {
	Exclusive bool // never replace: Kind Exists
}

// Move renames a file, link or directory, as rename(2) does: a file replaces a file, a directory only an empty one.
//
// Across file systems it copies to a random name beside the new path, renames the copy, and removes the old tree. If
// the tree contains files that cannot be copied (FIFOs, sockets, devices, unreadable files) or changes meanwhile, the
// move fails and the old tree stays.
func (f *FS) Move(ctx context.Context, root, from, to string, opts MoveOptions) error {
	var src, dst *place
	err := f.begin(ctx, func() (err error) {
		if src, err = locate(root, from, lookup{notRoot: true}); err != nil {
			return fail("move", from, err)
		}
		if dst, err = locate(root, to, lookup{notRoot: true}); err != nil {
			return fail("move", to, err)
		}
		if _, err := lstatAt(src.dir, src.base); err != nil {
			return fail("move", from, err)
		}
		return rename(src.dir, src.base, dst.dir, dst.base, opts.Exclusive)
	})
	if src != nil {
		defer src.close()
	}
	if dst != nil {
		defer dst.close()
	}
	if errors.Is(err, unix.EXDEV) {
		err = f.moveAcross(ctx, src, dst, opts)
	}
	return fail("move", to, err)
}

func (f *FS) moveAcross(ctx context.Context, src, dst *place, opts MoveOptions) error {
	temp := tempName()
	defer func() { // removes also an incomplete copy; after the rename the name does not exist
		_ = f.asUser(func() error {
			_, err := remove(context.WithoutCancel(ctx), dst.dir, temp, true)
			return err
		})
	}()
	pr, pw := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		out := f.newArchiver(ctx, pw, TarOptions{})
		err := out.add(src, func(string) string { return temp })
		if err == nil {
			err = out.tw.Close()
		}
		if err == nil && out.stats.SkippedCount > 0 {
			s := out.stats.Skipped[0]
			err = &Error{
				Kind: NotRegular,
				Op:   "move",
				Path: s.Path,
				Err:  errors.New("cannot be copied to another file system: " + s.Reason),
			}
		}
		if err == nil && out.stats.ChangedCount > 0 {
			err = errChanged
		}
		_ = pw.CloseWithError(err)
		sent <- err
	}()
	in := f.newExtractor(ctx, dst.dir, pr, TarOptions{})
	err := in.run()
	_ = pr.CloseWithError(err) // ends the sender if the extractor failed first
	if serr := <-sent; err == nil {
		err = serr
	}
	if err != nil {
		return err
	}
	return f.asUser(func() error {
		if err := rename(dst.dir, temp, dst.dir, dst.base, opts.Exclusive); err != nil {
			return err
		}
		_, err := remove(ctx, src.dir, src.base, true)
		return err
	})
}

// RemoveOptions are the options of Remove.
type RemoveOptions struct {
	Recursive bool // also directories that are not empty
}

// Remove removes a file, a link (not its target) or a directory, and returns the number of removed names. The root
// itself is refused. It stops at the first error or when ctx ends; names removed by then stay removed.
func (f *FS) Remove(ctx context.Context, root, path string, opts RemoveOptions) (int64, error) {
	var n int64
	err := f.at(ctx, root, path, lookup{notRoot: true}, func(p *place) (err error) {
		n, err = remove(ctx, p.dir, p.base, opts.Recursive)
		return err
	})
	return n, fail("remove", path, err)
}

// unlink removes a file, a link or an empty directory. For a directory that is not empty it returns ENOTEMPTY.
func unlink(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // EPERM: a directory (POSIX), or a missing permission
		return err
	}
	derr := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	switch derr {
	case unix.ENOTDIR:
		return err
	case unix.EEXIST:
		return unix.ENOTEMPTY
	}
	return derr
}

// remove removes a name and, with recursive, everything below it. It keeps one open descriptor, however deep the tree
// is, and returns to a parent through "..". Names that appear while it works are removed, too. If they are made faster
// than they can be removed, only ctx ends it.
func remove(ctx context.Context, dir *os.File, name string, recursive bool) (int64, error) {
	err := unlink(dir, name)
	if err == nil {
		return 1, nil
	}
	if !recursive || !errors.Is(err, unix.ENOTEMPTY) {
		return 0, err
	}
	r := &remover{ctx: ctx, top: dir, dir: dir}
	defer func() {
		if r.dir != dir {
			_ = r.dir.Close()
		}
	}()
	err = r.down(name)
	for stuck := 0; err == nil && len(r.path) > 0; {
		before := r.gone
		var full string
		if full, err = r.empty(); err == nil && full != "" {
			if err = r.down(full); errors.Is(err, unix.ENOENT) {
				err = nil // removed meanwhile
			}
		} else if err == nil {
			err = r.up()
		}
		// A directory may look empty without being empty. Retry, but not for ever.
		if stuck++; r.gone > before || full != "" {
			stuck = 0
		}
		if errors.Is(err, unix.ENOTEMPTY) && stuck <= 100 {
			err = nil
		}
	}
	return r.gone, err
}

// remover empties a tree. It counts removed names in gone.
type remover struct {
	ctx  context.Context //nolint:containedctx // the ctx of the call
	top  *os.File
	dir  *os.File // the directory that is being emptied; equal to top before the first and after the last
	path []pathStep
	gone int64
}

// pathStep is a directory between the top and the directory that is being emptied.
type pathStep struct {
	name string // in its parent
	id   inode
}

// down enters a directory.
func (r *remover) down(name string) error {
	sub, err := openDirAt(r.dir, name)
	if err != nil {
		return err
	}
	st, err := fstat(sub)
	if err != nil {
		_ = sub.Close()
		return err
	}
	r.enter(sub)
	r.path = append(r.path, pathStep{name, inodeOf(st)})
	return nil
}

func (r *remover) enter(dir *os.File) {
	if r.dir != r.top {
		_ = r.dir.Close()
	}
	r.dir = dir
}

// up removes the current directory from its parent and makes the parent the current directory.
func (r *remover) up() error {
	n := len(r.path) - 1
	parent := r.top
	if n > 0 {
		var err error
		if parent, err = openUp(r.dir, r.path[n-1].id); err != nil {
			return err
		}
	}
	if err := unlink(parent, r.path[n].name); err != nil && !errors.Is(err, unix.ENOENT) {
		if parent != r.top {
			_ = parent.Close()
		}
		return err
	}
	r.gone++
	r.enter(parent)
	r.path = r.path[:n]
	return nil
}

// empty removes the content of the current directory. It stops at the first subdirectory that is not empty, and returns
// its name.
func (r *remover) empty() (string, error) {
	// Each pass starts at the beginning, because removing changes the positions of the names that are still to be read.
	if _, err := r.dir.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return "", err
		}
		names, err := r.dir.Readdirnames(1024)
		for _, name := range names {
			switch err := unlink(r.dir, name); {
			case err == nil:
				r.gone++
			case errors.Is(err, unix.ENOTEMPTY):
				return name, nil
			case !errors.Is(err, unix.ENOENT):
				return "", err
			}
		}
		if err == io.EOF {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
}
