package mcptools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

const (
	maxLine   = 200  // characters of a description in the prompt
	maxHelp   = 8000 // characters of a description in the docstring
	maxSchema = 500  // characters of a nested schema in the docstring
)

// uniqueNames is the set of names that are in use.
type uniqueNames map[string]bool

// add makes a Python name from the text that is neither in the set nor taken. It adds the name and returns it.
func (n uniqueNames) add(text string, taken func(string) bool) string {
	base := rlm.PythonName(text)
	name := base
	for i := 2; n[name] || taken(name); i++ {
		name = fmt.Sprintf("%s_%d", base, i)
	}
	n[name] = true
	return name
}

// param is a parameter of a tool.
type param struct {
	rlm.Param
	key    string // its name in the tool's schema
	schema map[string]any
}

// nullable reports whether the schema allows null as a value, which is not the same as a missing argument.
func (p *param) nullable() bool {
	switch t := p.schema["type"].(type) {
	case string:
		return t == "null"
	case []any:
		return slices.Contains(t, any("null"))
	}
	return true // the schema does not exclude null
}

// tool returns the rlm.Tool for a tool of the server.
func (s *server) tool(t *sdk.Tool, names uniqueNames) rlm.Tool {
	schema, _ := t.InputSchema.(map[string]any)
	params := paramsOf(schema)
	name := names.add(s.Name+"_"+t.Name, rlm.NameTaken)
	out := rlm.Tool{Name: name, Params: []rlm.Param{}, More: acceptsMore(schema)}
	byName := map[string]*param{}
	for _, p := range params {
		out.Params = append(out.Params, p.Param)
		byName[p.Name] = p
	}
	how := signature(name, params, out.More)
	what := t.Description
	if what == "" {
		what = t.Title
	}
	out.Doc = how + ": " + firstLine(what, maxLine)
	out.Help = helpText(how, what, params, t.OutputSchema)
	out.Call = func(ctx context.Context, c rlm.ToolCall) (any, error) { return s.call(ctx, t.Name, byName, c) }
	return out
}

// paramsOf returns the parameters of a schema: first the required ones in the order of the schema, then the others by
// name.
func paramsOf(schema map[string]any) []*param {
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	var out []*param
	names, seen := uniqueNames{}, map[string]bool{}
	add := func(key string, optional bool) {
		if seen[key] {
			return
		}
		seen[key] = true
		p := &param{key: key, Param: rlm.Param{Optional: optional}}
		p.Name = names.add(key, func(string) bool { return false })
		p.schema, _ = properties[key].(map[string]any)
		out = append(out, p)
	}
	for _, r := range required {
		if key, ok := r.(string); ok {
			add(key, false)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		add(key, true)
	}
	return out
}

// acceptsMore reports whether a schema expects keys that it does not name.
func acceptsMore(schema map[string]any) bool {
	switch more := schema["additionalProperties"].(type) {
	case bool:
		return more
	case map[string]any:
		return true
	}
	_, named := schema["properties"]
	_, pattern := schema["patternProperties"]
	return pattern || !named && len(schema) > 1 // the schema has more keywords than type
}

func signature(name string, params []*param, more bool) string {
	var words []string
	star := false
	for _, p := range params {
		word := p.Name
		if p.Optional {
			if !star {
				words, star = append(words, "*"), true
			}
			word += "=..."
		}
		words = append(words, word)
	}
	if more {
		words = append(words, "**more")
	}
	return name + "(" + strings.Join(words, ", ") + ")"
}

func firstLine(text string, most int) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return cut(strings.TrimSpace(line), most)
}

