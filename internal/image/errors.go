package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The codes of this package's errors. Every function that fails returns a *v1.Error with one of them, except after the
// end of its ctx: then it returns the wrapped error of ctx.
const (
	NotFound    = v1.CodeImageNotFound    // the image, tag or file does not exist
	Denied      = v1.CodeImageDenied      // the registry denies access; the image may also not exist
	Corrupt     = v1.CodeImageCorrupt     // the content does not match its digest, or violates the format
	Arch        = v1.CodeImageArch        // made for another architecture or operating system
	Unreachable = v1.CodeImageUnreachable // the registry does not answer at the moment; a retry may help
	TooLarge    = v1.CodeTooLarge         // more bytes or entries than the limits allow
	Invalid     = v1.CodeInvalidSpec      // an invalid reference, or something that is not an image
	NoSpace     = v1.CodeDiskFull         // the disk of the cache is full
	Cache       = v1.CodeInternal         // the cache directory cannot be used
)

// opOf returns the operation of errors about an image.
func opOf(ref string) string { return "get image " + ref }

// errorf returns an error without an operation, which Get sets. A cause must be at the end of the format, as ": %w".
func errorf(code v1.Code, remedy, format string, args ...any) *v1.Error {
	err := fmt.Errorf(format, args...)
	e := &v1.Error{
		Code:    code,
		Message: err.Error(),
		Remedy:  remedy,
		Retry:   code == Unreachable,
		Err:     errors.Unwrap(err),
	}
	if e.Err != nil {
		e.Message = strings.TrimSuffix(e.Message, ": "+e.Err.Error())
	}
	return e
}

// The remedies of several errors.
const (
	remedyCorrupt = "fetch or export the image again"
	remedyLarge   = "use a smaller image or raise the limit"
	remedySpace   = "free some space, or move the cache to another disk"
	remedyFormat  = "use a docker-save archive, an OCI archive or an OCI layout; " +
		"convert a bare root file system to an image first, for instance with docker import"
)

// codeMessages are the messages of errors that only have a code and a cause.
var codeMessages = map[v1.Code]string{
	NotFound: "the image cannot be opened",
	Corrupt:  "the image is corrupt",
	Invalid:  "invalid image reference",
	NoSpace:  "the disk of the image cache is full",
	Cache:    "the image cache cannot be used",
}

// asError returns err with a code. If err has none yet, that is NoSpace for a full disk, and otherwise the given code.
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
	return &v1.Error{Code: code, Message: codeMessages[code], Err: err, Remedy: remedy}
}

// withLocation adds the place of an error to its message, and keeps its code.
func withLocation(where string, err error) error {
	var e *v1.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", where, err)
	}
	out := *e
	out.Message = where + ": " + e.Message
	return &out
}

// cacheError returns the error for a failure with the files of the cache.
func cacheError(err error) error {
	return asError(Cache, "check that the cache directory exists and belongs to this user", err)
}

// extractError returns the error for a failure to write an entry of a layer. The code is Cache if the host is the
// cause, and Corrupt if the layer is.
func extractError(entry string, err error) error {
	err = withLocation(fmt.Sprintf("entry %q", entry), err)
	for _, host := range []error{fs.ErrPermission, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, host) {
			return cacheError(err)
		}
	}
	return asError(Corrupt, remedyCorrupt, err)
}
