package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
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
type Action = v1.GateAction

// Finding is one thing that a judge objects to.
type Finding = rules.Finding

// The modes.
const (
	ModeOff   Mode = "off"   // the judge is not called
	ModeWarn  Mode = "warn"  // findings are reported, and the code runs
	ModeBlock Mode = "block" // the judge's decision is enforced
)

// The types of a judgement are declared in package v1, because they are part of the API.
type (
	// Mode selects what happens with the findings of a judge.
	Mode = v1.GateMode
	// Request is code to be judged.
	Request = v1.GateRequest
	// Decision is what a gate decides.
	Decision = v1.GateDecision
	// Approval is a question to a person: may this code run?
	Approval = v1.Approval
	// ApprovalState is the state of a question.
	ApprovalState = v1.ApprovalState
)

// ParseMode parses the name of a mode. A misspelled mode is an error; it never means off.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); rank(m) >= 0 {
		return m, nil
	}
	return "", invalidRequest(fmt.Sprintf("invalid mode %q", s), "use off, warn or block")
}

func invalidRequest(message, remedy string) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "judge code", Message: message, Remedy: remedy}
}

// rank orders modes by strictness; an unknown mode has -1.
func rank(m Mode) int { return slices.Index([]Mode{ModeOff, ModeWarn, ModeBlock}, m) }

// stricter returns the stricter of two modes.
func stricter(m, other Mode) Mode {
	if rank(other) > rank(m) {
		return other
	}
	return m
}

// EffectiveMode returns the mode that a gate applies to a session that requests m: m, but not below the gate's minimum.
// An empty mode stays empty, because then the gate's own mode applies.
func EffectiveMode(g Gate, m Mode) Mode {
	if f, ok := g.(interface{ MinMode() Mode }); ok && m != "" {
		return stricter(m, f.MinMode())
	}
	return m
}

// codeOf returns the code that the rules read.
func codeOf(r *Request) rules.Code {
	return rules.Code{Language: r.Language, Text: r.Code, Args: r.Args}
}

// checkRequest rejects a request that cannot be judged.
func checkRequest(r *Request) error {
	switch r.Language {
	case Python, Bash:
		if len(r.Args) > 0 {
			return invalidRequest(string(r.Language)+" code has args", "send args with language command only")
		}
	case Command:
		if r.Code != "" {
			return invalidRequest("a command has both code and args", "send code with language bash or python")
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

// Headline returns the worst finding of a reason in one line, and the number of other lines in the reason.
func Headline(reason string) (line string, more int) {
	lines := strings.Split(reason, "\n")
	i := max(slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "- ") }), 0)
	return strings.TrimPrefix(lines[i], "- "), len(lines) - 1
}

// CheckRole returns an error if a gate judges by roles and the role is unknown. An empty role means the gate's default
// role and is always valid.
func CheckRole(g Gate, role string) error {
	if c, ok := g.(interface{ CheckRole(role string) error }); ok && role != "" {
		return c.CheckRole(role)
	}
	return nil
}

// ThesaurusOf returns the thesaurus of a role, or nil if the gate has none. An empty role means the default role.
func ThesaurusOf(g Gate, role string) *terms.Thesaurus {
	if c, ok := g.(interface {
		Thesaurus(role string) *terms.Thesaurus
	}); ok {
		return c.Thesaurus(role)
	}
	return nil
}

// explain returns the reason of a decision, for the model that wrote the code.
func explain(d *Decision) string {
	var b strings.Builder
	switch {
	case d.ApprovedBy != "":
		fmt.Fprintf(&b, "Allowed: %s approved exactly this code.\n", d.ApprovedBy)
	case d.RefusedBy != "":
		fmt.Fprintf(&b, "This code was not run: %s refused it.\n", d.RefusedBy)
		if d.RefusedNote != "" {
			fmt.Fprintf(&b, "Their note: %s\n", d.RefusedNote)
		}
	case d.Action == v1.GateDeny:
		b.WriteString("This code was not run.\n")
	case d.Action == v1.GateAsk:
		b.WriteString("This code was not run: a person must agree to it first.\n")
	case d.Action == v1.GateWarn:
		b.WriteString("This code was run, with the following warnings.\n")
	}
	worstFirst := slices.SortedStableFunc(slices.Values(d.Findings), func(a, b Finding) int {
		return b.Severity.Rank() - a.Severity.Rank()
	})
	for _, f := range worstFirst {
		b.WriteString("- " + f.String() + "\n")
		if f.Fix != "" && f.Severity != v1.GateAllow {
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
		fmt.Fprintf(&b, "This was attempt %d. Stop trying variations and ask the user how to continue.\n", d.Attempt)
	case d.Action == v1.GateDeny:
		b.WriteString("Change the code as described above and send it again.\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
