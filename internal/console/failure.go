package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Failure is an error as JSON.
type Failure struct {
	Code    v1.Code `json:"code"`
	Op      string  `json:"op,omitempty"`
	Message string  `json:"message"`
	Remedy  string  `json:"remedy,omitempty"`
	Retry   bool    `json:"retry"`
	Cause   string  `json:"cause,omitempty"`
}

// NewFailure returns err as a Failure, or nil if err is nil.
func NewFailure(err error) *Failure {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*v1.Error](err)
	if !ok {
		return &Failure{Code: v1.CodeOf(err), Message: err.Error()}
	}
	f := &Failure{Code: e.Code, Op: e.Op, Message: e.Message, Retry: e.Retry}
	remedy, cause := v1.SplitRemedy(e.Err)
	f.Remedy = cmp.Or(e.Remedy, remedy)
	if cause != nil {
		f.Cause = cause.Error()
	}
	return f
}

// String returns the operation, the message and the cause in one line, without the remedy.
func (f *Failure) String() string {
	parts := []string{f.Op, f.Message, f.Cause}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// WriteJSON writes one indented JSON value.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteLine writes one JSON value on a single line, for JSON Lines.
func WriteLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
