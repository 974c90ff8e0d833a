package rlm

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/llm"
)

// promptFiles has a directory for each prompt profile. A profile has the prompts of defaultProfile for the files that it
// lacks. Any template can use those of parts.txt.
//
//go:embed prompts
var promptFiles embed.FS

const defaultProfile = "default"

// promptNames are the prompts of a profile.
var promptNames = []string{"system", "first", "nothing", "last", "summary", "plain"}

// Prompts are the prompts for the model. Each text is a text/template over PromptData that replaces the prompt of every
// profile; empty: the prompt of the profile.
type Prompts struct {
	// Profiles are rules of the form [DEPTH:][MODEL=]PROFILE that select a prompt profile. The first rule that matches
	// decides. MODEL is a name in which * matches any text. No match: the profile "default".
	Profiles []string

	System  string // how to work
	First   string // the question, and a description of the context
	Nothing string // after a reply with nothing to run
	Last    string // when the turns are used up: requests the best answer
	Summary string // when the conversation is too long: requests a summary
	Plain   string // the question together with a small context
}

// PromptData is the data for prompts.
type PromptData struct {
	Query     string
	Contexts  []v1.ContextNote
	Variables string // names of the contexts, as a text
	Shown     bool   // the question contains all of the context
	Bytes     int64
	History   int // messages of the conversation before the question
	Tools     []Tool
	Schema    string // empty: the answer is any text
	Depth     int
	SubCalls  bool // code may call models
	Child     bool // rlm_query starts a child run
	Remaining Remaining
	Output    int    // characters of a turn's output that the model sees
	Text      string // for Plain: the context
	Untagged  bool   // for Nothing: the reply had a block without a tag

	SubChars int64 // maximum length of the prompt of a sub-call, in characters
	SubTotal int64 // characters that sub-calls can read together, roughly; 0: unlimited
	Batch    int64 // maximum number of prompts in one batch

	Python       string   // version
	Packages     []string // well-known packages that are installed
	Network      string   // "network", "no network" or "": unknown
	Earlier      []string // variables that existed before the question
	CellTime     string   // run time of a block; empty: unlimited
	ErrorStrings bool     // failed calls in a batch are texts
	Terms        bool     // there is a thesaurus for chunks(…, by="terms")
	Rows         bool     // some of the context may be parsed into rows
}

var promptFuncs = template.FuncMap{"join": func(s []string) string { return strings.Join(s, ", ") }}

// profiles are the templates of the built-in profiles, by profile and prompt.
var profiles = sync.OnceValue(func() map[string]map[string]*template.Template {
	read := func(name string) (string, error) {
		b, err := promptFiles.ReadFile(path.Join("prompts", name))
		return string(b), err
	}
	parts, err := read("parts.txt")
	if err != nil {
		panic(err) // embedded
	}
	base := template.Must(template.New("parts").Funcs(promptFuncs).Parse(parts))
	dirs, err := fs.ReadDir(promptFiles, "prompts")
	if err != nil {
		panic(err)
	}
	out := map[string]map[string]*template.Template{}
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		out[d.Name()] = map[string]*template.Template{}
		for _, name := range promptNames {
			text, err := read(path.Join(d.Name(), name+".txt"))
			if err != nil {
				if text, err = read(path.Join(defaultProfile, name+".txt")); err != nil {
					panic(err)
				}
			}
			out[d.Name()][name] = template.Must(parsePrompt(base, name, text))
		}
	}
	return out
})

// parsePrompt parses a prompt that may use the templates of base.
func parsePrompt(base *template.Template, name, text string) (*template.Template, error) {
	t, err := base.Clone()
	if err != nil {
		return nil, err
	}
	return t.New(name).Parse(text)
}

// PromptProfiles returns the names of the built-in prompt profiles.
func PromptProfiles() []string { return slices.Sorted(maps.Keys(profiles())) }

// checkProfile returns an error if there is no such profile. An empty name is valid.
func checkProfile(op, name string) error {
	if name == "" || profiles()[name] != nil {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodePromptUnknown,
		Op:      op,
		Message: fmt.Sprintf("unknown prompt profile %q", name),
		Remedy:  "use one of " + strings.Join(PromptProfiles(), ", "),
	}
}

// promptRule selects a profile.
type promptRule struct {
	depth   int // negative: any
	model   *regexp.Regexp
	profile string
}

