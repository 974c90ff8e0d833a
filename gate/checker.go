package gate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// The defaults of Options.
const (
	// DefaultTries is how many failures in a row of one session call a person.
	DefaultTries = 3
	// maxSessions bounds how many sessions' failures are remembered; the oldest are forgotten.
	maxSessions = 10_000
)

// Options say how a Checker judges. Zero fields take their defaults.
type Options struct {
	// Rules are compared with what the code does; nil: none. RulesMode empty: ModeWarn.
	Rules     *Rules
	RulesMode Mode
	// Graphs are the thesauri by role; "" is for requests that name none. GraphMode empty: ModeBlock.
	Graphs    map[string]*Graph
	GraphMode Mode
	// Role is that of requests that name none; one of Graphs.
	Role string
	// Least is a floor: no session weighs rules or thesaurus less, whatever it asks for. Empty: ModeOff, no floor.
	Least Mode
	// Tries is how many failures in a row of one session call a person; 0: DefaultTries.
	Tries int
	// Approvals is where a person is asked; nil: nobody is, and a decision to ask stays one.
	Approvals *Approvals
	// Python is the program that parses Python; empty: the host's. "none" uses none.
	Python string
}

// Checker is the Gate that holds rules and graphs. It is safe for concurrent use; Close it.
type Checker struct {
	opts   Options
	parser *pythonParser // nil: none on this host

	mu     sync.Mutex
	failed map[who]failure // guarded by mu
}

// failure is a session's failures in a row.
type failure struct {
	count int
	last  time.Time
}

var _ Gate = (*Checker)(nil)

// New makes a Checker.
func New(opts Options) (*Checker, error) {
	if opts.RulesMode == "" {
		opts.RulesMode = ModeWarn
	}
	if opts.GraphMode == "" {
		opts.GraphMode = ModeBlock
	}
	if opts.Least == "" {
		opts.Least = ModeOff
	}
	for _, m := range []Mode{opts.RulesMode, opts.GraphMode, opts.Least} {
		if _, err := ParseMode(string(m)); err != nil {
			return nil, err
		}
	}
	if opts.Tries < 0 {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "new gate", Message: "a negative number of tries", Remedy: "say 1 or more"}
	}
	if opts.Tries == 0 {
		opts.Tries = DefaultTries
	}
	c := &Checker{opts: opts, failed: map[who]failure{}}
	if opts.Role != "" {
		if _, err := c.graph(opts.Role); err != nil {
			return nil, err
		}
	}
	if opts.Rules == nil || opts.Python == "none" {
		return c, nil
	}
	if opts.Python == "" {
		opts.Python = findPython()
	}
	if opts.Python != "" {
		c.parser = newPythonParser(opts.Python)
	}
	return c, nil
}

// Least is the floor below which no session's mode goes.
func (c *Checker) Least() Mode { return c.opts.Least }

// Close ends the processes that parse Python.
func (c *Checker) Close() error {
	if c.parser != nil {
		c.parser.close()
	}
	return nil
}

// Findings says what the rules find, whatever the mode: a dry run.
func (c *Checker) Findings(ctx context.Context, req Request) ([]Finding, error) {
	if err := check(&req); err != nil {
		return nil, err
	}
	if c.opts.Rules == nil || req.empty() {
		return nil, nil
	}
	a := newAnalysis(ctx, c.parser)
	a.request(&req)
	if err := ctx.Err(); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeCancelled, Op: "judge code", Message: "the caller gave up", Err: err}
	}
	return c.opts.Rules.findings(a.facts, req.Language), nil
}

// check refuses a request that says nothing we understand.
func check(req *Request) error {
	bad := func(message, remedy string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "judge code", Message: message, Remedy: remedy}
	}
	switch req.Language {
	case Python, Bash:
		if len(req.Args) > 0 {
			return bad("args beside "+string(req.Language)+" code", "put a program's arguments into a request of language command")
		}
	case Command:
		if req.Code != "" {
			return bad("code beside a command's arguments", "put code into a request of language bash or python")
		}
	default:
		return bad(fmt.Sprintf("language %q is not known", req.Language), "say python, bash or command")
	}
	for _, m := range []Mode{req.Rules, req.Graph} {
		if m == "" {
			continue
		}
		if _, err := ParseMode(string(m)); err != nil {
			return err
		}
	}
	return nil
}

// Judge implements Gate.
func (c *Checker) Judge(ctx context.Context, req Request) (Decision, error) {
	if err := check(&req); err != nil {
		return Decision{}, err
	}
	d, err := c.decide(ctx, &req)
	if err != nil {
		return Decision{}, err
	}
	if err := c.escalate(&req, &d); err != nil {
		return Decision{}, err
	}
	d.Reason = reason(&d)
	return d, nil
}

