package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The codes of this package's errors. Every function returns a *sandbox.Error with one of them when it fails, except for
// a cancelled context, which is returned as it is (wrapped).
const (
	NotFound    = v1.CodeImageNotFound    // no such image, tag or file
	Denied      = v1.CodeImageDenied      // the registry refuses this user, or does not want to say that it is not there
	Corrupt     = v1.CodeImageCorrupt     // what was read is not what its digest promises, or breaks the rules of the format
	Arch        = v1.CodeImageArch        // made for another architecture or operating system
	Unreachable = v1.CodeImageUnreachable // the registry does not answer, or not now; a retry may help
	TooLarge    = v1.CodeTooLarge         // more bytes or entries than the caps allow
	Invalid     = v1.CodeInvalidSpec      // a reference nobody can understand, or something that is no image
	NoSpace     = v1.CodeDiskFull         // the disk with the cache is full
	Cache       = v1.CodeInternal         // the cache directory cannot be used
)

// opOf is the operation that an error about an image names.
func opOf(ref string) string { return "get image " + ref }

// errorf returns an error without an operation; Get fills it in. A cause stands at the end of the format, as ": %w".
func errorf(code v1.Code, remedy, format string, args ...any) *v1.Error {
	err := fmt.Errorf(format, args...)
	e := &v1.Error{Code: code, Message: err.Error(), Remedy: remedy, Retry: code == Unreachable, Err: errors.Unwrap(err)}
	if e.Err != nil {
		e.Message = strings.TrimSuffix(e.Message, ": "+e.Err.Error())
	}
	return e
}

const (
	remedyCorrupt = "fetch or export the image again"
	remedyLarge   = "use a smaller image or raise the cap"
	remedySpace   = "free some space, or move the cache to another disk"
)

// trouble is what a code means, for causes that know only their own part of it.
var trouble = map[v1.Code]string{
	NotFound: "it cannot be opened",
	Corrupt:  "it is damaged",
	Invalid:  "this is not an image's name",
	NoSpace:  "the disk with the image cache is full",
	Cache:    "the image cache cannot be used",
}

// asError gives err a code when it has none yet: first by what the system says, else the given one.
func asError(code v1.Code, remedy string, err error) error {
	var e *v1.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code, remedy = NoSpace, remedySpace
	}
	return &v1.Error{Code: code, Message: trouble[code], Err: err, Remedy: remedy}
}

// inside says where an error happened, and keeps its code on top.
func inside(where string, err error) error {
	var e *v1.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", where, err)
	}
	out := *e
	out.Message = where + ": " + e.Message
	return &out
}

// cacheError is for failures of our own files.
func cacheError(err error) error {
	return asError(Cache, "check that the cache directory exists and belongs to this user", err)
}

// extractError sorts failures while writing a layer's entries: what the host cannot do is the cache's fault, what the
// layer asks for and cannot be done is the layer's.
func extractError(entry string, err error) error {
	err = inside(fmt.Sprintf("entry %q", entry), err)
	for _, host := range []error{fs.ErrPermission, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, host) {
			return cacheError(err)
		}
	}
	return asError(Corrupt, remedyCorrupt, err)
}
