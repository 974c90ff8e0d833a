package v1

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// GateLanguage is the language of code.
type GateLanguage string

// GateAction is what the gate does with code.
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

// Runs reports whether code with this action may run now.
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
	Rule        string     `json:"rule" doc:"name of the rule"`
	Line        int        `json:"line" doc:"line of the code, from 1"`
	Column      int        `json:"column" doc:"column of the line, from 1; 0: unknown"`
	Message     string     `json:"message" doc:"what the rule objects to"`
	Fix         string     `json:"fix,omitempty" doc:"what to do instead"`
	Severity    GateAction `json:"severity" enum:"allow,warn,ask,deny" doc:"action that the rule asks for; allow is a note that stops nothing"`
	Undecidable bool       `json:"undecidable,omitempty" doc:"reading the code cannot determine whether this happens"`
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
	Word string   `json:"word" doc:"unknown word"`
	Near []string `json:"near" doc:"known terms with a similar spelling"`
}

// GateMode is how much the opinion of a judge, the rules or the thesaurus, counts.
type GateMode string

// GateRequest is code to be judged.
type GateRequest struct {
	Language GateLanguage `json:"language" enum:"python,bash,command" doc:"language of the code"`
	Code     string       `json:"code,omitempty" doc:"the code"`
	Args     []string     `json:"args,omitempty" doc:"program and arguments, of a command"`
	Session  string       `json:"session,omitempty" doc:"name of the session"`
	Tenant   string       `json:"tenant,omitempty" doc:"tenant of the session"`
	Role     string       `json:"role,omitempty" doc:"role that selects the thesaurus; left out: the default one"`
	Attempt  int          `json:"attempt,omitempty" doc:"number of this attempt, from 1; 0: the gate counts per session"`
	Rules    GateMode     `json:"rules,omitempty" enum:"off,warn,block" doc:"mode of the rules; left out: the gate's own"`
	Graph    GateMode     `json:"graph,omitempty" enum:"off,warn,block" doc:"mode of the thesaurus; left out: the gate's own"`
}

// Text returns the code, or the arguments of a command joined by spaces, for people to read.
func (r *GateRequest) Text() string {
	if len(r.Args) > 0 {
		return strings.Join(r.Args, " ")
	}
	return r.Code
}

// GrantCommand is the command that a person types, followed by the id of an approval, to run refused code once, or to
// allow a connection. Models never see it.
const GrantCommand = "recluse gate grant "

// ForModel returns err as a model may read it. It replaces a remedy that contains GrantCommand, because a model that
// runs commands on the host could grant its own code. Other errors are returned unchanged.
func ForModel(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || !strings.Contains(err.Error(), GrantCommand) {
		return err
	}
	shown := *e
	if strings.Contains(e.Remedy, GrantCommand) {
		shown.Remedy = "do it another way, or ask the user: only they can let this code run"
	}
	shown.Err = ForModel(e.Err)
	return &shown
}

// GateDecision is the decision of the gate about one request.
type GateDecision struct {
	Action          GateAction   `json:"action" enum:"allow,warn,ask,deny" doc:"what may happen to the code"`
	Findings        []Finding    `json:"findings,omitempty" doc:"what the rules object to"`
	ConceptsMatched []string     `json:"concepts_matched,omitempty" doc:"concepts of the thesaurus that the code mentions, in order of first mention"`
	Unknown         []string     `json:"unknown,omitempty" doc:"words that are not known terms, most frequent first; only if the thesaurus objects"`
	Suggestions     []Suggestion `json:"suggestions,omitempty" doc:"known terms with a similar spelling; only if the thesaurus objects"`
	Reason          string       `json:"reason,omitempty" doc:"what is wrong and how to correct it; empty if nothing is"`
	Attempt         int          `json:"attempt,omitempty" doc:"failures in a row of this session, this one included"`
	Escalated       bool         `json:"escalated,omitempty" doc:"a person was asked"`
	Approval        string       `json:"approval,omitempty" doc:"id of the question to a person"`
	ApprovedBy      string       `json:"approved_by,omitempty" doc:"person who granted this run"`
	RefusedBy       string       `json:"refused_by,omitempty" doc:"person who refused this run"`
	RefusedNote     string       `json:"refused_note,omitempty" doc:"remark of the person who refused"`
}

// ApprovalState is the state of an approval.
type ApprovalState string

// The states of an approval.
const (
	ApprovalPending ApprovalState = "pending"
	ApprovalGranted ApprovalState = "granted"
	ApprovalRefused ApprovalState = "refused"
	ApprovalExpired ApprovalState = "expired"
)

// ApprovalKind is what an approval is about. No other values exist.
type ApprovalKind string

// The kinds of approvals.
const (
	ApprovalCode       ApprovalKind = "code"       // may this code run once?
	ApprovalConnection ApprovalKind = "connection" // may the session connect to this destination?
)

// ApprovalConnect is the destination that an approval is about.
type ApprovalConnect struct {
	Host string `json:"host" doc:"name or address"`
	Port int    `json:"port" doc:"port"`
	Rule string `json:"rule" doc:"rule that requires the approval"`
}

// Approval is a question to a person: may this code run, or may this session connect to this destination?
type Approval struct {
	ID       string           `json:"id" doc:"id of the question"`
	Kind     ApprovalKind     `json:"kind" enum:"code,connection" doc:"what the question is about"`
	Request  GateRequest      `json:"request" doc:"code that the question is about; of a connection only session and tenant"`
	Connect  *ApprovalConnect `json:"connect,omitempty" doc:"destination that the question is about"`
	Decision GateDecision     `json:"decision" doc:"decision of the gate"`
	State    ApprovalState    `json:"state" enum:"pending,granted,refused,expired" doc:"state of the question"`
	Created  time.Time        `json:"created" doc:"when the question was asked"`
	Expires  time.Time        `json:"expires" doc:"when the question, or the grant, expires"`
	By       string           `json:"by,omitempty" doc:"person who answered"`
	Note     string           `json:"note,omitempty" doc:"remark of the person who answered"`
}

// Text returns what the question is about, for people to read: the code, or the destination.
func (a *Approval) Text() string {
	if a.Connect == nil {
		return a.Request.Text()
	}
	return "connect to " + hostPort(a.Connect.Host, a.Connect.Port)
}

// ApprovalPage is the answer to GET /v1/approvals.
type ApprovalPage struct {
	Approvals []Approval `json:"approvals" doc:"questions, oldest first"`
	Next      string     `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// ResolveRequest is a person's answer to a question of the gate.
type ResolveRequest struct {
	Grant *bool  `json:"grant" doc:"true lets exactly this code run once, or the session connect to this destination; false refuses it"`
	Note  string `json:"note,omitempty" doc:"remark for the author of the code"`
}
