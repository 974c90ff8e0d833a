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

// Tool is a function that code of a run can call by its name: a Go function on the host, or Python source that defines it.
type Tool struct {
	Name string
	Doc  string // one line, for the model
	Help string // what help(name) shows; empty: Doc
	// Params are the parameters of a Go function; nil: it takes anything. A wrong call fails in the code, as that of any function.
	Params []Param
	// More says that it takes other keywords than its parameters too.
	More bool
	// Call answers on the host. Arguments and result are JSON; an error is raised in the code.
	Call func(ctx context.Context, call ToolCall) (any, error)
	// Source is Python that defines a function called Name.
	Source string
}

// ToolCall is one call of a tool. With Params every argument is in Kwargs.
type ToolCall struct {
	Args   []json.RawMessage
	Kwargs map[string]json.RawMessage
}

// Media is a result of a tool, or part of a list that is one, which is no text. Code gets a dict with its type, its mime_type and its data as bytes.
type Media struct {
	Type     string // image, audio, file
	MIMEType string
	URI      string // where it is from; may be empty
	Data     []byte
}

// MarshalJSON writes it as the bridge reads it.
func (m Media) MarshalJSON() ([]byte, error) {
	type plain struct {
		Type     string `json:"type"`
		MIMEType string `json:"mime_type,omitempty"`
		URI      string `json:"uri,omitempty"`
		Data     []byte `json:"data"`
	}
	return json.Marshal(map[string]plain{"$media": {m.Type, m.MIMEType, m.URI, m.Data}})
}

// ourNames cannot be tools.
var ourNames = map[string]bool{
	"llm_query": true, "llm_query_batched": true, "rlm_query": true, "rlm_query_batched": true, "budget": true, "FINAL": true, "FINAL_VAR": true,
	"SUBMIT": true, "SHOW_VARS": true, "chunks": true, "search": true, "answer": true, "context": true, "history": true, "QueryError": true, "ToolError": true,
}

// pythonWords are no names in Python.
var pythonWords = func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`False None True and as assert async await break class continue def del elif else except finally for from global if
		import in is lambda nonlocal not or pass raise return try while with yield`) {
		words[w] = true
	}
	return words
}()

// numbered is a name of a context.
var numbered = lazyregexp.New(`^context_\d+$`)

// NameTaken reports whether code of a run finds something else by this name, so that no tool can have it.
func NameTaken(name string) bool { return ourNames[name] || numbered().MatchString(name) }

var (
	notInName  = lazyregexp.New(`[^A-Za-z0-9_]+`)
	underlines = lazyregexp.New(`^_+`)
)

// PythonName makes a name of any text.
func PythonName(text string) string {
	name := underlines().ReplaceAllString(notInName().ReplaceAllString(text, "_"), "")
	switch {
	case name == "" || name[0] >= '0' && name[0] <= '9':
		return "_" + name
	case pythonWords[name]:
		return name + "_"
	}
	return name
}

func checkTools(tools []Tool) error {
	seen := map[string]bool{}
	for _, t := range tools {
		bad := func(why string) error {
			return &v1.Error{Code: v1.CodeInvalidRequest, Op: "make engine", Message: fmt.Sprintf("tool %q: %s", t.Name, why)}
		}
		switch {
		case !goodName(t.Name):
			return bad("the name is no Python identifier")
		case NameTaken(t.Name):
			return bad("the name is taken")
		case seen[t.Name]:
			return bad("there are two")
		case (t.Call == nil) == (t.Source == ""):
			return bad("give either a Go function or Python source")
		}
		seen[t.Name] = true
		params := map[string]bool{}
		for _, p := range t.Params {
			if !goodName(p.Name) || strings.HasPrefix(p.Name, "__") || params[p.Name] {
				return bad(fmt.Sprintf("there cannot be a parameter %q", p.Name))
			}
			params[p.Name] = true
		}
	}
	return nil
}

func goodName(name string) bool { return identifier().MatchString(name) && !pythonWords[name] }

func bridgeTools(tools []Tool) []ToolNote {
	var out []ToolNote
	for _, t := range tools {
		out = append(out, ToolNote{Name: t.Name, Doc: t.Doc, Help: t.Help, Params: t.Params, More: t.More, Source: t.Source})
	}
	return out
}

// toolsOf gives a run that goes on the tools that it had. Those that are not there any more are still functions: what they gave is recorded.
func toolsOf(had []ToolNote, have []Tool, code v1.Code, remedy string) []Tool {
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
				return nil, &v1.Error{Code: code, Message: "the tool " + b.Name + " is not there", Remedy: remedy}
			}
		}
		tools = append(tools, t)
	}
	return tools
}

// useTool calls a Go function for the code.
func (n *node) useTool(ctx context.Context, turn int, payload []byte) ([]byte, error) {
	var req struct {
		Name   string                     `json:"name"`
		Args   []json.RawMessage          `json:"args"`
		Kwargs map[string]json.RawMessage `json:"kwargs"`
	}
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, err
	}
	// As the log writes it, so that the call is found there again.
	args, err := json.Marshal(json.RawMessage(payload))
	if err != nil {
		return nil, err
	}
	if used := n.run.tape.tool(n.id, turn, req.Name, string(args)); used != nil {
		if n.run.tape.fresh {
			n.run.emit(n, turn, v1.KindTool, used)
		}
		return toolReply(used)
	}
	if n.run.tape.strict() {
		return nil, &v1.Error{Code: v1.CodeNotRecorded, Op: "replay", Message: fmt.Sprintf("turn %d uses the tool %s as it was not used before", turn, req.Name)}
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
			return nil, context.Cause(ctx) // nothing to remember: whoever goes on with the run calls it again
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
	return nil, &v1.Error{Code: v1.CodeHostCallUndefined, Message: "there is no tool " + req.Name}
}

// toolReply returns what the code that called the tool gets.
func toolReply(u *v1.ToolUsed) ([]byte, error) {
	switch {
	case u.Code != "":
		return nil, &v1.Error{Code: u.Code, Message: u.Error}
	case u.Error != "":
		return nil, errors.New(u.Error)
	}
	return json.Marshal(map[string]json.RawMessage{"value": u.Value})
}
