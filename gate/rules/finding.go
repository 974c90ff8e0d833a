package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Language is the language of code.
type Language string

// The supported languages.
const (
	Python  Language = "python"
	Bash    Language = "bash"
	Command Language = "command" // a program and its arguments
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

// Action is what may happen to code.
type Action string

// The actions, from the mildest to the strictest.
const (
	Allow Action = "allow"
	Warn  Action = "warn" // run it and report
	Ask   Action = "ask"  // run it only if a person agrees
	Deny  Action = "deny" // do not run it
)

// rank orders actions by strictness; an unknown action has -1.
func (a Action) rank() int { return slices.Index([]Action{Allow, Warn, Ask, Deny}, a) }

// Runs reports whether the code may run now.
func (a Action) Runs() bool { return a == Allow || a == Warn }

// Stricter returns the stricter of two actions.
func (a Action) Stricter(b Action) Action {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// Finding is one thing that a rule objects to.
type Finding struct {
	Rule    string `json:"rule"`
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // from 1; 0: unknown
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // what to do instead
	// Severity is the action that the rule asks for. Allow: a note, which holds nothing up.
	Severity Action `json:"severity"`
	// Undecidable means that reading alone cannot determine whether this happens.
	Undecidable bool `json:"undecidable,omitempty"`
}

// String returns the finding in one line.
func (f Finding) String() string {
	undecidable := ""
	if f.Undecidable {
		undecidable = " (undecidable)"
	}
	return fmt.Sprintf("line %d: %s: rule %s%s", f.Line, f.Message, f.Rule, undecidable)
}
