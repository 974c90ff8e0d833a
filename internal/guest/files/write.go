//go:build linux

package files

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteOptions are the options of Write.
type WriteOptions struct {
	// Mode holds the permission bits; other bits are dropped. 0 means those of the replaced file, or 0644 for a new
	// one.
	Mode         fs.FileMode
	MkdirParents bool
	Exclusive    bool // never overwrite a file or a link: Kind Exists
	Append       bool // append in place; see Write
}

// Write writes all of r to a file, atomically: the data goes to a new file with a random name in the same directory,
// which replaces the old file at the end. On an error or a cancelled ctx, the old file is unchanged and the new file is
// removed. ctx is checked between reads of r; a caller that cancels ctx should also make a blocked r return.
//
// A link is followed if it leads to a regular file below the root. A dangling link is Kind NotFound, and a link that
// leads out of the root is Kind Escapes. If another file or link takes the name meanwhile, it is replaced, not
// followed. The user must have permission to write to the old file, as in a shell. Its other hard links keep the old
// content.
//
// Append is not atomic for concurrent readers. On an error, the appended bytes are cut off again, unless another
// process has written to the file by then. A file that the failed append created stays, empty.
func (f *FS) Write(ctx context.Context, root, path string, r io.Reader, opts WriteOptions) (Info, error) {
	var info Info
	var err error
	switch {
	case strings.HasSuffix(path, "/"):
		err = errDirName
	case opts.Append && opts.Exclusive:
		err = unix.EINVAL
	case ctx.Err() != nil:
		err = ctx.Err()
	case opts.Append:
		info, err = f.appendTo(ctx, root, path, r, opts)
	default:
		info, err = f.replace(ctx, root, path, r, opts)
	}
	return info, fail("write", path, err)
}

// tempName returns a random name with a prefix and suffix by which leftovers of a crash can be recognised.
func tempName() string { return ".recluse-" + rand.Text() + ".tmp" }

// followExisting returns the target of a link; a dangling link is ENOENT. It returns other places unchanged.
func followExisting(root string, p *place) (*place, *stat, error) {
	st, err := lstatAt(p.dir, p.base)
	if errors.Is(err, unix.ENOENT) {
		return p, nil, nil
	}
	if err != nil || !isLink(st) {
		return p, st, err
	}
	target, err := locate(root, p.path(), lookup{follow: true})
	if err != nil {
		return p, nil, err
	}
	p.close()
	st, err = lstatAt(target.dir, target.base)
	return target, st, err
}

func (f *FS) replace(ctx context.Context, root, path string, r io.Reader, opts WriteOptions) (Info, error) {
	mode := uint32(opts.Mode.Perm())
	temp := tempName()
	var p *place
	var file *os.File
	err := f.asUser(func() (err error) {
		if p, err = locate(root, path, lookup{mkdir: opts.MkdirParents, notRoot: true}); err != nil {
			return err
		}
		var old *stat
		if opts.Exclusive {
			if _, err = lstatAt(p.dir, p.base); err == nil {
				return unix.EEXIST
			}
		} else if p, old, err = followExisting(root, p); err != nil {
			return err
		}
		if old != nil {
			// The open checks whether the user may write to the file. A running program (ETXTBSY) can be replaced,
			// though not written to.
			file, _, err := openRegularAt(p.dir, p.base, unix.O_WRONLY)
			if err != nil && !errors.Is(err, unix.ETXTBSY) {
				return err
			}
			if err == nil {
				_ = file.Close()
			}
		}
		if mode == 0 {
			mode = 0o644
			if old != nil {
				mode = old.Mode & 0o777
			}
		}
		file, err = openAt(p.dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		return err
	})
	if p != nil {
		defer p.close()
	}
	if err != nil {
		return Info{}, err
	}

	_, err = copyAll(ctx, file, r)
	var info Info
	uerr := f.asUser(func() error {
		if err == nil {
			err = unix.Fchmod(int(file.Fd()), mode)
		}
		if err == nil {
			var st *stat
			if st, err = fstat(file); err == nil {
				info = newInfo(p.path(), st)
			}
		}
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = rename(p.dir, temp, p.dir, p.base, opts.Exclusive)
		}
		if err != nil {
			_ = unix.Unlinkat(int(p.dir.Fd()), temp, 0)
		}
		return err
	})
	if uerr != nil {
		_ = file.Close()
		return Info{}, uerr
	}
	return info, nil
}

// copyAll copies all of r to w.
func copyAll(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	n, err := copyN(ctx, w, r, math.MaxInt64)
	if err == nil {
		err = ctx.Err()
	}
	return n, err
}

// rename moves a name; with exclusive it never replaces an existing one. On file systems without RENAME_NOREPLACE it
// makes a hard link and removes the old name; a hard link cannot replace anything either.
func rename(from *os.File, old string, to *os.File, name string, exclusive bool) error {
	if !exclusive {
		return unix.Renameat(int(from.Fd()), old, int(to.Fd()), name)
	}
	err := unix.Renameat2(int(from.Fd()), old, int(to.Fd()), name, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	if lerr := unix.Linkat(int(from.Fd()), old, int(to.Fd()), name, 0); lerr != nil {
		if lerr == unix.EPERM { // old is a directory
			return err
		}
		return lerr
	}
	return unix.Unlinkat(int(from.Fd()), old, 0)
}

func (f *FS) appendTo(ctx context.Context, root, path string, r io.Reader, opts WriteOptions) (Info, error) {
	mode := uint32(opts.Mode.Perm())
	if mode == 0 {
		mode = 0o644
	}
	var file *os.File
	var st *stat
	var where string
	err := f.asUser(func() error {
		p, err := locate(root, path, lookup{mkdir: opts.MkdirParents, notRoot: true})
		if err != nil {
			return err
		}
		p, st, err = followExisting(root, p)
		defer func() { p.close() }()
		if err != nil {
			return err
		}
		where = p.path()
		if st == nil {
			flags := unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_EXCL
			if file, err = openAt(p.dir, p.base, flags, 0o600); err == nil {
				if st, err = fstat(file); err == nil {
					return unix.Fchmod(int(file.Fd()), mode)
				}
			}
			return err
		}
		file, st, err = openRegularAt(p.dir, p.base, unix.O_WRONLY|unix.O_APPEND)
		return err
	})
	if file != nil {
		defer func() { _ = file.Close() }()
	}
	if err != nil {
		return Info{}, err
	}

	n, err := copyAll(ctx, file, r)
	if err != nil {
		if now, serr := fstat(file); serr == nil && now.Size == st.Size+n {
			_ = file.Truncate(st.Size)
		}
		return Info{}, err
	}
	if st, err = fstat(file); err != nil {
		return Info{}, err
	}
	return newInfo(where, st), nil
}
