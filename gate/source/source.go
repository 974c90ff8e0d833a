// Package source reads the files that configure a gate, and reports mistakes in them by line and column.
package source

import (
	"fmt"
	"io"
	"os"
)

// Error is a mistake in a file of rules, terms or edges. It is the cause inside the errors of their loaders.
type Error struct {
	File    string
	Line    int // from 1
	Column  int // from 1, in bytes
	Message string
}

// Error implements error.
func (e *Error) Error() string {
	if e.File == "" {
		return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// ErrorAt returns an Error at a byte offset of the file's content.
func ErrorAt(file string, data []byte, offset int, message string) *Error {
	e := &Error{File: file, Line: 1, Column: 1, Message: message}
	for _, c := range data[:min(max(offset, 0), len(data))] {
		e.Column++
		if c == '\n' {
			e.Line++
			e.Column = 1
		}
	}
	return e
}

// Read returns the content of a file, which must not be larger than limit.
func Read(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return data, nil
}
