//go:build linux

package files

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Read writes the bytes of a regular file from offset on to w. It returns the file's Info as of the open, and the
// number of bytes written. Links are followed.
//
// With limit <= 0, it stops at the size that the file had when it was opened, so the download of a growing file ends.
// With limit > 0, it stops after that many bytes or at the end of the file, whatever its size is by then. A file that
// shrinks yields fewer bytes. Files of /proc and /sys report no size: without a limit, at most 4 MiB of them are read.
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
	err := f.at(ctx, root, path, lookup{follow: true}, func(p *place) (err error) {
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
		if generated, _ := pseudo(file); generated {
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
