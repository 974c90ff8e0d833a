package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// Kind says what sort of trouble an [Error] is. A Kind is itself an error, so that errors.Is(err, image.NotFound) works.
type Kind string

// The kinds of trouble. The sandbox package maps them to its codes.
const (
	NotFound    Kind = "not_found"   // no such image, tag or file
	Denied      Kind = "denied"      // the registry does not let this user have it, or does not want to say that it is not there
	Corrupt     Kind = "corrupt"     // what was read is not what its digest promises, or breaks the rules of the format
	Arch        Kind = "arch"        // made for another architecture or operating system
	Unreachable Kind = "unreachable" // the registry does not answer, or not now; a retry may help
	TooLarge    Kind = "too_large"   // more bytes or entries than the caps allow
	Invalid     Kind = "invalid"     // a reference nobody can understand, or something that is no image
	NoSpace     Kind = "no_space"    // the disk with the cache is full
	InUse       Kind = "in_use"      // a sandbox holds the image
	Cache       Kind = "cache"       // the cache directory cannot be used
)

func (k Kind) Error() string { return "image: " + string(k) }

// Error is what every function of this package returns when it fails, except for a cancelled context, which is returned
// as it is (wrapped).
type Error struct {
	Kind    Kind
	Ref     string // as the caller gave it
	Message string // what went wrong
	Err     error  // the cause, in words that Message does not repeat; may be nil
	Remedy  string // what to do about it, when something can be said
}

func (e *Error) Error() string {
	s := fmt.Sprintf("image %q: %s", e.Ref, e.Message)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes an Error equal to its Kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// errorf makes an Error without a reference; Get fills it in. A cause stands at the end of the format, as ": %w".
func errorf(kind Kind, remedy, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if cause == nil {
		return &Error{Kind: kind, Message: err.Error(), Remedy: remedy}
	}
	return &Error{Kind: kind, Message: strings.TrimSuffix(err.Error(), ": "+cause.Error()), Err: cause, Remedy: remedy}
}

const (
	remedyCorrupt = "fetch or export the image again"
	remedyLarge   = "use a smaller image or raise the cap"
	remedySpace   = "free some space, prune the image cache, or move the cache to another disk"
)

// trouble is what a kind means, for causes that know only their own part of it.
var trouble = map[Kind]string{
	NotFound: "it cannot be opened",
	Corrupt:  "it is damaged",
	Invalid:  "this is not an image's name",
	NoSpace:  "the disk with the image cache is full",
	Cache:    "the image cache cannot be used",
}

// asError gives err a kind when it has none yet: first by what the system says, else the given one.
func asError(kind Kind, remedy string, err error) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind, remedy = NoSpace, remedySpace
	}
	return &Error{Kind: kind, Message: trouble[kind], Err: err, Remedy: remedy}
}

// inside says where an error happened, and keeps its kind on top.
func inside(where string, err error) error {
	var e *Error
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
