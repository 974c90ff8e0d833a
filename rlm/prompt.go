package rlm

import (
	"strings"
	"text/template"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Prompts are the prompts for the model. Each is a text/template over PromptData; empty: the default prompt.
type Prompts struct {
	System  string // how to work
	First   string // the question, and a description of the context
	Nothing string // after a reply with nothing to run
	Last    string // when the turns are used up: requests the best answer
	Summary string // when the conversation is too long: requests a summary
	Plain   string // the question together with a small context

	parsed map[string]*template.Template
}

// PromptData is the data for prompts.
type PromptData struct {
	Query     string
	Contexts  []v1.ContextNote
	Bytes     int64
	Tools     []Tool
	Schema    string // empty: the answer is any text
	Depth     int
	SubCalls  bool // code may call models
	Child     bool // rlm_query starts a child run
	Remaining Remaining
	Output    int    // characters of a turn's output that the model sees
	Window    int64  // approximate number of characters that fit into the window of a sub-model
	Text      string // for Plain: the context
	Untagged  bool   // for Nothing: the reply had a block without a tag
}

var defaultPrompts = Prompts{
	System: `You answer a question about data that is too large to be read at once. The data is in the variables of a Python interpreter; you cannot see it, but you can run code on it.

Reply with one block of code, fenced as ` + "```repl" + ` … ` + "```" + `. It runs in a live interpreter that keeps its variables; you then see what it printed (at most {{.Output}} characters; the middle is cut). A block fenced as bash runs as a shell command.

In the interpreter:
- context: the data{{if gt (len .Contexts) 1}}; context_0 to context_{{lenLess .Contexts}}: all of it{{end}}
{{- if .SubCalls}}
- llm_query(prompt) -> str: asks a language model that sees only the prompt; a prompt can have about {{.Window}} characters
- llm_query_batched(prompts) -> list: the same for many prompts at once; much faster than a loop
{{- if .Child}}
- rlm_query(prompt), rlm_query_batched(prompts): a helper with its own interpreter works on a prompt of any size
{{- end}}{{end}}
- search(term, text=context), chunks(text, size): find a term; cut a text into pieces
- budget(), SHOW_VARS(): the remaining budget; the variables that exist
{{- range .Tools}}
- {{.Name}}: {{.Doc}}{{if .Help}} [help({{.Name}}) shows more]{{end}}
{{- end}}
- FINAL(value) or FINAL_VAR("name"): submits the answer and ends the work; answer["content"] = …; answer["ready"] = True does the same

Look at the data first: its type, its beginning, its structure. Count, filter and compute with code{{if .SubCalls}}; let models read what needs understanding, in pieces that fit, many at once{{end}}. Keep results in variables. Check an answer before you submit it. Never state what you have not seen in the output.`,

	First: `Question: {{if .Query}}{{.Query}}{{else}}the task is in the context; look at it and do what it says.{{end}}
{{range .Contexts}}
{{.Variable}}{{if .Name}} ({{.Name}}){{end}}: {{.Type}}{{if .Size}} of {{.Size}}{{if eq .Type "str"}} characters{{else}} items{{end}}{{end}}{{if and .Chars (ne .Type "str")}}, {{.Chars}} characters{{end}}{{if .Skipped}}; {{.Skipped}} files that are not text are left out{{end}}
{{- else}}
There is no context; only the question.
{{- end}}
{{- if .Schema}}

The answer must be JSON that meets this schema: {{.Schema}}
{{- end}}

You have {{.Remaining}}. Begin with a block of code.`,

	Nothing: `There was nothing to run in your reply{{if .Untagged}}: the block needs the word repl after its opening fence{{end}}. Reply with one block:
` + "```repl" + `
print(type(context), len(context))
` + "```" + `
or, if you know the answer, with FINAL(your answer) at the beginning of a line and no code.`,

	Last: `The work must end here: a limit is reached. From what you have seen, write your best answer to the question now, and nothing but the answer, as plain text without code.
Question: {{.Query}}{{if .Schema}}
The answer must be JSON that meets this schema: {{.Schema}}{{end}}`,

	Summary: `The conversation is getting too long. Write down what must not be forgotten: what was found out (with exact values), what each variable contains, what was tried without success, and what to do next. No code.`,

	Plain: `{{if .Text}}{{.Text}}

{{end}}{{if .Query}}Question: {{.Query}}
{{end}}{{if .Schema}}Answer with JSON that meets this schema, and nothing else: {{.Schema}}{{else}}Answer with nothing but the answer.{{end}}`,
}

var promptFuncs = template.FuncMap{"lenLess": func(c []v1.ContextNote) int { return len(c) - 1 }}

// parse fills in the default prompts and parses all templates.
func (p Prompts) parse() (Prompts, error) {
	p.parsed = map[string]*template.Template{}
	for _, t := range []struct {
		name string
		text *string
		own  string
	}{
		{"system", &p.System, defaultPrompts.System},
		{"first", &p.First, defaultPrompts.First},
		{"nothing", &p.Nothing, defaultPrompts.Nothing},
		{"last", &p.Last, defaultPrompts.Last},
		{"summary", &p.Summary, defaultPrompts.Summary},
		{"plain", &p.Plain, defaultPrompts.Plain},
	} {
		*t.text = or(*t.text, t.own)
		parsed, err := template.New(t.name).Funcs(promptFuncs).Parse(*t.text)
		if err != nil {
			return p, &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "make engine",
				Message: "invalid template for prompt " + t.name,
				Err:     err,
			}
		}
		p.parsed[t.name] = parsed
	}
	return p, nil
}

// text returns a prompt, filled in with data.
func (p Prompts) text(name string, data PromptData) (string, error) {
	var b strings.Builder
	if err := p.parsed[name].Execute(&b, data); err != nil {
		return "", &v1.Error{Code: v1.CodeInvalidRequest, Op: "write prompt", Message: name, Err: err}
	}
	return b.String(), nil
}
