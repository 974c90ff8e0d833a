package rules

import (
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The supported languages.
const (
	Python  Language = "python"
	Bash    Language = "bash"
	Command Language = "command" // a program and its arguments
)

// The types of a finding are declared in package v1, because they are part of the API.
type (
	// Language is the language of code.
	Language = v1.GateLanguage
	// Action is what may happen to code.
	Action = v1.GateAction
	// Finding is one thing that a rule objects to.
	Finding = v1.Finding
)

// Code is what an Analyzer reads.
type Code struct {
	Language Language
	Text     string
	Args     []string // of Command: the program and its arguments
}

// String returns the code as a person reads it.
func (c Code) String() string {
	if c.Language == Command {
		return strings.Join(c.Args, " ")
	}
	return c.Text
}
