package rlm

import (
	"strings"
	"text/template"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Prompts are what the model is told. Each is a text/template over PromptData; empty ones take our own.
type Prompts struct {
	System  string // how to work
	First   string // the question, and what the context is
	Nothing string // a reply had nothing to run
	Last    string // turns are over
	Summary string // the conversation is too long
	Plain   string // the question with a small context in it

	parsed map[string]*template.Template
}

// PromptData is what a prompt may tell.
type PromptData struct {
	Query    string
	Contexts []v1.ContextNote
	Bytes    int64
	Tools    []Tool
	Schema   string // empty: any text will do
	Depth    int
	SubCalls bool // models may be asked from code
	Child    bool // rlm_query makes a child run
	Left     Left
	Output   int    // characters of output that are shown
	Window   int64  // characters that fit into a sub-model, roughly
	Text     string // of Plain: the context
	Untagged bool   // of Nothing: there was a block without a tag
}

var ownPrompts = Prompts{
	System: `You answer a question about data that is too large to be read at once. The data lies in a Python interpreter as variables; you cannot see it, but you can run code on it.

Reply with one block of code, fenced as ` + "```repl" + ` … ` + "```" + `. It runs in a live interpreter where variables stay; you then see what it printed (at most {{.Output}} characters, the middle is cut). A block fenced as bash runs as a shell command.

In the interpreter:
- context: the data{{if gt (len .Contexts) 1}}; context_0 to context_{{lenLess .Contexts}}: all of it{{end}}
{{- if .SubCalls}}
- llm_query(prompt) -> str: asks a language model that sees only the prompt; it takes about {{.Window}} characters
- llm_query_batched(prompts) -> list: the same for many prompts at once; much faster than a loop
{{- if .Child}}
- rlm_query(prompt), rlm_query_batched(prompts): a helper with an interpreter of its own works on a prompt of any size
{{- end}}{{end}}
- search(term, text=context), chunks(text, size): find places; cut into pieces
- budget(), SHOW_VARS(): what is left; which variables there are
{{- range .Tools}}
- {{.Name}}: {{.Doc}}{{if .Help}} [help({{.Name}}) tells more]{{end}}
{{- end}}
- FINAL(value) or FINAL_VAR("name"): hands in the answer and ends the work; so does answer["content"] = …; answer["ready"] = True

Look at the data first: its type, its beginning, how it is structured. Count, filter and compute with code{{if .SubCalls}}; let models read what needs understanding, in pieces that fit, many at once{{end}}. Keep results in variables. Check an answer before you hand it in. Never state what you have not seen in the output.`,

	First: `Question: {{if .Query}}{{.Query}}{{else}}the context holds the task; look at it and do what it says.{{end}}
{{range .Contexts}}
{{.Variable}}{{if .Name}} ({{.Name}}){{end}}: {{.Type}}{{if .Size}} of {{.Size}}{{if eq .Type "str"}} characters{{else}} items{{end}}{{end}}{{if and .Chars (ne .Type "str")}}, {{.Chars}} characters{{end}}{{if .Skipped}}; {{.Skipped}} files that are no text are left out{{end}}
{{- else}}
There is no context; only the question.
{{- end}}
{{- if .Schema}}

The answer must be JSON that meets this schema: {{.Schema}}
{{- end}}

You have {{.Left}}. Begin with a block of code.`,

	Nothing: `There was nothing to run in your reply{{if .Untagged}}: the block needs the word repl behind its opening fence{{end}}. Reply with one block:
` + "```repl" + `
print(type(context), len(context))
` + "```" + `
or, if you know the answer, with FINAL(your answer) at the beginning of a line and no code.`,

	Last: `No turns are left. From what you have seen, give your best answer to the question now, and nothing but the answer, as plain text without code.
Question: {{.Query}}{{if .Schema}}
The answer must be JSON that meets this schema: {{.Schema}}{{end}}`,

	Summary: `The conversation is getting too long. Write down what must not be forgotten: what was found out (with exact values), which variables hold what, what was tried in vain, and what is to be done next. No code.`,

	Plain: `{{if .Text}}{{.Text}}

{{end}}{{if .Query}}Question: {{.Query}}
{{end}}{{if .Schema}}Answer with JSON that meets this schema, and nothing else: {{.Schema}}{{else}}Answer with nothing but the answer.{{end}}`,
}

var promptFuncs = template.FuncMap{"lenLess": func(c []v1.ContextNote) int { return len(c) - 1 }}

// parse fills in our own and compiles all of them.
func (p Prompts) parse() (Prompts, error) {
	p.parsed = map[string]*template.Template{}
	for _, t := range []struct {
		name string
		text *string
		own  string
	}{
		{"system", &p.System, ownPrompts.System},
		{"first", &p.First, ownPrompts.First},
		{"nothing", &p.Nothing, ownPrompts.Nothing},
		{"last", &p.Last, ownPrompts.Last},
		{"summary", &p.Summary, ownPrompts.Summary},
		{"plain", &p.Plain, ownPrompts.Plain},
	} {
		*t.text = or(*t.text, t.own)
		parsed, err := template.New(t.name).Funcs(promptFuncs).Parse(*t.text)
		if err != nil {
			return p, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make engine", Message: "the prompt " + t.name + " is no template", Err: err}
		}
		p.parsed[t.name] = parsed
	}
	return p, nil
}

// text fills in a prompt.
func (p Prompts) text(name string, data PromptData) (string, error) {
	var b strings.Builder
	if err := p.parsed[name].Execute(&b, data); err != nil {
		return "", &v1.Error{Code: v1.CodeInvalidRequest, Op: "write prompt", Message: name, Err: err}
	}
	return b.String(), nil
}
