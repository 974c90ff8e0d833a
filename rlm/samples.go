package rlm

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
	"github.com/recluse-dev/recluse/sandbox"
)

// checkSamples rejects a number of samples that a question cannot have.
func (q *Question) checkSamples() error {
	e := &v1.Error{Code: v1.CodeInvalidRequest, Op: "begin run"}
	switch {
	case q.Samples < 0 || q.Samples > v1.MaxSamples:
		e.Message = fmt.Sprintf("invalid number of samples %d: want 1 to %d", q.Samples, v1.MaxSamples)
	case q.Samples > 1 && q.Sandbox != nil:
		e.Message = "a run in a session cannot have samples, because they would share the variables of the session"
	default:
		return nil
	}
	return e
}

// candidate is one of the samples of a run: a node that answers the question of the run by itself.
type candidate struct {
	*node
	answer *v1.RunAnswer // nil: none
	reason Reason
	err    error // nil if it answered
}

// sampling is the state that the candidates of a run share.
type sampling struct {
	root *node

	opening sync.Mutex // held while a candidate opens a new sandbox, because staged files may be moved meanwhile

	once     sync.Once
	snapshot string // set by once; ID of the warm snapshot; empty: there is none
}

// sampleWork answers the question with several candidates, and chooses the answer on which most of them agree. p is the
// record of a run that is resumed; nil: the run is new.
func (r *Run) sampleWork(ctx context.Context, root *node, p *runRecord) error {
	s := &sampling{root: root}
	defer s.close()
	all := make([]*candidate, r.q.Samples)
	slots := make(chan struct{}, *r.limits.Children)
	var wg sync.WaitGroup
	for i := range all {
		c := &candidate{node: r.candidateNode(s, i+1, p)}
		all[i] = c
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				c.run(ctx)
			case <-ctx.Done():
				c.err = cause(ctx, nil)
				c.reason = reasonOf(c.err)
			}
		})
	}
	wg.Wait()
	return root.choose(ctx, all)
}

// sampleID returns the ID of the node of candidate number i.
func sampleID(i int) string { return "0/s" + strconv.Itoa(i) }

// sampleOf returns the ID of the candidate that a node is or belongs to, or "".
func sampleOf(node string) string {
	rest, ok := strings.CutPrefix(node, "0/s")
	if !ok {
		return ""
	}
	number, _, _ := strings.Cut(rest, "/")
	return "0/s" + number
}

// candidateNode returns the node of candidate number i. It has an equal part of the budget, so that no candidate can
// use up what the others need.
func (r *Run) candidateNode(s *sampling, i int, p *runRecord) *node {
	n := r.rootNode()
	n.id, n.sampling = sampleID(i), s
	n.budget = r.budget.part(r.q.Samples)
	if p == nil {
		return n
	}
	n.budget.mu.Lock()
	defer n.budget.mu.Unlock()
	for _, u := range p.spent {
		if u.sample == n.id {
			n.budget.add(u.Model, u.Depth, u.Usage) // the budget of the run has it already
		}
	}
	return n
}

// run works on the candidate's answer. A candidate that answered before the run was resumed is not run again.
func (c *candidate) run(ctx context.Context) {
	r, key := c.node.run, strings.TrimPrefix(c.id, "0/")
	if rec := r.recording.child(c.id); rec != nil && !r.recording.emitAgain {
		c.answer, c.reason = &v1.RunAnswer{Content: rec.Answer, Value: rec.Value, How: rec.How}, rec.Reason
		return
	}
	root := c.sampling.root
	r.emit(root, 0, v1.KindChildStarted, v1.ChildStarted{
		Node:    c.id,
		Model:   c.model.Info().Name,
		Key:     key,
		Chars:   int64(len(c.query)),
		Preview: r.beginning(c.query),
		Prompt:  r.putQuestion(c.query),
	})
	err := c.work(ctx)
	c.reason = v1.ReasonAnswered
	if c.answer = c.accepted(); c.answer == nil {
		c.err = cause(ctx, err)
		c.reason, c.answer = reasonOf(c.err), c.bestPartial()
	}
	if c.err != nil && suspended(ctx) {
		return // the candidate continues when the run is resumed
	}
	end := v1.ChildEnded{Node: c.id, Key: key, Reason: c.reason, Error: eventError(c.err)}
	if c.answer != nil {
		end.Answer, end.Value = c.answer.Content, c.answer.Value
	}
	if c.err == nil {
		end.How = c.answer.How
	}
	r.emit(root, 0, v1.KindChildEnded, end)
}

// choose sets the result of the root node from those of the candidates. If the run was cancelled before all candidates
// had ended, the choice is a partial answer.
func (n *node) choose(ctx context.Context, all []*candidate) error {
	answered := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return c.err != nil })
	voters := answered
	if len(voters) == 0 {
		voters = slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return c.answer == nil })
	}
	best, agree := mostAgreed(voters)
	report := &v1.Samples{Count: len(all), Answered: len(answered)}
	for _, c := range all {
		usage, _ := c.budget.usage()
		one := v1.Candidate{Node: c.id, Reason: c.reason, Usage: usage, Agrees: slices.Contains(agree, c)}
		if c.answer != nil {
			one.Answer = c.answer.Content
		}
		report.Candidates = append(report.Candidates, one)
	}
	report.Agreement = len(agree)
	n.samples = report
	if best == nil {
		return all[0].err
	}
	n.turn, n.plain, n.full = best.turn, best.plain, best.full
	cancelled := len(answered) < len(all) && ctx.Err() != nil && reasonOf(cause(ctx, nil)) == v1.ReasonCancelled
	if len(answered) == 0 || cancelled {
		n.ready = best.answer
		return all[slices.IndexFunc(all, func(c *candidate) bool { return c.err != nil })].err
	}
	n.answer = best.answer
	n.run.emit(n, 0, v1.KindAnswer, best.answer)
	return nil
}

