package gate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/gate/terms"
)

const (
	// DefaultEscalateAfter is the number of consecutive failures of one session after which a person is asked.
	DefaultEscalateAfter = 3
	// maxSessions limits the sessions whose failures are counted; the oldest are forgotten.
	maxSessions = 10_000
)

// Options configure a Checker. Zero fields take their defaults.
type Options struct {
	// Rules are compared with what the code does; nil: none. RulesMode empty: ModeWarn.
	Rules     *rules.Set
	RulesMode Mode
	// Graphs are the graphs of terms by role; "" is for requests without a role. GraphMode empty: ModeBlock.
	Graphs    map[string]*terms.Graph
	GraphMode Mode
	// Role is the role of requests that name none; a key of Graphs.
	Role string
	// MinMode is the minimum mode of rules and graph in any session, whatever the session requests. Empty: ModeOff.
	MinMode Mode
	// EscalateAfter is the number of consecutive failures of one session after which a person is asked;
	// 0: DefaultEscalateAfter.
	EscalateAfter int
	// Approvals holds the questions to people. nil: no person is asked, and a decision "ask" is final.
	Approvals *Approvals
	// Python is the program that parses Python. Empty: the host's Python; rules.NoPython: do not parse Python.
	Python string
}

// Checker is the Gate that applies rules and graphs. It is safe for concurrent use; Close it.
type Checker struct {
	opts     Options
	analyzer *rules.Analyzer // nil: no rules

	mu       sync.Mutex
	failures map[sessionKey]failure // guarded by mu
}

type sessionKey struct{ tenant, session string }

// failure counts the consecutive failures of a session.
type failure struct {
	count int
	last  time.Time
}

var _ Gate = (*Checker)(nil)

// New returns a Checker.
func New(opts Options) (*Checker, error) {
	opts.RulesMode = cmp.Or(opts.RulesMode, ModeWarn)
	opts.GraphMode = cmp.Or(opts.GraphMode, ModeBlock)
	opts.MinMode = cmp.Or(opts.MinMode, ModeOff)
	opts.EscalateAfter = cmp.Or(opts.EscalateAfter, DefaultEscalateAfter)
	for _, m := range []Mode{opts.RulesMode, opts.GraphMode, opts.MinMode} {
		if _, err := ParseMode(string(m)); err != nil {
			return nil, err
		}
	}
	if opts.EscalateAfter < 0 {
		return nil, invalidRequest("negative EscalateAfter", "use 1 or more")
	}
	c := &Checker{opts: opts, failures: map[sessionKey]failure{}}
	if opts.Role != "" {
		if _, err := c.graph(opts.Role); err != nil {
			return nil, err
		}
	}
	if opts.Rules != nil {
		c.analyzer = rules.NewAnalyzer(opts.Rules, opts.Python)
	}
	return c, nil
}

// MinMode returns the minimum mode of all sessions.
func (c *Checker) MinMode() Mode { return c.opts.MinMode }

// CheckRole returns an error if a role has no thesaurus.
func (c *Checker) CheckRole(role string) error {
	_, err := c.graph(role)
	return err
}

// Close kills the processes that parse Python.
func (c *Checker) Close() error {
	if c.analyzer != nil {
		c.analyzer.Close()
	}
	return nil
}

// Judge implements Gate.
func (c *Checker) Judge(ctx context.Context, req Request) (Decision, error) {
	if err := checkRequest(&req); err != nil {
		return Decision{}, err
	}
	d, err := c.decide(ctx, &req)
	if err != nil {
		return Decision{}, err
	}
	if err := c.escalate(&req, &d); err != nil {
		return Decision{}, err
	}
	d.Reason = explain(&d)
	return d, nil
}