// CheckPromptProfiles returns an error if one of the rules is invalid. See Prompts.Profiles.
func CheckPromptProfiles(rules []string) error {
	_, err := parseRules(rules)
	return err
}

// depthPrefix matches the depth of a rule. Names of models have no number before a colon.
var depthPrefix = regexp.MustCompile(`^(\d{1,3}):`)

func parseRules(rules []string) ([]promptRule, error) {
	var out []promptRule
	for _, text := range rules {
		r, rest := promptRule{depth: -1, model: regexp.MustCompile("")}, text
		if m := depthPrefix.FindStringSubmatch(rest); m != nil {
			r.depth, _ = strconv.Atoi(m[1]) // at most three digits
			rest = rest[len(m[0]):]
		}
		if i := strings.LastIndexByte(rest, '='); i >= 0 {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(rest[:i])), `\*`, ".*")
			r.model, rest = regexp.MustCompile("(?i)^"+pattern+"$"), rest[i+1:]
		}
		r.profile = strings.TrimSpace(rest)
		if err := checkProfile(fmt.Sprintf("read prompt rule %q", text), or(r.profile, `""`)); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// parse parses the texts, and checks the rules.
func (p Prompts) parse() (map[string]*template.Template, error) {
	if err := CheckPromptProfiles(p.Profiles); err != nil {
		return nil, err
	}
	out := map[string]*template.Template{}
	for i, text := range []string{p.System, p.First, p.Nothing, p.Last, p.Summary, p.Plain} {
		if text == "" {
			continue
		}
		var err error
		if out[promptNames[i]], err = ownPrompt("make engine", promptNames[i], text); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ownPrompt parses a prompt of the caller.
func ownPrompt(op, name, text string) (*template.Template, error) {
	t, err := parsePrompt(profiles()[defaultProfile][name], name, text)
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      op,
			Message: "invalid template for prompt " + name,
			Err:     err,
		}
	}
	return t, nil
}

// savedPrompts is the choice of the prompts of a run, as it is stored with the run.
type savedPrompts struct {
	Profile string   `json:"profile,omitempty"` // empty: the rules decide
	System  string   `json:"system,omitempty"`
	Rules   []string `json:"rules,omitempty"`
}

// runPrompts is the choice of the prompts of a run.
type runPrompts struct {
	saved  savedPrompts
	rules  []promptRule
	system *template.Template // nil: that of the profile
}

func (s savedPrompts) parse() (runPrompts, error) {
	const op = "begin run"
	p := runPrompts{saved: s}
	if err := checkProfile(op, s.Profile); err != nil {
		return p, err
	}
	var err error
	if p.rules, err = parseRules(s.Rules); err != nil || s.System == "" {
		return p, err
	}
	p.system, err = ownPrompt(op, "system", s.System)
	return p, err
}

// profile returns the name of the profile for a model at a depth.
func (p *runPrompts) profile(depth int, model string) string {
	if p.saved.Profile != "" {
		return p.saved.Profile
	}
	for _, r := range p.rules {
		if (r.depth < 0 || r.depth == depth) && r.model.MatchString(model) {
			return r.profile
		}
	}
	return defaultProfile
}

// prompt returns a prompt for the model of this node, filled in with data.
func (n *node) prompt(name string, data PromptData) (string, error) {
	p := &n.run.prompts
	t := n.run.engine.prompts[name]
	if t == nil {
		t = profiles()[p.profile(n.depth, n.model.Info().Name)][name]
	}
	if p.system != nil && name == "system" {
		t = p.system
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", &v1.Error{Code: v1.CodeInvalidRequest, Op: "write prompt", Message: name, Err: err}
	}
	return strings.TrimRight(b.String(), "\n"), nil
}

