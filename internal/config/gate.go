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

// Gate configures what judges code before it runs.
type Gate struct {
	Rules      string      `key:"rules" oneof:"off warn block" doc:"how much the rules weigh, in sessions that do not say"`
	RulesFile  string      `key:"rules_file" path:"yes" doc:"file (YAML) with rules, instead of those that come along; docs/GATE.md shows one"`
	Graph      string      `key:"graph" oneof:"off warn block" doc:"how much a thesaurus weighs, in sessions that do not say"`
	Thesaurus  []string    `key:"thesaurus" path:"role" doc:"files with known terms, FILE or ROLE=FILE: JSON, or one term a line; empty: none is asked"`
	Role       string      `key:"role" doc:"role of sessions, runs and commands that name none; empty: none, so the thesaurus without a role"`
	Strictness string      `key:"strictness" oneof:"permissive normal strict" doc:"what a thesaurus asks of code"`
	MinRatio   float64     `key:"min_ratio" min:"0" doc:"least share of words that must be known terms"`
	Documents  []string    `key:"documents" path:"role" doc:"texts of a role, FILE or ROLE=FILE: concepts that follow one another in them are connected"`
	Edges      []string    `key:"edges" path:"role" doc:"files with connections between concepts, FILE or ROLE=FILE"`
	Least      string      `key:"least" oneof:"off warn block" doc:"least that rules and thesaurus weigh in any session, whatever whoever opens it asks for"`
	Tries      int         `key:"tries" min:"1" doc:"refusals in a row of one session after which a person is asked"`
	Approval   v1.Duration `key:"approval" none:"yes" doc:"how long a question waits for a person's answer, and a grant for its use; none: nobody is asked"`
	Python     string      `key:"python" doc:"program that parses Python; empty: the one of this machine, none: no program"`
}

// maxDocument bounds a text that connects concepts.
const maxDocument = 64 << 20

// Approvals gives the place for questions to people, or nil.
func (g Gate) Approvals() *gate.Approvals {
	if g.Approval == v1.NoLimit {
		return nil
	}
	return gate.NewApprovals(g.Approval.Std())
}

// Open makes the gate. Whatever cannot be read is an error: a gate is never silently left out. The caller must close it.
func (g Gate) Open(questions *gate.Approvals) (*gate.Checker, error) {
	o := gate.Options{
		RulesMode:     gate.Mode(g.Rules),
		GraphMode:     gate.Mode(g.Graph),
		Role:          g.Role,
		MinMode:       gate.Mode(g.Least),
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
		return nil, wrongGate("gate.role: role %q has no thesaurus", g.Role)
	}
	return gate.New(o)
}

func (g Gate) rules() (*rules.Set, error) {
	if g.RulesFile != "" {
		return rules.Load(g.RulesFile)
	}
	return rules.Default()
}

// graphs reads thesauri, by role.
func (g Gate) graphs() (map[string]*terms.Graph, error) {
	thesauri := map[string]*terms.Thesaurus{}
	options := map[string]*terms.GraphOptions{}
	for _, entry := range g.Thesaurus {
		role, file := byRole(entry)
		if thesauri[role] != nil {
			return nil, wrongGate("gate.thesaurus: role %q has two files", role)
		}
		t, err := terms.Load(file)
		if err != nil {
			return nil, err
		}
		thesauri[role], options[role] = t, &terms.GraphOptions{Strictness: terms.Strictness(g.Strictness), MinRatio: g.MinRatio}
	}
	for _, entry := range g.Documents {
		role, file := byRole(entry)
		if thesauri[role] == nil {
			return nil, wrongGate("gate.documents: role %q has no thesaurus", role)
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
			return nil, wrongGate("gate.edges: role %q has no thesaurus", role)
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

// byRole splits ROLE=FILE; a FILE alone is for whoever names no role.
func byRole(entry string) (role, file string) {
	if role, file, ok := strings.Cut(entry, "="); ok {
		return strings.TrimSpace(role), strings.TrimSpace(file)
	}
	return "", entry
}

func document(file string) (string, error) {
	if fi, err := os.Stat(file); err == nil && fi.Size() > maxDocument {
		return "", wrongGate("gate.documents: %s is larger than %s", file, Size(maxDocument))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &v1.Error{Code: CodeInvalid, Op: "read the configuration", Message: "gate.documents: a file cannot be read", Err: err}
	}
	return string(b), nil
}

func wrongGate(format string, args ...any) error {
	return &v1.Error{Code: CodeInvalid, Op: "read the configuration", Message: fmt.Sprintf(format, args...)}
}
