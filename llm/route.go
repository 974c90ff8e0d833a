package llm

import "strings"

// Route names the models for the depths of a run. Each name is provider/model, or a fallback list of several, separated
// by commas.
type Route struct {
	// Root is the model of the run itself; empty: Set.Default.
	Root string `json:"root" yaml:"root"`
	// Sub are the models of sub-calls at depth 1, 2 and so on; the last is for all deeper calls. Empty: Root.
	Sub []string `json:"sub,omitempty" yaml:"sub,omitempty"`
}

// Routing holds the models of a route.
type Routing struct {
	set  *Set
	root Model
	subs []Model
}

// At returns the model for a depth; 0 is the run itself.
func (r *Routing) At(depth int) Model {
	if depth <= 0 || len(r.subs) == 0 {
		return r.root
	}
	return r.subs[min(depth, len(r.subs))-1]
}

// Named returns the model of that name, or the model for the depth if the name is empty.
func (r *Routing) Named(name string, depth int) (Model, error) {
	if strings.TrimSpace(name) == "" {
		return r.At(depth), nil
	}
	return r.set.Model(name)
}
