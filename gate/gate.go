package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
	"github.com/recluse-dev/recluse/sandbox"
)

// Gate judges code before it runs.
type Gate interface {
	// Judge decides what may happen to the code. After an error there is no judgement: do not run the code.
	Judge(ctx context.Context, req Request) (Decision, error)
}

// Language is the language of code.
type Language = rules.Language

// The supported languages.
const (
	Python  = rules.Python
	Bash    = rules.Bash
	Command = rules.Command // a program and its arguments, in Args
)

// Action is what may happen to code.
type Action = rules.Action

// The actions, from the mildest to the strictest.
const (
	Allow = rules.Allow
	Warn  = rules.Warn // run it and report
	Ask   = rules.Ask  // run it only if a person agrees
	Deny  = rules.Deny // do not run it
)

// Finding is one thing that a judge objects to.
type Finding = rules.Finding

// Mode is how much a judge's opinion counts.
type Mode string

// The modes.
const (
	ModeOff   Mode = "off"   // the judge is not asked
	ModeWarn  Mode = "warn"  // findings are reported, and the code runs
	ModeBlock Mode = "block" // the judge's decision holds
)

// ParseMode reads a mode as a person writes it. A misspelled mode is an error, never off.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); m.rank() >= 0 {
		return m, nil
	}
	return "", invalidRequest(fmt.Sprintf("invalid mode %q", s), "use off, warn or block")
}

func invalidRequest(message, remedy string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "judge code", Message: message, Remedy: remedy}
}

// rank orders modes by strictness; an unknown mode has -1.
func (m Mode) rank() int { return slices.Index([]Mode{ModeOff, ModeWarn, ModeBlock}, m) }

// stricter returns the stricter of two modes.
func (m Mode) stricter(other Mode) Mode {
	if other.rank() > m.rank() {
		return other
	}
	return m
}

// EffectiveMode returns the mode that a gate applies to a session that asks for m: m, but not below the gate's minimum.
// An empty mode stays empty, because then the gate's own mode applies.
func EffectiveMode(g Gate, m Mode) Mode {
	if f, ok := g.(interface{ MinMode() Mode }); ok && m != "" {
		return m.stricter(f.MinMode())
	}
	return m
}

// Request is code to be judged.
type Request struct {
	Language Language `json:"language"`
	Code     string   `json:"code,omitempty"`
	Args     []string `json:"args,omitempty"` // of Command: the program and its arguments
	Session  string   `json:"session,omitempty"`
	Tenant   string   `json:"tenant,omitempty"`
	// Role selects the thesaurus; empty: the default one.
	Role string `json:"role,omitempty"`
	// Attempt is the number of this attempt, from 1, if the caller counts; 0: the Checker counts per session.
	Attempt int `json:"attempt,omitempty"`
	// Rules and Graph are the session's own modes; empty: the Checker's.
	Rules Mode `json:"rules,omitempty"`
	Graph Mode `json:"graph,omitempty"`
}

// Text returns the code, or the words of a command, as a person reads it.
func (r *Request) Text() string { return r.code().String() }

func (r *Request) code() rules.Code {
	return rules.Code{Language: r.Language, Text: r.Code, Args: r.Args}
}

// check rejects a request that cannot be judged.
func (r *Request) check() error {
	switch r.Language {
	case Python, Bash:
		if len(r.Args) > 0 {
			return invalidRequest("args beside "+string(r.Language)+" code", "put arguments into a request of a command")
		}
	case Command:
		if r.Code != "" {
			return invalidRequest("code beside a command's arguments", "put code into a request of language bash or python")
		}
	default:
		return invalidRequest(fmt.Sprintf("unknown language %q", r.Language), "use python, bash or command")
	}
	for _, m := range []Mode{r.Rules, r.Graph} {
		if m == "" {
			continue
		}
		if _, err := ParseMode(string(m)); err != nil {
			return err
		}
	}
	return nil
}

// Decision is what a gate decides.
type Decision struct {
	Action   Action    `json:"action"`
	Findings []Finding `json:"findings,omitempty"`
	// ConceptsMatched are the concepts of the thesaurus that the code mentions, in the order of their first mention.
	ConceptsMatched []string `json:"concepts_matched,omitempty"`
	// Unknown are words that are no known terms, the most frequent first, and Suggestions known terms that are spelled
	// like them; only if the graph objects.
	Unknown     []string           `json:"unknown,omitempty"`
	Suggestions []terms.Suggestion `json:"suggestions,omitempty"`
	// Reason explains what is wrong and how to correct it; empty if nothing is.
	Reason string `json:"reason,omitempty"`
	// Attempt is the number of this attempt: failures in a row of this session, this one included.
	Attempt int `json:"attempt,omitempty"`
	// Escalated means that a person was called; Approval is the ID of the question they were asked.
	Escalated bool   `json:"escalated,omitempty"`
	Approval  string `json:"approval,omitempty"`
	// ApprovedBy is who granted this run.
	ApprovedBy string `json:"approved_by,omitempty"`
	// RefusedBy is who refused this run, and RefusedNote their remark.
	RefusedBy   string `json:"refused_by,omitempty"`
	RefusedNote string `json:"refused_note,omitempty"`
}

// explain returns the reason of a decision, for the model that wrote the code.
func (d *Decision) explain() string {
	var b strings.Builder
	switch {
	case d.ApprovedBy != "":
		fmt.Fprintf(&b, "Allowed: %s approved exactly this code.\n", d.ApprovedBy)
	case d.RefusedBy != "":
		fmt.Fprintf(&b, "This code was not run: %s refused it.\n", d.RefusedBy)
		if d.RefusedNote != "" {
			fmt.Fprintf(&b, "They said: %s\n", d.RefusedNote)
		}
	case d.Action == Deny:
		b.WriteString("This code was not run.\n")
	case d.Action == Ask:
		b.WriteString("This code was not run: a person must agree to it first.\n")
	case d.Action == Warn:
		b.WriteString("This code was run in spite of the following.\n")
	}
	for _, f := range d.Findings {
		b.WriteString("- " + f.String() + "\n")
		if f.Fix != "" && f.Severity != Allow {
			b.WriteString("  Instead: " + f.Fix + "\n")
		}
	}
	for _, s := range d.Suggestions {
		fmt.Fprintf(&b, "- %q is not a known term; near it: %s\n", s.Word, strings.Join(s.Near, ", "))
	}
	switch {
	case d.Approval != "":
		fmt.Fprintf(&b, "A person was asked (approval %s). Once they agree, send exactly the same code again.\n", d.Approval)
	case d.Escalated:
		fmt.Fprintf(&b, "This was try %d. Stop trying variations and ask the user how to go on.\n", d.Attempt)
	case d.Action == Deny:
		b.WriteString("Change the code as said above and send it again.\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
