package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// Tool is a function that the code of a run can call by its name: a Go function on the host, or a Python function.
type Tool struct {
	Name string
	Doc  string // one line, for the model
	Help string // what help(name) shows; empty: Doc
	// Params are the parameters of a Go function; nil: it accepts any arguments. A call with wrong arguments raises
	// TypeError in the code, as for any Python function.
	Params []Param
	// More allows keyword arguments that are not in Params.
	More bool
	// Call runs on the host. Arguments and result are converted to and from JSON. An error is raised in the code.
	Call func(ctx context.Context, call ToolCall) (any, error)
	// Source is Python code that defines a function called Name.
	Source string
}

// ToolCall is one call of a tool. If the tool has Params, all arguments are in Kwargs.
type ToolCall struct {
	Args   []json.RawMessage
	Kwargs map[string]json.RawMessage
}

// Media is a result of a tool that is not text, or an item of a list of results. The code gets a dict with type,
// mime_type and data as bytes.
type Media struct {
	Type     string // image, audio, file
	MIMEType string
	URI      string // its source; may be empty
	Data     []byte
}

// MarshalJSON returns the form that the bridge reads.
func (m Media) MarshalJSON() ([]byte, error) {
	type plain struct {
		Type     string `json:"type"`
		MIMEType string `json:"mime_type,omitempty"`
		URI      string `json:"uri,omitempty"`
		Data     []byte `json:"data"`
	}
	return json.Marshal(map[string]plain{"$media": {m.Type, m.MIMEType, m.URI, m.Data}})
}

// reservedNames are the names of the bridge, which tools cannot have.
var reservedNames = map[string]bool{
	"llm_query": true, "llm_query_batched": true, "rlm_query": true, "rlm_query_batched": true, "budget": true,
	"FINAL": true, "FINAL_VAR": true, "SUBMIT": true, "SHOW_VARS": true, "chunks": true, "search": true,
	"answer": true, "context": true, "history": true, "QueryError": true, "ToolError": true,
}

// pythonKeywords are the keywords of Python, which cannot be names.
var pythonKeywords = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`False None True and as assert async await break class continue def del elif else
		except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield`) {
		words[w] = true
	}
	return words
}()

// contextName matches the Python variable of a context.
var contextName = lazyregexp.New(`^context_\d+$`)

// NameTaken reports whether the name is reserved, so that no tool can have it.
func NameTaken(name string) bool { return reservedNames[name] || contextName().MatchString(name) }

var (
	invalidRunes       = lazyregexp.New(`[^A-Za-z0-9_]+`)
	leadingUnderscores = lazyregexp.New(`^_+`)
)

// PythonName converts any text to a valid Python name.
func PythonName(text string) string {
	name := leadingUnderscores().ReplaceAllString(invalidRunes().ReplaceAllString(text, "_"), "")
	switch {
	case name == "" || name[0] >= '0' && name[0] <= '9':
		return "_" + name
	case pythonKeywords[name]:
		return name + "_"
	}
	return name
}

func checkTools(tools []Tool) error {
	seen := map[string]bool{}
	for _, t := range tools {
		bad := func(why string) error {
			return &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "make engine",
				Message: fmt.Sprintf("tool %q: %s", t.Name, why),
			}
		}
		switch {
		case !validName(t.Name):
			return bad("the name is not a Python identifier")
		case NameTaken(t.Name):
			return bad("the name is reserved")
		case seen[t.Name]:
			return bad("duplicate tool")
		case (t.Call == nil) == (t.Source == ""):
			return bad("set either Call or Source")
		}
		seen[t.Name] = true
		params := map[string]bool{}
		for _, p := range t.Params {
			if !validName(p.Name) || strings.HasPrefix(p.Name, "__") || params[p.Name] {
				return bad(fmt.Sprintf("invalid or duplicate parameter %q", p.Name))
			}
			params[p.Name] = true
		}
	}
	return nil
}

func validName(name string) bool { return identifier().MatchString(name) && !pythonKeywords[name] }

// bridgeTools returns the tools in the form in which the bridge gets them and the run stores them.
func bridgeTools(tools []Tool) []ToolNote {
	var out []ToolNote
	for _, t := range tools {
		out = append(out, ToolNote{
			Name:   t.Name,
			Doc:    t.Doc,
			Help:   t.Help,
			Params: t.Params,
			More:   t.More,
			Source: t.Source,
		})
	}
	return out
}

// restoredTools returns the tools for a resumed or replayed run: have, and those of had that are missing in have. A
// missing Go function is replaced by one that returns an error. Code can still call it, because its recorded results
// are used first.
func restoredTools(had []ToolNote, have []Tool, code v1.Code, remedy string) []Tool {
	names := map[string]bool{}
	for _, t := range have {
		names[t.Name] = true
	}
	tools := append([]Tool(nil), have...)
	for _, b := range had {
		if names[b.Name] {
			continue
		}
		t := Tool{Name: b.Name, Doc: b.Doc, Help: b.Help, Params: b.Params, More: b.More, Source: b.Source}
		if t.Source == "" {
			t.Call = func(context.Context, ToolCall) (any, error) {
				return nil, &v1.Error{Code: code, Message: fmt.Sprintf("tool %q is missing", b.Name), Remedy: remedy}
			}
		}
		tools = append(tools, t)
	}
	return tools
}

// useTool handles a host call that calls a tool.
func (n *node) useTool(ctx context.Context, turn int, payload []byte) ([]byte, error) {
	var req struct {
		Name   string                     `json:"name"`
		Args   []json.RawMessage          `json:"args"`
		Kwargs map[string]json.RawMessage `json:"kwargs"`
	}
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, err
	}
	// The same form as in the event, so that the recorded call is found.
	args, err := json.Marshal(json.RawMessage(payload))
	if err != nil {
		return nil, err
	}
	if used := n.run.recording.takeTool(n.id, turn, req.Name, string(args)); used != nil {
		if n.run.recording.emitAgain {
			n.run.emit(n, turn, v1.KindTool, used)
		}
		return toolReply(used)
	}
	if n.run.recording.strict() {
		return nil, &v1.Error{
			Code:    v1.CodeNotRecorded,
			Op:      "replay",
			Message: fmt.Sprintf("the recorded run has no matching call of tool %q in turn %d", req.Name, turn),
		}
	}
	for _, t := range n.run.tools {
		if t.Name != req.Name || t.Call == nil {
			continue
		}
		used := v1.ToolUsed{Name: t.Name, Args: args}
		value, err := t.Call(ctx, ToolCall{Args: req.Args, Kwargs: req.Kwargs})
		if err == nil {
			used.Value, err = json.Marshal(value)
		}
		if ctx.Err() != nil && err != nil {
			return nil, context.Cause(ctx) // not recorded: a resumed run calls the tool again
		}
		if err != nil {
			used.Error = err.Error()
			if e, ok := errors.AsType[*v1.Error](err); ok {
				used.Code, used.Error = e.Code, e.Error()
			}
		}
		n.run.emit(n, turn, v1.KindTool, used)
		return toolReply(&used)
	}
	return nil, &v1.Error{Code: v1.CodeHostCallUndefined, Message: fmt.Sprintf("tool %q not found", req.Name)}
}

// toolReply returns the reply to the code that called the tool.
func toolReply(u *v1.ToolUsed) ([]byte, error) {
	switch {
	case u.Code != "":
		return nil, &v1.Error{Code: u.Code, Message: u.Error}
	case u.Error != "":
		return nil, errors.New(u.Error)
	}
	return json.Marshal(map[string]json.RawMessage{"value": u.Value})
}