// data returns the data for the prompt templates.
func (n *node) data() PromptData {
	o, limits := n.run.engine.o, n.run.limits
	d := PromptData{
		Query:        n.query,
		Contexts:     slices.Clone(n.notes),
		Shown:        n.shown,
		Bytes:        n.staged.bytes,
		Tools:        n.run.tools,
		Schema:       string(n.schema.text),
		Depth:        n.depth,
		Remaining:    n.remaining(n.turn),
		Output:       *limits.Output,
		Python:       n.interpreter.Python,
		Packages:     n.interpreter.Packages,
		Earlier:      n.interpreter.Earlier,
		ErrorStrings: o.ErrorStrings,
		Terms:        gate.ThesaurusOf(o.Gate, n.run.q.Labels[roleLabel]) != nil,
	}
	if n.depth == 0 {
		d.History = len(n.run.q.History)
	}
	if t := limits.CellTime.Std(); t >= 0 {
		d.CellTime = t.String()
	}
	if network := n.interpreter.Network; network != nil {
		d.Network = map[bool]string{true: "network", false: "no network"}[*network]
	}
	d.nameContexts()
	limit := *limits.Depth
	d.SubCalls = limit < 0 || n.depth < limit
	d.Child = limit < 0 || n.depth+1 < limit
	if d.SubCalls {
		if m, err := n.run.modelFor(n.depth+1, ""); err == nil {
			d.size(m.Info(), int64(*limits.Parallel))
		}
	}
	return d
}

// nameContexts sets the names of the contexts. A single one is called context.
func (d *PromptData) nameContexts() {
	var names []string
	for _, c := range d.Contexts {
		names = append(names, c.Variable)
		d.Rows = d.Rows || c.Rows != nil || c.Type == "Directory" && slices.ContainsFunc(c.Extensions,
			func(e v1.ExtensionNote) bool { return rowsFormat(e.Extension) != "" })
	}
	const first, second = "context", "context_0"
	switch {
	case len(names) > 2:
		d.Variables = names[0] + " to " + names[len(names)-1]
	default:
		d.Variables = strings.Join(names, ", ")
	}
	if len(names) == 0 || names[0] != second {
		return
	}
	if len(names) == 1 {
		d.Variables, d.Contexts[0].Variable = first, first
		return
	}
	d.Variables += " (" + first + " is " + second + ")"
}

const (
	maxSubChars   = 100_000 // characters of the prompt of a sub-call
	promptShare   = 3       // characters for each token of the window: the reply and dense text need room, too
	totalShare    = 2       // characters that sub-calls can read for each token that is left: turns and replies need the rest
	batchRounds   = 4       // a batch has at most this number of prompts for each concurrent call
	subCallTokens = 1000    // that a sub-call needs at least, roughly, so that a batch can be paid
)

// size sets how large prompts of sub-calls to a model should be: that they fit into its window, and that one prompt
// takes at most a quarter of the tokens that are left, which is one character for each of them.
func (d *PromptData) size(m llm.Info, parallel int64) {
	left := int64(-1)
	if d.Remaining.Tokens != nil {
		left = *d.Remaining.Tokens
	}
	if d.Remaining.Cost != nil && m.Price != nil && m.Price.Input > 0 {
		if t := int64(*d.Remaining.Cost / m.Price.Input * 1e6); left < 0 || t < left {
			left = t
		}
	}
	d.SubChars, d.Batch = maxSubChars, batchRounds*parallel
	if m.Window > 0 {
		d.SubChars = min(d.SubChars, promptShare*m.Window)
	}
	if left >= 0 {
		d.SubChars, d.SubTotal = min(d.SubChars, left), round(totalShare*left)
		d.Batch = min(d.Batch, max(1, left/subCallTokens))
	}
	if calls := d.Remaining.Calls; calls != nil {
		d.Batch = min(d.Batch, max(1, *calls))
	}
	d.SubChars = round(d.SubChars)
}

// round rounds a number down to two digits.
func round(n int64) int64 {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return n / unit * unit
}

// Prompt returns the messages that a run of the question would send first: the system prompt and the question, or the
// messages of a plain call if the context is small. It calls no model, and stores no run.
func (e *Engine) Prompt(ctx context.Context, q Question) ([]llm.Message, error) {
	r, err := e.newRun(ctx, q, newRunID())
	if err != nil {
		return nil, err
	}
	defer r.unlock()
	defer func() {
		_ = errors.Join(r.log.Close(), r.asked.Close(), r.staged.endSurvey(), os.RemoveAll(r.dir)) // nothing is kept
	}()
	n := r.rootNode()
	if q.Samples > 1 {
		n.budget = r.budget.part(q.Samples)
	}
	if messages, err := n.plainMessages(); messages != nil || err != nil {
		return messages, err
	}
	defer n.close()
	if err := n.open(ctx); err != nil {
		return nil, err
	}
	err = n.startConversation()
	return n.requestMessages(), err
}