// decide returns the combined decision of both judges.
func (c *Checker) decide(ctx context.Context, req *Request) (Decision, error) {
	d := Decision{Action: v1.GateAllow}
	text := req.Text()
	if strings.TrimSpace(text) == "" {
		return d, nil
	}
	rulesMode := stricter(cmp.Or(req.Rules, c.opts.RulesMode), c.opts.MinMode)
	graphMode := stricter(cmp.Or(req.Graph, c.opts.GraphMode), c.opts.MinMode)
	if c.analyzer != nil && rulesMode != ModeOff {
		findings, err := c.analyzer.Findings(ctx, codeOf(req))
		if err != nil {
			return d, err
		}
		add(&d, rulesMode, findings...)
	}
	if graphMode == ModeOff || len(c.opts.Graphs) == 0 {
		return d, nil
	}
	g, err := c.graph(req.Role)
	if err != nil {
		return d, err
	}
	r := g.Review(text)
	d.ConceptsMatched, d.Unknown, d.Suggestions = r.Concepts, r.Unknown, r.Suggestions
	if o := r.Objection; o != nil {
		f := Finding{Rule: o.Rule, Line: 1, Column: 1, Message: o.Message, Fix: o.Fix, Severity: v1.GateDeny}
		if o.Advisory {
			f.Severity = v1.GateAllow
		}
		add(&d, graphMode, f)
	}
	return d, nil
}

// add adds the findings of a judge. In ModeWarn they do not prevent the code from running.
func add(d *Decision, mode Mode, findings ...Finding) {
	for _, f := range findings {
		d.Findings = append(d.Findings, f)
		if mode == ModeWarn && !f.Severity.Runs() {
			d.Action = d.Action.Stricter(v1.GateWarn)
			continue
		}
		d.Action = d.Action.Stricter(f.Severity)
	}
}

// graph returns the graph of a role. A missing graph is an error: it must not disable the gate.
func (c *Checker) graph(role string) (*terms.Graph, error) {
	role = cmp.Or(role, c.opts.Role)
	if g, ok := c.opts.Graphs[role]; ok {
		return g, nil
	}
	remedy := "configure a thesaurus for it (gate.thesaurus)"
	roles := slices.DeleteFunc(slices.Sorted(maps.Keys(c.opts.Graphs)), func(r string) bool { return r == "" })
	if len(roles) > 0 {
		remedy = "use one of the roles " + strings.Join(roles, ", ")
	}
	if role == "" {
		remedy += "; or configure a default role (gate.role), or a thesaurus without a role"
		return nil, invalidRequest("no thesaurus for code without a role", remedy)
	}
	return nil, invalidRequest(fmt.Sprintf("no thesaurus for role %q", role), remedy)
}

// Thesaurus returns the thesaurus of a role, or nil.
func (c *Checker) Thesaurus(role string) *terms.Thesaurus {
	if g := c.opts.Graphs[cmp.Or(role, c.opts.Role)]; g != nil {
		return g.Thesaurus()
	}
	return nil
}

// escalate counts the failures of a session, and asks a person for approval once there are too many.
func (c *Checker) escalate(req *Request, d *Decision) error {
	if d.Action.Runs() {
		c.Forget(req.Tenant, req.Session)
		return nil
	}
	if c.opts.Approvals != nil {
		by, ok, err := c.opts.Approvals.spend(req)
		if err != nil {
			return err
		}
		if ok {
			c.Forget(req.Tenant, req.Session)
			d.Action, d.ApprovedBy = v1.GateAllow, by
			return nil
		}
	}
	d.Attempt = req.Attempt
	if d.Attempt == 0 {
		d.Attempt = c.countFailure(req)
	}
	due := d.Attempt >= c.opts.EscalateAfter
	if !due && d.Action != v1.GateAsk {
		return nil
	}
	d.Escalated = due
	if c.opts.Approvals == nil {
		return nil
	}
	d.Reason = explain(d) // shown to the person who answers
	asked, err := c.opts.Approvals.askCode(req, d)
	if err != nil {
		return err
	}
	if asked.State == v1.ApprovalRefused {
		d.Action, d.RefusedBy, d.RefusedNote = v1.GateDeny, asked.By, asked.Note
		return nil
	}
	d.Escalated, d.Approval = true, asked.ID
	return nil
}

// Forget resets the failure count of a session. It is called when the session ends and when its code passes.
func (c *Checker) Forget(tenant, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, sessionKey{tenant, session})
}

// countFailure counts one more failure, and returns the number of consecutive failures.
func (c *Checker) countFailure(req *Request) int {
	if req.Session == "" {
		return 1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sessionKey{req.Tenant, req.Session}
	f, known := c.failures[key]
	f.count++
	f.last = time.Now()
	if !known && len(c.failures) >= maxSessions {
		oldest, last := sessionKey{}, f.last
		for k, other := range c.failures {
			if other.last.Before(last) {
				oldest, last = k, other.last
			}
		}
		delete(c.failures, oldest)
	}
	c.failures[key] = f
	return f.count
}
