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
	"slices"

	"golang.org/x/sys/unix"
)

// Kind is the class of an Error. Its values are stable and are sent over the wire.
type Kind string

// The kinds of errors.
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
	TooMany    Kind = "too_many" // too many entries, watches or open files
	NoSpace    Kind = "no_space"
	NotEmpty   Kind = "not_empty"
	Cancelled  Kind = "cancelled"
	Internal   Kind = "internal"
)

// Error is the only type of error that this package returns.
type Error struct {
	Kind Kind
	Op   string
	Path string // as passed by the caller, or the name of an archive entry
	Err  error
}

// Error returns the message. It quotes the path, which may contain line breaks and terminal escapes.
func (e *Error) Error() string {
	return fmt.Sprintf("files: %s %q: %v (%s)", e.Op, e.Path, e.Err, e.Kind)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error of this package, "" for nil, and Internal for all other errors.
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

// Causes that do not come from the kernel.
var (
	errEscapes    = errors.New("path leads out of its root")
	errNotRegular = errors.New("not a regular file")
	errOwnProcess = errors.New("file of the guest's own process")
	errRootItself = errors.New("path is the root itself")
	errNUL        = errors.New("path contains a NUL byte")
	errEmpty      = errors.New("path is empty")
	errDirName    = errors.New("path names a directory")
	errMaxBytes   = errors.New("archive exceeds its byte limit")
	errMaxEntries = errors.New("archive exceeds its entry limit")
	errWatches    = errors.New("too many directories to watch")
	errChanged    = errors.New("tree changed while it was walked")
)

// fail wraps err in an Error of one operation. It returns nil for nil, and an Error unchanged.
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

// cause removes the wrappers of package os, which repeat the operation and contain internal paths.
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

// kinds is the only mapping from causes to kinds. ENOTEMPTY comes before EEXIST, because package os treats it as
// "exists".
var kinds = []struct {
	kind   Kind
	causes []error
}{
	{Cancelled, []error{context.Canceled, context.DeadlineExceeded}},
	{Escapes, []error{errEscapes}},
	{NotRegular, []error{errNotRegular, unix.ENXIO, unix.ENODEV}},
	{TooLarge, []error{errMaxBytes, unix.EFBIG}},
	{TooMany, []error{errMaxEntries, errWatches, unix.EMFILE, unix.ENFILE, unix.EMLINK}},
	{Invalid, []error{
		errRootItself, errNUL, errEmpty, errDirName, unix.EINVAL, unix.ENAMETOOLONG, unix.ELOOP, unix.EOPNOTSUPP,
		tar.ErrHeader, tar.ErrFieldTooLong, io.ErrUnexpectedEOF,
	}},
	{NotFound, []error{unix.ENOENT}},
	{NotEmpty, []error{unix.ENOTEMPTY}},
	{Exists, []error{unix.EEXIST}},
	{Permission, []error{unix.EACCES, unix.EPERM, unix.EROFS, unix.ETXTBSY, errOwnProcess}},
	{IsDir, []error{unix.EISDIR}},
	{NotDir, []error{unix.ENOTDIR}},
	{NoSpace, []error{unix.ENOSPC, unix.EDQUOT}},
}

func classify(err error) Kind {
	for _, k := range kinds {
		if slices.ContainsFunc(k.causes, func(cause error) bool { return errors.Is(err, cause) }) {
			return k.kind
		}
	}
	return Internal
}
