//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Stat describes a file, or a link itself and where it leads.
func (f *FS) Stat(ctx context.Context, root, path string) (Info, error) {
	var info Info
	err := ctx.Err()
	if err == nil {
		err = f.asUser(func() error {
			p, err := locate(root, path, how{})
			if err != nil {
				return err
			}
			defer p.close()
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
	}
	return info, fail("stat", path, err)
}

// MkdirOptions say how Mkdir makes a directory.
type MkdirOptions struct {
	Mode    fs.FileMode // permission bits; 0: 0755. Parents are always 0755
	Parents bool        // make missing parents, and be content with a directory that is there
}

// Mkdir makes a directory.
func (f *FS) Mkdir(ctx context.Context, root, path string, opts MkdirOptions) error {
	err := ctx.Err()
	if err == nil {
		err = f.asUser(func() error { return mkdir(root, path, opts) })
	}
	return fail("mkdir", path, err)
}

func mkdir(root, path string, opts MkdirOptions) error {
	mode := uint32(opts.Mode.Perm())
	if mode == 0 {
		mode = 0o755
	}
	if names, err := split(path); err == nil && path != "" && len(names) == 0 {
		if opts.Parents {
			return nil
		}
		return unix.EEXIST
	}
	p, err := locateForWrite(root, path, opts.Parents)
	if err != nil {
		return err
	}
	defer p.close()
	err = unix.Mkdirat(int(p.dir.Fd()), p.base, 0o700)
	if errors.Is(err, unix.EEXIST) && opts.Parents {
		target, err := locate(root, p.path(), how{follow: true})
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
	// The mode is set on the directory that was made, whatever the umask and whoever swaps the name. Not finding it
	// any more is no failure: it was made.
	dir, err := openDirAt(p.dir, p.base)
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	return unix.Fchmod(int(dir.Fd()), mode)
}

// MoveOptions say how Move moves.
type MoveOptions struct {
	Exclusive    bool // never replace: Kind Exists
	MkdirParents bool // make missing parents of the new path
}

// Move renames a file, link or directory, as rename(2) does: a file replaces a file, a directory only an empty one.
//
// Across file systems it copies to an unguessable name beside the new path, renames that, and removes the old tree. If
// the tree holds what can't be copied (FIFOs, sockets, devices, unreadable files) or changes meanwhile, the move fails and the old tree stays.
func (f *FS) Move(ctx context.Context, root, from, to string, opts MoveOptions) error {
	var src, dst *place
	err := ctx.Err()
	if err == nil {
		err = f.asUser(func() (err error) {
			if src, err = locateForWrite(root, from, false); err != nil {
				return fail("move", from, err)
			}
			if dst, err = locateForWrite(root, to, opts.MkdirParents); err != nil {
				return fail("move", to, err)
			}
			if _, err := lstatAt(src.dir, src.base); err != nil {
				return fail("move", from, err)
			}
			return rename(src.dir, src.base, dst.dir, dst.base, opts.Exclusive)
		})
	}
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
	defer func() { // also of half a copy; after the rename there is nothing of that name
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
			err = &Error{Kind: NotRegular, Op: "move", Path: s.Path, Err: errors.New("can't be copied to another file system: " + s.Reason)}
		}
		if err == nil && out.stats.ChangedCount > 0 {
			err = errChanged
		}
		_ = pw.CloseWithError(err)
		sent <- err
	}()
	in := f.newExtractor(ctx, dst.dir, pr, TarOptions{})
	err := in.run()
	_ = pr.CloseWithError(err) // ends the sender if we gave up first
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

// RemoveOptions say what Remove removes.
type RemoveOptions struct {
	Recursive bool // also directories that are not empty
	MissingOK bool
}

// Remove removes a file, a link (not what it leads to) or a directory, and returns how many names are gone. The root
// itself is refused. It stops at the first failure or when ctx ends; what is removed by then stays removed.
func (f *FS) Remove(ctx context.Context, root, path string, opts RemoveOptions) (int64, error) {
	var n int64
	err := ctx.Err()
	if err == nil {
		err = f.asUser(func() error {
			p, err := locateForWrite(root, path, false)
			if err != nil {
				return err
			}
			defer p.close()
			n, err = remove(ctx, p.dir, p.base, opts.Recursive)
			return err
		})
	}
	if opts.MissingOK && errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return n, fail("remove", path, err)
}

// unlink removes a name that is no directory, or an empty one. The error for a full directory is ENOTEMPTY.
func unlink(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // EPERM: POSIX's word for a directory, and also what it says
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

// remove removes a name and, with recursive, all below it. It keeps as few descriptors as a walk does. Names appearing
// while it works are removed, too; who makes them faster than they go is stopped by ctx only.
func remove(ctx context.Context, dir *os.File, name string, recursive bool) (int64, error) {
	err := unlink(dir, name)
	if err == nil {
		return 1, nil
	}
	if !recursive || !errors.Is(err, unix.ENOTEMPTY) {
		return 0, err
	}
	type open struct {
		dir  *os.File
		id   inode
		name string // in its parent
	}
	var stack []open
	defer func() {
		for _, o := range stack {
			if o.dir != nil {
				_ = o.dir.Close()
			}
		}
	}()
	push := func(parent *os.File, name string) error {
		sub, err := openDirAt(parent, name)
		if err != nil {
			return err
		}
		st, err := fstat(sub)
		if err != nil {
			_ = sub.Close()
			return err
		}
		stack = append(stack, open{sub, inodeOf(st), name})
		if n := len(stack) - openLevels; n > 0 {
			_ = stack[n-1].dir.Close()
			stack[n-1].dir = nil
		}
		return nil
	}
	if err := push(dir, name); err != nil {
		return 0, err
	}
	var gone int64
	stuck := 0 // passes over a directory that seemed empty and was not
	for len(stack) > 0 {
		// Each pass starts from the beginning: removing moves the names that a directory still has to give.
		top := &stack[len(stack)-1]
		if _, err := top.dir.Seek(0, io.SeekStart); err != nil {
			return gone, err
		}
		deeper, empty := false, true
		for !deeper {
			if err := ctx.Err(); err != nil {
				return gone, err
			}
			names, err := top.dir.Readdirnames(1024)
			for _, name := range names {
				err := unlink(top.dir, name)
				switch {
				case err == nil:
					empty = false
					gone++
				case errors.Is(err, unix.ENOENT):
				case errors.Is(err, unix.ENOTEMPTY):
					if err := push(top.dir, name); err != nil && !errors.Is(err, unix.ENOENT) {
						return gone, err
					} else if err == nil {
						deeper = true
					}
				default:
					return gone, err
				}
				if deeper {
					break
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return gone, err
			}
		}
		if deeper || !empty {
			stuck = 0
			continue
		}
		parent := dir
		if n := len(stack); n > 1 {
			up := &stack[n-2]
			if up.dir == nil {
				if up.dir, err = openUp(top.dir, up.id); err != nil {
					return gone, err
				}
			}
			parent = up.dir
		}
		switch err := unlink(parent, top.name); {
		case err == nil || errors.Is(err, unix.ENOENT):
			gone++
		case errors.Is(err, unix.ENOTEMPTY):
			if stuck++; stuck > 100 {
				return gone, err
			}
			continue
		default:
			return gone, err
		}
		stuck = 0
		_ = top.dir.Close()
		stack = stack[:len(stack)-1]
	}
	return gone, nil
}