// decide asks both judges.
func (c *Checker) decide(ctx context.Context, req *Request) (Decision, error) {
	d := Decision{Action: Allow}
	if req.empty() {
		return d, nil
	}
	rulesMode := heavier(orMode(req.Rules, c.opts.RulesMode), c.opts.Least)
	graphMode := heavier(orMode(req.Graph, c.opts.GraphMode), c.opts.Least)
	if c.opts.Rules != nil && rulesMode != ModeOff {
		findings, err := c.Findings(ctx, *req)
		if err != nil {
			return d, err
		}
		d.Findings = findings
		for _, f := range findings {
			d.Action = stricter(d.Action, soften(f.Severity, rulesMode))
		}
	}
	if graphMode == ModeOff || len(c.opts.Graphs) == 0 {
		return d, nil
	}
	g, err := c.graph(req.Role)
	if err != nil {
		return d, err
	}
	g.judge(req.Text(), &d, graphMode)
	return d, nil
}

// graph gives the thesaurus of a role. One that is not there is an error, never "validation off".
func (c *Checker) graph(role string) (*Graph, error) {
	if role == "" {
		role = c.opts.Role
	}
	if g, ok := c.opts.Graphs[role]; ok {
		return g, nil
	}
	e := &sandbox.Error{
		Code: sandbox.CodeInvalidRequest, Op: "judge code", Message: fmt.Sprintf("there is no thesaurus for role %q", role),
		Remedy: fmt.Sprintf("name one of the roles %s", strings.Join(slices.Sorted(maps.Keys(c.opts.Graphs)), ", ")),
	}
	if role == "" {
		e.Message = "there is no thesaurus for code that names no role"
		e.Remedy += "; or configure the role of whoever names none (gate.role), or a thesaurus without a role"
	}
	return nil, e
}

func orMode(m, otherwise Mode) Mode {
	if m == "" {
		return otherwise
	}
	return m
}

// soften is what is left of an action in a mode.
func soften(a Action, m Mode) Action {
	if m == ModeWarn && a.rank() > Warn.rank() {
		return Warn
	}
	return a
}

// escalate counts the tries of a session and asks a person where that is due.
func (c *Checker) escalate(req *Request, d *Decision) error {
	if d.Action.Runs() {
		c.Forget(req.Tenant, req.Session)
		return nil
	}
	if c.opts.Approvals != nil {
		by, ok, err := c.opts.Approvals.use(req)
		if err != nil {
			return err
		}
		if ok {
			c.Forget(req.Tenant, req.Session)
			d.Action, d.ApprovedBy = Allow, by
			return nil
		}
	}
	d.Attempt = req.Attempt
	if d.Attempt == 0 {
		d.Attempt = c.failure(req)
	}
	due := d.Attempt >= c.opts.Tries
	if !due && d.Action != Ask {
		return nil
	}
	d.Escalated = due
	if c.opts.Approvals == nil {
		return nil
	}
	asked, err := c.opts.Approvals.open(req, d)
	if err != nil {
		return err
	}
	if asked.State == Refused {
		d.Action, d.RefusedBy, d.RefusedNote = Deny, asked.By, asked.Note
		return nil
	}
	d.Escalated, d.Approval = true, asked.ID
	return nil
}

// who is the session whose tries are counted.
type who struct{ tenant, session string }

// Forget drops what is remembered of a session: it has ended, or its code has passed.
func (c *Checker) Forget(tenant, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failed, who{tenant, session})
}

// failure counts one more, and gives how many there are in a row.
func (c *Checker) failure(req *Request) int {
	if req.Session == "" {
		return 1 // nobody whose tries could be counted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := who{req.Tenant, req.Session}
	f := c.failed[w]
	f.count++
	f.last = time.Now()
	if _, ok := c.failed[w]; !ok && len(c.failed) >= maxSessions {
		oldest, at := who{}, f.last
		for name, other := range c.failed {
			if other.last.Before(at) {
				oldest, at = name, other.last
			}
		}
		delete(c.failed, oldest)
	}
	c.failed[w] = f
	return f.count
}

// reason tells a model what is wrong and how to mend it.
func reason(d *Decision) string {
	var b strings.Builder
	switch {
	case d.ApprovedBy != "":
		fmt.Fprintf(&b, "Allowed: %s approved exactly this code.\n", d.ApprovedBy)
	case d.RefusedBy != "":
		fmt.Fprintf(&b, "This code was not run: %s refused it.\n", d.RefusedBy)
		if d.RefusedNote != "" {
			fmt.Fprintf(&b, "They said: %s\n", d.RefusedNote)
		}
	case d.Action == Deny:
		b.WriteString("This code was not run.\n")
	case d.Action == Ask:
		b.WriteString("This code was not run: a person must agree to it first.\n")
	case d.Action == Warn:
		b.WriteString("This code was run in spite of the following.\n")
	}
	for _, f := range d.Findings {
		b.WriteString("- " + f.String() + "\n")
		if f.Fix != "" && f.Severity != Allow {
			b.WriteString("  Instead: " + f.Fix + "\n")
		}
	}
	for _, s := range d.Suggestions {
		fmt.Fprintf(&b, "- %q is not a known term; near it: %s\n", s.Word, strings.Join(s.Near, ", "))
	}
	switch {
	case d.Approval != "":
		fmt.Fprintf(&b, "A person was asked (approval %s). Once they agree, send exactly the same code again.\n", d.Approval)
	case d.Escalated:
		fmt.Fprintf(&b, "This was try %d. Stop trying variations and ask the user how to go on.\n", d.Attempt)
	case d.Action == Deny:
		b.WriteString("Change the code as said above and send it again.\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
