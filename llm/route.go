package llm

import "strings"

// Route says which model answers at which depth of a run. A name is provider/model, or several with commas between: a fall-back list.
type Route struct {
	Root string   `json:"root" yaml:"root"`                   // the run itself; empty: Set.Default
	Sub  []string `json:"sub,omitempty" yaml:"sub,omitempty"` // calls at depth 1, 2 …; the last one serves all deeper ones; empty: Root
}

// Routing is a route whose models are there.
type Routing struct {
	set  *Set
	root Model
	subs []Model
}

// At gives the model of a depth; 0 is the run itself.
func (r *Routing) At(depth int) Model {
	if depth <= 0 || len(r.subs) == 0 {
		return r.root
	}
	return r.subs[min(depth, len(r.subs))-1]
}

// Named gives the model that a call asks for by name, or with no name the one of its depth.
func (r *Routing) Named(name string, depth int) (Model, error) {
	if strings.TrimSpace(name) == "" {
		return r.At(depth), nil
	}
	return r.set.Model(name)
}
