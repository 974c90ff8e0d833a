package config

import (
	"fmt"
	"os"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
)

// Gate configures the gate.
type Gate struct {
	Rules      string      `key:"rules" oneof:"off warn block" doc:"gate mode of the rules, for sessions without their own"`
	RulesFile  string      `key:"rules_file" path:"yes" doc:"file (YAML) with rules, instead of the built-in ones; see docs/GATE.md for an example"`
	Graph      string      `key:"graph" oneof:"off warn block" doc:"gate mode of the thesaurus, for sessions without their own"`
	Thesaurus  []string    `key:"thesaurus" path:"role" doc:"files with known terms, as FILE or ROLE=FILE: JSON, or one term a line; empty: no thesaurus"`
	Role       string      `key:"role" doc:"role of sessions, runs and commands that name none; empty: the thesaurus without a role is used"`
	Strictness string      `key:"strictness" oneof:"permissive normal strict" doc:"what a thesaurus requires of code"`
	MinRatio   float64     `key:"min_ratio" min:"0" doc:"minimum share of words that must be known terms"`
	Documents  []string    `key:"documents" path:"role" doc:"texts of a role, as FILE or ROLE=FILE; concepts that follow one another in them are connected"`
	Edges      []string    `key:"edges" path:"role" doc:"files with connections between concepts, as FILE or ROLE=FILE"`
	MinMode    string      `key:"min_mode" oneof:"off warn block" doc:"weakest gate mode that a session, run or command may have, whatever its caller requests"`
	Tries      int         `key:"tries" min:"1" doc:"refusals in a row in one session after which a person is asked for approval"`
	Approval   v1.Duration `key:"approval" none:"yes" doc:"how long an approval waits for an answer, and a grant for its use; none: approvals are not requested"`
	Python     string      `key:"python" doc:"program that parses Python; empty: that of this machine; none: no program"`
}

// maxDocument is the maximum size of a file of gate.documents.
const maxDocument = 64 << 20

// Approvals returns the store of approvals, or nil if approvals are not requested.
func (g Gate) Approvals() *gate.Approvals {
	if g.Approval == v1.NoLimit {
		return nil
	}
	return gate.NewApprovals(g.Approval.Std())
}

// Open returns the gate. A file that cannot be read is an error: the gate is never silently left out. The caller must
// close the gate.
func (g Gate) Open(questions *gate.Approvals) (*gate.Checker, error) {
	o := gate.Options{
		RulesMode:     gate.Mode(g.Rules),
		GraphMode:     gate.Mode(g.Graph),
		Role:          g.Role,
		MinMode:       gate.Mode(g.MinMode),
		EscalateAfter: g.Tries,
		Approvals:     questions,
		Python:        g.Python,
	}
	var err error
	if o.Rules, err = g.rules(); err != nil {
		return nil, err
	}
	if o.Graphs, err = g.graphs(); err != nil {
		return nil, err
	}
	if g.Role != "" && o.Graphs[g.Role] == nil {
		return nil, invalidGate("gate.role: role %q has no thesaurus", g.Role)
	}
	return gate.New(o)
}

func (g Gate) rules() (*rules.Set, error) {
	if g.RulesFile != "" {
		return rules.Load(g.RulesFile)
	}
	return rules.Default()
}

// graphs returns the thesauri by role.
func (g Gate) graphs() (map[string]*terms.Graph, error) {
	thesauri := map[string]*terms.Thesaurus{}
	options := map[string]*terms.GraphOptions{}
	for _, entry := range g.Thesaurus {
		role, file := byRole(entry)
		if thesauri[role] != nil {
			return nil, invalidGate("gate.thesaurus: duplicate role %q", role)
		}
		t, err := terms.Load(file)
		if err != nil {
			return nil, err
		}
		thesauri[role], options[role] = t, &terms.GraphOptions{
			Strictness: terms.Strictness(g.Strictness),
			MinRatio:   g.MinRatio,
		}
	}
	for _, entry := range g.Documents {
		role, file := byRole(entry)
		if thesauri[role] == nil {
			return nil, invalidGate("gate.documents: role %q has no thesaurus", role)
		}
		text, err := document(file)
		if err != nil {
			return nil, err
		}
		options[role].Documents = append(options[role].Documents, text)
	}
	for _, entry := range g.Edges {
		role, file := byRole(entry)
		if thesauri[role] == nil {
			return nil, invalidGate("gate.edges: role %q has no thesaurus", role)
		}
		edges, err := thesauri[role].LoadEdges(file)
		if err != nil {
			return nil, err
		}
		options[role].Edges = append(options[role].Edges, edges...)
	}
	out := map[string]*terms.Graph{}
	for role, t := range thesauri {
		graph, err := terms.NewGraph(t, *options[role])
		if err != nil {
			return nil, err
		}
		out[role] = graph
	}
	return out, nil
}

// byRole splits ROLE=FILE. For a FILE alone, the role is empty.
func byRole(entry string) (role, file string) {
	if role, file, ok := strings.Cut(entry, "="); ok {
		return strings.TrimSpace(role), strings.TrimSpace(file)
	}
	return "", entry
}

func document(file string) (string, error) {
	if fi, err := os.Stat(file); err == nil && fi.Size() > maxDocument {
		return "", invalidGate("gate.documents: %s is larger than %s", file, Size(maxDocument))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &v1.Error{
			Code:    CodeInvalid,
			Op:      "read the configuration",
			Message: "gate.documents: cannot read the file",
			Err:     err,
		}
	}
	return string(b), nil
}

func invalidGate(format string, args ...any) error {
	return &v1.Error{Code: CodeInvalid, Op: "read the configuration", Message: fmt.Sprintf(format, args...)}
}
