package llm

import (
	"encoding/json"
	"strings"
)

// toolCalls collects the native tool calls of a reply. No tools are offered to models, but some were trained to run
// code with a call of their own. Such a call becomes a block of code in the text of the reply: that is what the caller
// reads, and what the next request contains, so that no provider misses the result of a call.
type toolCalls struct {
	calls []toolCall
}

type toolCall struct {
	index int64
	name  string
	args  string // JSON
}

// add adds a piece of the call with an index.
func (t *toolCalls) add(index int64, name, args string) {
	for i := range t.calls {
		if c := &t.calls[i]; c.index == index {
			c.name += name
			c.args += args
			return
		}
	}
	t.calls = append(t.calls, toolCall{index, name, args})
}

// write writes the calls that run code as blocks of code.
func (t *toolCalls) write(out *sink) {
	for _, c := range t.calls {
		if c.name != "repl" && c.name != "python" {
			continue
		}
		code := codeArgument(c.args)
		if code == "" {
			continue
		}
		fence := "```"
		for strings.Contains(code, fence) {
			fence += "`"
		}
		if !out.write("\n" + fence + "repl\n" + strings.TrimRight(code, "\n") + "\n" + fence + "\n") {
			return
		}
	}
}

// codeArgument returns the code in the arguments of a call: the argument code, or the only argument. Models without
// such a tool in their request also send the code itself. It returns "" for incomplete arguments.
func codeArgument(args string) string {
	var code string
	if json.Unmarshal([]byte(args), &code) == nil {
		return code
	}
	var fields map[string]any
	if json.Unmarshal([]byte(args), &fields) == nil {
		if code, ok := fields["code"].(string); ok {
			return code
		}
		for _, v := range fields {
			if text, ok := v.(string); ok && len(fields) == 1 {
				return text
			}
		}
		return ""
	}
	if strings.HasPrefix(strings.TrimSpace(args), "{") {
		return ""
	}
	return args
}
