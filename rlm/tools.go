package rlm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/recluse-dev/recluse/sandbox"
)

// Tool is a function that code of a run can call by its name: a Go function on the host, or Python source that defines it.
type Tool struct {
	Name string
	Doc  string // one line, for the model
	// Call answers on the host. Arguments and result are JSON; an error is raised in the code.
	Call func(ctx context.Context, call ToolCall) (any, error)
	// Source is Python that defines a function called Name.
	Source string
}

// ToolCall is one call of a tool.
type ToolCall struct {
	Args   []json.RawMessage
	Kwargs map[string]json.RawMessage
}

// ourNames cannot be tools.
var ourNames = map[string]bool{
	"llm_query": true, "llm_query_batched": true, "rlm_query": true, "rlm_query_batched": true, "budget": true, "FINAL": true, "FINAL_VAR": true,
	"SUBMIT": true, "SHOW_VARS": true, "chunks": true, "search": true, "answer": true, "context": true, "history": true, "QueryError": true,
}

func checkTools(tools []Tool) error {
	seen := map[string]bool{}
	for _, t := range tools {
		bad := func(why string) error {
			return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "make engine", Message: fmt.Sprintf("tool %q: %s", t.Name, why)}
		}
		switch {
		case !identifier.MatchString(t.Name):
			return bad("the name is no Python identifier")
		case ourNames[t.Name]:
			return bad("the name is taken")
		case seen[t.Name]:
			return bad("there are two")
		case (t.Call == nil) == (t.Source == ""):
			return bad("give either a Go function or Python source")
		}
		seen[t.Name] = true
	}
	return nil
}
