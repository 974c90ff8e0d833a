//go:build linux

package files

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Read writes the bytes of a regular file from offset on to w and returns what the file was at its opening and how many
// bytes were written. Links are followed.
//
// With limit <= 0 it stops at the size seen at the opening, so the download of a growing file ends; with limit > 0 it
// stops after that many bytes or at the end of the file, wherever that is by then. A file that shrinks gives fewer bytes.
// Files of /proc and /sys tell no size: of those at most 4 MiB are read unless limit says otherwise.
func (f *FS) Read(ctx context.Context, root, path string, offset, limit int64, w io.Writer) (Info, int64, error) {
	info, n, err := f.read(ctx, root, path, offset, limit, w)
	return info, n, fail("read", path, err)
}

func (f *FS) read(ctx context.Context, root, path string, offset, limit int64, w io.Writer) (Info, int64, error) {
	if offset < 0 {
		return Info{}, 0, unix.EINVAL
	}
	var info Info
	var file *os.File
	err := f.at(ctx, root, path, how{follow: true}, func(p *place) (err error) {
		var st *stat
		if file, st, err = openRegularAt(p.dir, p.base, unix.O_RDONLY); err == nil {
			info = newInfo(p.path(), st)
		}
		return err
	})
	if err != nil {
		return Info{}, 0, err
	}
	defer func() { _ = file.Close() }()

	end := info.Size - offset
	if limit > 0 {
		end = limit
	} else if info.Size == 0 {
		if made, _ := pseudo(file); made {
			end = maxPseudo
		}
	}
	if end <= 0 {
		return info, 0, nil
	}
	if offset > 0 {
		if _, err := file.Seek(offset, io.SeekStart); err != nil {
			return info, 0, err
		}
	}
	n, err := copyN(ctx, w, file, end)
	return info, n, err
}
