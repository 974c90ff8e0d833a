package gate

import (
	"context"
	"fmt"
	"strings"

	"github.com/recluse-dev/recluse/sandbox"
)

// Gate judges code before it runs.
type Gate interface {
	// Judge says what may happen to the code. An error means that no judgement was reached: do not run it.
	Judge(ctx context.Context, req Request) (Decision, error)
}

// Language is what the code of a request is written in.
type Language string

// The languages that are understood.
const (
	Python  Language = "python"
	Bash    Language = "bash"
	Command Language = "command" // a program and its arguments, in Args
)

// Mode is how much a judge's opinion weighs.
type Mode string

// The modes.
const (
	ModeOff   Mode = "off"   // not asked
	ModeWarn  Mode = "warn"  // its findings are told, and the code runs
	ModeBlock Mode = "block" // its decision holds
)

// ParseMode reads a mode as written by a person. A misspelt one is an error, never "off".
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case ModeOff, ModeWarn, ModeBlock:
		return m, nil
	}
	return "", &sandbox.Error{
		Code: sandbox.CodeInvalidRequest, Op: "gate mode", Message: fmt.Sprintf("%q is no mode", s),
		Remedy: "say off, warn or block",
	}
}

// weight orders modes by how much they hold up.
func (m Mode) weight() int {
	switch m {
	case ModeBlock:
		return 2
	case ModeWarn:
		return 1
	default:
		return 0
	}
}

// AtLeast is the mode that holds at a gate for a session that asks for m: not below the gate's floor. An empty one stays empty, since then
// the gate's own holds.
func AtLeast(g Gate, m Mode) Mode {
	if f, ok := g.(interface{ Least() Mode }); ok && m != "" {
		return heavier(m, f.Least())
	}
	return m
}

// heavier gives the mode that holds up more.
func heavier(a, b Mode) Mode {
	if b.weight() > a.weight() {
		return b
	}
	return a
}

// Action is what may happen to the code.
type Action string

// The actions, from the mildest on.
const (
	Allow Action = "allow"
	Warn  Action = "warn" // run it, and tell
	Ask   Action = "ask"  // run it only if a person agrees
	Deny  Action = "deny" // do not run it
)

// rank orders actions by how much they hold up.
func (a Action) rank() int {
	switch a {
	case Warn:
		return 1
	case Ask:
		return 2
	case Deny:
		return 3
	default:
		return 0
	}
}

// Runs reports whether the code may run now.
func (a Action) Runs() bool { return a == Allow || a == Warn }

// stricter gives the action that holds up more.
func stricter(a, b Action) Action {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// Request is code that somebody wants to run.
type Request struct {
	Language Language `json:"language"`
	Code     string   `json:"code,omitempty"`
	Args     []string `json:"args,omitempty"` // of Command: the program and its arguments
	Session  string   `json:"session,omitempty"`
	Tenant   string   `json:"tenant,omitempty"`
	// Role chooses the thesaurus; empty: the default one.
	Role string `json:"role,omitempty"`
	// Attempt is the number of this try, from 1, where the caller counts; 0: the Checker counts per session.
	Attempt int `json:"attempt,omitempty"`
	// Rules and Graph are the session's own modes; empty: the Checker's.
	Rules Mode `json:"rules,omitempty"`
	Graph Mode `json:"graph,omitempty"`
}

// Text is the code, or the words of a command, as a person reads it.
func (r *Request) Text() string {
	if r.Language == Command {
		return strings.Join(r.Args, " ")
	}
	return r.Code
}

// empty reports whether there is nothing to judge.
func (r *Request) empty() bool { return strings.TrimSpace(r.Text()) == "" }

// Finding is one thing that a judge has to say.
type Finding struct {
	Rule    string `json:"rule"`
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // from 1; 0: unknown
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"` // what to do instead
	// Severity is the action that the rule asks for; the mode may have softened the decision's. Allow: a note.
	Severity Action `json:"severity"`
	// Undecidable says that reading alone cannot tell whether this happens.
	Undecidable bool `json:"undecidable,omitempty"`
}

// String is the finding in one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "line %d: %s: rule %s", f.Line, f.Message, f.Rule)
	if f.Undecidable {
		b.WriteString(" (undecidable)")
	}
	return b.String()
}

// Suggestion names known terms near a word that is not known.
type Suggestion struct {
	Word string   `json:"word"`
	Near []string `json:"near"`
}

// Decision is what the gate says.
type Decision struct {
	Action   Action    `json:"action"`
	Findings []Finding `json:"findings,omitempty"`
	// ConceptsMatched are the thesaurus's concepts that the code speaks of, in the order of their first mention.
	ConceptsMatched []string     `json:"concepts_matched,omitempty"`
	Unknown         []string     `json:"unknown,omitempty"` // words that no term covers, the most frequent first; only when the graph objects
	Suggestions     []Suggestion `json:"suggestions,omitempty"`
	// Reason tells a model, or a person, what is wrong and how to mend it; empty when there is nothing to say.
	Reason string `json:"reason,omitempty"`
	// Attempt is the number of this try: failures in a row of this session, this one included.
	Attempt int `json:"attempt,omitempty"`
	// Escalated says that a person was called; Approval is the question they were asked.
	Escalated bool   `json:"escalated,omitempty"`
	Approval  string `json:"approval,omitempty"`
	// ApprovedBy is who granted this run.
	ApprovedBy string `json:"approved_by,omitempty"`
	// RefusedBy is who refused it, and RefusedNote what they said.
	RefusedBy   string `json:"refused_by,omitempty"`
	RefusedNote string `json:"refused_note,omitempty"`
}
