package gate

import (
	"fmt"

	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package.
const (
	CodeRulesInvalid     sandbox.Code = "gate_rules_invalid"
	CodeThesaurusInvalid sandbox.Code = "gate_thesaurus_invalid"
	CodeGraphInvalid     sandbox.Code = "gate_graph_invalid"
	CodeApprovalUnknown  sandbox.Code = "gate_approval_unknown"
	CodeApprovalResolved sandbox.Code = "gate_approval_resolved"
	CodeRefused          sandbox.Code = "refused_by_gate"
)

// Sentinels for errors.Is.
var (
	ErrRulesInvalid     = &sandbox.Error{Code: CodeRulesInvalid}
	ErrThesaurusInvalid = &sandbox.Error{Code: CodeThesaurusInvalid}
	ErrGraphInvalid     = &sandbox.Error{Code: CodeGraphInvalid}
	ErrApprovalUnknown  = &sandbox.Error{Code: CodeApprovalUnknown}
	ErrApprovalResolved = &sandbox.Error{Code: CodeApprovalResolved}
	ErrRefused          = &sandbox.Error{Code: CodeRefused}
)

// PositionError is where in a file of rules, terms or edges something is wrong. It is the cause inside the
// errors of the loaders.
type PositionError struct {
	File    string
	Line    int // from 1
	Column  int // from 1, in bytes
	Message string
}

// Error implements error.
func (e *PositionError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// at makes a PositionError from an offset into the file's bytes.
func at(file string, data []byte, offset int, format string, args ...any) *PositionError {
	line, column := position(data, offset)
	return &PositionError{File: file, Line: line, Column: column, Message: fmt.Sprintf(format, args...)}
}

// position gives line and column, from 1, of an offset.
func position(data []byte, offset int) (line, column int) {
	offset = min(max(offset, 0), len(data))
	line, column = 1, 1
	for _, c := range data[:offset] {
		column++
		if c == '\n' {
			line++
			column = 1
		}
	}
	return line, column
}

// invalid wraps the position of a mistake in a file.
func invalid(code sandbox.Code, op, remedy string, err error) error {
	return &sandbox.Error{Code: code, Op: op, Message: "nothing was loaded", Remedy: remedy, Err: err}
}