// mostAgreed returns the largest group of candidates with equal answers, and its first member. Of groups of the same
// size, it is the one with the candidate of the lowest number.
func mostAgreed(all []*candidate) (best *candidate, agree []*candidate) {
	groups := map[string][]*candidate{}
	for _, c := range all {
		k := answerKey(c.answer)
		groups[k] = append(groups[k], c)
	}
	for _, c := range all {
		if g := groups[answerKey(c.answer)]; len(g) > len(agree) {
			best, agree = c, g
		}
	}
	return best, agree
}

// answerKey returns a text that is the same for equal answers. Case, white space and the form of numbers do not matter,
// nor does the order of keys in JSON.
func answerKey(a *v1.RunAnswer) string {
	if len(a.Value) > 0 {
		d := json.NewDecoder(strings.NewReader(string(a.Value)))
		d.UseNumber()
		var v any
		if d.Decode(&v) == nil {
			v = canonical(v)
			if text, ok := v.(string); ok {
				return text
			}
			if b, err := json.Marshal(v); err == nil { // the keys of maps are sorted
				return string(b)
			}
		}
	}
	return canonicalText(a.Content)
}

// canonical returns a JSON value with canonical texts and numbers. Numbers become texts.
func canonical(v any) any {
	switch v := v.(type) {
	case json.Number:
		return canonicalText(v.String())
	case string:
		return canonicalText(v)
	case []any:
		for i := range v {
			v[i] = canonical(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = canonical(v[k])
		}
	case bool:
		return strconv.FormatBool(v)
	}
	return v
}

// number matches a decimal number whose exponent is small enough to compute its value.
var number = lazyregexp.New(`^[+-]?\d{1,200}(\.\d{1,200})?(e[+-]?\d{1,3})?$`)

func canonicalText(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	if number().MatchString(text) {
		if n, ok := new(big.Rat).SetString(text); ok {
			return n.RatString()
		}
	}
	return text
}

// warm returns the ID of a snapshot of a sandbox with the loaded context, which is made for the first candidate that
// needs a sandbox. It returns "" if there is no such snapshot.
func (s *sampling) warm(ctx context.Context) string {
	s.once.Do(func() {
		n := s.root
		o := n.run.engine.o
		if o.Sandboxes.Capabilities(ctx).Snapshots != sandbox.SnapshotsMemory {
			return
		}
		err := n.open(ctx)
		if err == nil {
			var snap *sandbox.Snapshot
			snap, err = n.sandbox.Snapshot(ctx, sandbox.SnapshotOptions{Labels: map[string]string{LabelRun: n.run.id}})
			if err == nil {
				s.snapshot = snap.ID
				n.run.emit(n, 0, v1.KindSnapshot, v1.SnapshotTaken{ID: snap.ID})
			}
		}
		if err != nil && ctx.Err() == nil {
			o.Logger.Warn("could not prepare a sandbox for the samples of a run", "run", n.run.id, "error", err)
		}
		n.close() // the candidates work in copies
		n.sandbox = nil
	})
	return s.snapshot
}

// close deletes the warm snapshot.
func (s *sampling) close() {
	if s.snapshot == "" {
		return
	}
	n := s.root
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := n.run.engine.o.Sandboxes.DeleteSnapshot(ctx, s.snapshot); err != nil {
		n.run.engine.o.Logger.Warn("could not delete a snapshot of a run",
			"run", n.run.id, "snapshot", s.snapshot, "error", err)
	}
}

// openCandidate makes the sandbox of a candidate: a copy of the warm one, or a new one if there is no such copy.
func (n *node) openCandidate(ctx context.Context) error {
	s := n.sampling
	if id := s.warm(ctx); id != "" {
		m, err := n.run.engine.o.Sandboxes.Restore(ctx, id)
		if err == nil {
			n.ctx, n.sandbox, n.contextPath, n.notes = ctx, m, s.root.contextPath, s.root.notes
			n.interpreter, n.shown = s.root.interpreter, s.root.shown
			m.OnHostCall(n.serve(ctx))
			n.emitSandbox(n.contextPath)
			n.emitContext()
			return nil
		}
		n.run.engine.o.Logger.Warn("could not copy the prepared sandbox of a run", "run", n.run.id, "error", err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	return n.open(ctx)
}

// part returns a budget with one of count equal parts of the limits. What is spent of it also counts for b. The time is
// not divided, because the parts are used at the same time.
func (b *budget) part(count int) *budget {
	l := b.limits
	for _, n := range []**int64{&l.Tokens, &l.Calls} {
		if **n >= 0 {
			*n = new(**n / int64(count))
		}
	}
	if *l.Cost >= 0 {
		l.Cost = new(*l.Cost / float64(count))
	}
	if *l.CPU >= 0 {
		l.CPU = new(*l.CPU / v1.Duration(count))
	}
	out := newBudget(l)
	out.begun, out.whole, out.meter = b.begun, b, b.meter
	return out
}

// sampleSpent is usage, with the candidate that it belongs to, if any.
type sampleSpent struct {
	Spent
	sample string
}

// dropWarm removes what an interrupted run has left: its prepared sandbox and the snapshot of it.
func (r *Run) dropWarm(ctx context.Context, p *runRecord) {
	r.closeOldSandbox(ctx, p)
	if p.snapshot == "" {
		return
	}
	if err := r.engine.o.Sandboxes.DeleteSnapshot(ctx, p.snapshot); err != nil {
		r.engine.o.Logger.Warn("could not delete a snapshot of a run", "run", r.id, "snapshot", p.snapshot, "error", err)
	}
}
