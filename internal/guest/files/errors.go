//go:build linux

package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Kind says what sort of failure an Error is; it is stable and may travel over the wire.
type Kind string

// The kinds of failure.
const (
	NotFound   Kind = "not_found"
	Exists     Kind = "exists"
	Permission Kind = "permission"
	NotRegular Kind = "not_regular" // a FIFO, socket or device where a regular file is needed
	IsDir      Kind = "is_dir"
	NotDir     Kind = "not_dir"
	Escapes    Kind = "escapes" // the path leads out of its root
	Invalid    Kind = "invalid" // a bad name, option or archive
	TooLarge   Kind = "too_large"
	TooMany    Kind = "too_many" // entries, watches, open files
	NoSpace    Kind = "no_space"
	NotEmpty   Kind = "not_empty"
	Cancelled  Kind = "cancelled"
	Internal   Kind = "internal"
)

// Error is the only type of error that this package returns.
type Error struct {
	Kind Kind
	Op   string
	Path string // as the caller gave it, or the archive's entry
	Err  error
}

// Error quotes the path, for it may hold anything, line breaks and terminal escapes included.
func (e *Error) Error() string {
	return fmt.Sprintf("files: %s %q: %v (%s)", e.Op, e.Path, e.Err, e.Kind)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error of this package, "" for nil, and Internal for foreign errors.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// The causes that are ours and not the kernel's.
var (
	errEscapes    = errors.New("path leads out of its root")
	errNotRegular = errors.New("not a regular file")
	errOwnProcess = errors.New("belongs to the guest's own process")
	errRootItself = errors.New("path is the root itself")
	errNUL        = errors.New("path holds a NUL byte")
	errEmpty      = errors.New("path is empty")
	errDirName    = errors.New("path names a directory")
	errShort      = errors.New("input ended before its announced size")
	errLong       = errors.New("input is longer than its announced size")
	errMaxBytes   = errors.New("archive exceeds the limit of bytes")
	errMaxEntries = errors.New("archive exceeds the limit of entries")
	errWatches    = errors.New("too many directories to watch")
	errChanged    = errors.New("tree changed while it was walked")
)

// fail wraps err for one operation; nil stays nil, and an Error stays what it is.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: classify(err), Op: op, Path: path, Err: cause(err)}
}

// cause drops the wrappers of package os: they repeat the operation and the path, and name inner ones.
func cause(err error) error {
	for {
		var pe *fs.PathError
		var le *os.LinkError
		switch {
		case errors.As(err, &pe):
			err = pe.Err
		case errors.As(err, &le):
			err = le.Err
		default:
			return err
		}
	}
}

// classify is the one place where causes become kinds.
func classify(err error) Kind {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Cancelled
	case errors.Is(err, errEscapes):
		return Escapes
	case errors.Is(err, errNotRegular), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return NotRegular
	case errors.Is(err, errMaxBytes), errors.Is(err, unix.EFBIG):
		return TooLarge
	case errors.Is(err, errMaxEntries), errors.Is(err, errWatches), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
		errors.Is(err, unix.EMLINK):
		return TooMany
	case errors.Is(err, errRootItself), errors.Is(err, errNUL), errors.Is(err, errEmpty), errors.Is(err, errDirName),
		errors.Is(err, errShort), errors.Is(err, errLong), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, tar.ErrHeader),
		errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, io.ErrUnexpectedEOF):
		return Invalid
	case errors.Is(err, unix.ENOENT):
		return NotFound
	case errors.Is(err, unix.ENOTEMPTY): // before EEXIST: package os counts ENOTEMPTY as "exists"
		return NotEmpty
	case errors.Is(err, unix.EEXIST):
		return Exists
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS), errors.Is(err, unix.ETXTBSY),
		errors.Is(err, errOwnProcess):
		return Permission
	case errors.Is(err, unix.EISDIR):
		return IsDir
	case errors.Is(err, unix.ENOTDIR):
		return NotDir
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return NoSpace
	}
	return Internal
}
