package v1

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// GateLanguage is the language of code.
type GateLanguage string

// GateAction is what may happen to code.
type GateAction string

// The actions, from the mildest to the strictest.
const (
	GateAllow GateAction = "allow"
	GateWarn  GateAction = "warn" // run it and report
	GateAsk   GateAction = "ask"  // run it only if a person agrees
	GateDeny  GateAction = "deny" // do not run it
)

// Rank orders actions by strictness; an unknown action has -1.
func (a GateAction) Rank() int {
	return slices.Index([]GateAction{GateAllow, GateWarn, GateAsk, GateDeny}, a)
}

// Runs reports whether the code may run now.
func (a GateAction) Runs() bool { return a == GateAllow || a == GateWarn }

// Stricter returns the stricter of two actions.
func (a GateAction) Stricter(b GateAction) GateAction {
	if b.Rank() > a.Rank() {
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
	Severity GateAction `json:"severity"`
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

// Suggestion names known terms that are spelled like an unknown word.
type Suggestion struct {
	Word string   `json:"word"`
	Near []string `json:"near"`
}

// GateMode is how much a judge's opinion counts.
type GateMode string

// GateRequest is code to be judged.
type GateRequest struct {
	Language GateLanguage `json:"language"`
	Code     string       `json:"code,omitempty"`
	Args     []string     `json:"args,omitempty"` // of Command: the program and its arguments
	Session  string       `json:"session,omitempty"`
	Tenant   string       `json:"tenant,omitempty"`
	// Role selects the thesaurus; empty: the default one.
	Role string `json:"role,omitempty"`
	// Attempt is the number of this attempt, from 1, if the caller counts; 0: the Checker counts per session.
	Attempt int `json:"attempt,omitempty"`
	// Rules and Graph are the session's own modes; empty: the Checker's.
	Rules GateMode `json:"rules,omitempty"`
	Graph GateMode `json:"graph,omitempty"`
}

// Text returns the code, or the words of a command, as a person reads it.
func (r *GateRequest) Text() string {
	if len(r.Args) > 0 {
		return strings.Join(r.Args, " ")
	}
	return r.Code
}

// GateDecision is what a gate decides.
type GateDecision struct {
	Action   GateAction `json:"action"`
	Findings []Finding  `json:"findings,omitempty"`
	// ConceptsMatched are the concepts of the thesaurus that the code mentions, in the order of their first mention.
	ConceptsMatched []string `json:"concepts_matched,omitempty"`
	// Unknown are words that are no known terms, the most frequent first, and Suggestions known terms that are spelled
	// like them; only if the graph objects.
	Unknown     []string     `json:"unknown,omitempty"`
	Suggestions []Suggestion `json:"suggestions,omitempty"`
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

// ApprovalState is the state of a question.
type ApprovalState string

// The states of a question.
const (
	ApprovalPending ApprovalState = "pending"
	ApprovalGranted ApprovalState = "granted"
	ApprovalRefused ApprovalState = "refused"
	ApprovalExpired ApprovalState = "expired"
)

// Approval is a question to a person: may this code run?
type Approval struct {
	ID       string        `json:"id"`
	Request  GateRequest   `json:"request"`
	Decision GateDecision  `json:"decision"`
	State    ApprovalState `json:"state"`
	Created  time.Time     `json:"created"`
	Expires  time.Time     `json:"expires"`
	By       string        `json:"by,omitempty"`   // who answered
	Note     string        `json:"note,omitempty"` // their remark
}

// ApprovalPage is the answer to GET /v1/approvals.
type ApprovalPage struct {
	Approvals []Approval `json:"approvals"`
	Next      string     `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// ResolveRequest answers a question of the gate.
type ResolveRequest struct {
	Grant *bool  `json:"grant" doc:"true lets exactly this code run once, false refuses it"`
	Note  string `json:"note,omitempty" doc:"told to whoever wrote the code"`
}