func cut(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// helpText returns the docstring of a tool, which help() shows.
func helpText(how, what string, params []*param, output any) string {
	var b strings.Builder
	b.WriteString(how + "\n\n" + cut(strings.TrimSpace(what), maxHelp) + "\n")
	for _, p := range params {
		fmt.Fprintf(&b, "\n%s: %s", p.Name, pythonType(p.schema))
		if p.Optional {
			b.WriteString(", optional")
		}
		if d, ok := p.schema["default"]; ok {
			fmt.Fprintf(&b, ", default %s", compact(d))
		}
		if e, ok := p.schema["enum"]; ok {
			fmt.Fprintf(&b, ", one of %s", compact(e))
		}
		if d, _ := p.schema["description"].(string); d != "" {
			b.WriteString(". " + cut(strings.TrimSpace(d), maxLine*2))
		}
		if p.schema["properties"] != nil || p.schema["items"] != nil || p.schema["anyOf"] != nil ||
			p.schema["oneOf"] != nil || p.schema["$ref"] != nil {
			b.WriteString("\n    schema: " + compact(p.schema))
		}
	}
	if output != nil {
		b.WriteString("\n\nReturns a value of this schema: " + compact(output))
	}
	return strings.TrimSpace(b.String())
}

// pythonTypes maps the types of JSON Schema to those of Python.
var pythonTypes = map[string]string{
	"string":  "str",
	"integer": "int",
	"number":  "float",
	"boolean": "bool",
	"array":   "list",
	"object":  "dict",
	"null":    "None",
}

func pythonType(schema map[string]any) string {
	switch t := schema["type"].(type) {
	case string:
		if k := pythonTypes[t]; k != "" {
			return k
		}
	case []any:
		var words []string
		for _, x := range t {
			if s, ok := x.(string); ok && pythonTypes[s] != "" {
				words = append(words, pythonTypes[s])
			}
		}
		if len(words) > 0 {
			return strings.Join(words, " or ")
		}
	}
	return "any"
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return cut(string(b), maxSchema)
}

// call calls a tool of the server and returns its result as a value for the code.
func (s *server) call(ctx context.Context, name string, params map[string]*param, c rlm.ToolCall) (any, error) {
	op := "call " + name + " of " + s.Name
	args := map[string]json.RawMessage{}
	var size int64
	for k, v := range c.Kwargs {
		size += int64(len(k) + len(v))
		p := params[k]
		if p == nil {
			args[k] = v
			continue
		}
		// Python code passes None for an optional argument that it does not set.
		if p.Optional && bytes.Equal(v, []byte("null")) && !p.nullable() {
			continue
		}
		args[p.key] = v
	}
	if size > s.o.MaxResult {
		return nil, &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      op,
			Message: fmt.Sprintf("the arguments have %d bytes, and the limit is %d", size, s.o.MaxResult),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	for again := false; ; again = true {
		l, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		res, err := l.session.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
		if err == nil {
			return s.resultValue(op, res)
		}
		lost := s.callError(ctx, l, op, err)
		// A server that was restarted does not know our MCP session, and has not processed the call: retry once.
		if again || !errors.Is(err, sdk.ErrSessionMissing) {
			return nil, lost
		}
	}
}

// resultValue returns the value of a result: its structured content if it has any, else its only part, or a list of its
// parts.
func (s *server) resultValue(op string, res *sdk.CallToolResult) (any, error) {
	var parts []any
	var size int64
	for _, c := range res.Content {
		v, n := contentPart(c)
		parts, size = append(parts, v), size+n
	}
	var data json.RawMessage
	if res.StructuredContent != nil && !res.IsError {
		var err error
		if data, err = json.Marshal(res.StructuredContent); err != nil {
			return nil, &v1.Error{
				Code:    CodeCallRefused,
				Op:      op,
				Message: "the result cannot be converted to JSON",
				Err:     err,
			}
		}
		size = int64(len(data)) // the parts have the same content again
	}
	if size > s.o.MaxResult {
		return nil, &v1.Error{
			Code:    CodeResultTooLarge,
			Op:      op,
			Message: fmt.Sprintf("the result has %d bytes, and the limit is %d", size, s.o.MaxResult),
			Remedy:  "request less in one call",
		}
	}
	switch {
	case res.IsError:
		return nil, &v1.Error{Code: CodeToolFailed, Op: op, Message: errorText(parts)}
	case data != nil:
		return data, nil
	case len(parts) == 0:
		return nil, nil
	case len(parts) == 1:
		return parts[0], nil
	}
	return parts, nil
}

// contentPart returns the value of one part of a result, and its size in bytes.
func contentPart(c sdk.Content) (any, int64) {
	switch c := c.(type) {
	case *sdk.TextContent:
		return c.Text, int64(len(c.Text))
	case *sdk.ImageContent:
		return rlm.Media{Type: "image", MIMEType: c.MIMEType, Data: c.Data}, int64(len(c.Data))
	case *sdk.AudioContent:
		return rlm.Media{Type: "audio", MIMEType: c.MIMEType, Data: c.Data}, int64(len(c.Data))
	case *sdk.EmbeddedResource:
		if r := c.Resource; r != nil && r.Blob != nil {
			return rlm.Media{Type: "file", MIMEType: r.MIMEType, URI: r.URI, Data: r.Blob}, int64(len(r.Blob))
		} else if r != nil {
			return r.Text, int64(len(r.Text))
		}
	}
	// A link, or a kind of content from a later version of the protocol.
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, 0
	}
	return json.RawMessage(raw), int64(len(raw))
}

// errorText returns the text of a result that reports an error.
func errorText(parts []any) string {
	var lines []string
	for _, p := range parts {
		if text, ok := p.(string); ok {
			lines = append(lines, text)
		}
	}
	if len(lines) == 0 {
		return "the tool failed without a message"
	}
	return strings.Join(lines, "\n")
}
