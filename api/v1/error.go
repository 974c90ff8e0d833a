package v1

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Code identifies the kind of an error. Codes are stable: programs may switch on them.
type Code string

// Error is an error with a stable code, its cause and a remedy. Every error that the public packages of this module
// return is an *Error or wraps one.
type Error struct {
	Code    Code
	Op      string // what was being done, e.g. "start sandbox"
	Message string // what happened
	Remedy  string // what to do next; may be empty
	Retry   bool   // the same call may succeed later
	Err     error  // the cause; may be nil
}

// Error implements error. It returns one line: the operation, the message, the cause, and the remedy in parentheses.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	switch {
	case e.Message != "" && e.Err != nil:
		fmt.Fprintf(&b, "%s: %v", e.Message, e.Err)
	case e.Message != "":
		b.WriteString(e.Message)
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	default:
		b.WriteString(string(e.Code))
	}
	if e.Remedy != "" {
		fmt.Fprintf(&b, " (%s)", e.Remedy)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code, or the error of package fs that corresponds to the code.
func (e *Error) Is(target error) bool {
	if t, ok := target.(*Error); ok {
		return t.Code == e.Code
	}
	switch e.Code {
	case CodeFileNotFound:
		return target == fs.ErrNotExist
	case CodeFileExists:
		return target == fs.ErrExist
	case CodeFilePermission:
		return target == fs.ErrPermission
	}
	return false
}

// CodeOf returns the code of the outermost *Error in err's chain, or CodeInternal. For nil it returns "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// SplitRemedy separates err from the remedies of its *Error and of the *Errors that this one directly wraps. It returns
// the outermost remedy: the others would only repeat it.
func SplitRemedy(err error) (remedy string, bare error) {
	e, ok := err.(*Error) //nolint:errorlint // the remedy of a wrapped *Error is part of the text
	if !ok {
		return "", err
	}
	c := *e
	remedy, c.Err = SplitRemedy(e.Err)
	c.Remedy = ""
	return cmp.Or(e.Remedy, remedy), &c
}
