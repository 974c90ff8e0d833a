package rlm

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
	"github.com/recluse-dev/recluse/llm"
)

// DefaultLimits returns the limits of a run that sets none. Every field is set. The tokens suffice for sub-calls that
// read 600,000 characters once, also if a token has only three characters, and for the turns of the run.
func DefaultLimits() v1.RunLimits {
	return v1.RunLimits{
		Tokens: new(int64(300_000)),
		Cost:   new(float64(v1.NoLimit)),
		Time:   new(v1.Duration(5 * time.Minute)),
		Calls:  new(int64(v1.NoLimit)),
		Depth:  new(2),
		Turns:  new(30),
		Errors: new(8),
		CPU:    new(v1.Duration(v1.NoLimit)),

		CellTime: new(v1.Duration(60 * time.Second)),
		Output:   new(20_000),
		Reply:    new(int64(8192)),
		Parallel: new(16),
		Children: new(4),
	}
}

// reached reports whether there is a limit and n is not below it.
func reached[T int | int64 | v1.Duration](n T, limit *T) bool { return *limit >= 0 && n >= *limit }

const (
	// defaultReply is the length of a reply, in tokens, if neither the limits nor the model bound it.
	defaultReply = 8192
	// minReply is the least number of tokens for which a call is made.
	minReply = 64
)

// budget is the budget of a run and all its child runs. The maximum cost of a call is reserved before the call, and
// replaced by the actual cost after it, so that concurrent calls cannot spend the same token twice.
//
// A reservation is held only during a model call, never by a parent that waits for a child run. Therefore a caller that
// waits for reservations of others waits only for calls that end by themselves.
type budget struct {
	limits v1.RunLimits // every field is set
	begun  time.Time
	whole  *budget // the budget of which this one is a part; nil: none
	meter  *meter

	mu        sync.Mutex
	spent     llm.Usage          // guarded by mu
	by        map[usageKey]Spent // guarded by mu
	cpu       time.Duration      // guarded by mu
	tokens    int64              // guarded by mu; reserved
	cost      float64            // guarded by mu; reserved
	inFlight  int64              // guarded by mu; requests of reservations that are not committed
	kept      map[*node]kept     // guarded by mu; for the last calls of nodes
	committed chan struct{}      // guarded by mu; closed and replaced whenever a reservation is committed
}

type usageKey struct {
	model string
	depth int
}

func newBudget(l v1.RunLimits) *budget {
	return &budget{
		limits:    l,
		begun:     time.Now(),
		by:        map[usageKey]Spent{},
		kept:      map[*node]kept{},
		meter:     newMeter(),
		committed: make(chan struct{}),
	}
}

const (
	// lastReply is the number of tokens that are kept for the reply to the last call of a node.
	lastReply = 1024
	// keptPart is the part of a limit that is kept for last calls at most: 1 / keptPart.
	keptPart = 4
	// maxLastTime and lastTimePart bound the time that is kept for the last call of a node.
	maxLastTime  = 20 * time.Second
	lastTimePart = 10
)

// kept is what is kept for the last call of a node, in which the model answers from what it has when a limit is
// reached.
type kept struct {
	tokens int64
	cost   float64
}

// keep sets aside what the last call of a node needs, with this input. Other calls, those of child runs among them,
// cannot use it.
func (b *budget) keep(n *node, input int64, info llm.Info) {
	input = b.meter.inputFor(info.Name, input)
	k := kept{input + lastReply, b.meter.costOf(info.Name, paidPrice(info), llm.Usage{Input: input, Output: lastReply})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept[n] = k
}

// release gives back what was kept for a node.
func (b *budget) release(n *node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, n)
}

// keptFor returns the tokens, cost and calls that are kept for last calls of other nodes than n.
//
// Preconditions: b.mu is held.
func (b *budget) keptFor(n *node) (tokens int64, cost float64, calls int64) {
	for other, k := range b.kept {
		if other != n {
			tokens, cost, calls = tokens+k.tokens, cost+k.cost, calls+1
		}
	}
	return min(tokens, *b.limits.Tokens/keptPart), min(cost, *b.limits.Cost/keptPart), min(calls, *b.limits.Calls/keptPart)
}

// paidPrice returns the price of a model, or nil if it costs nothing or the price is unknown.
func paidPrice(info llm.Info) *llm.Price {
	if info.Local {
		return nil
	}
	return info.Price
}

// reservation is what one call may use.
type reservation struct {
	b     *budget
	last  *node     // set for the last call of a node
	input int64     // expected tokens of the prompt
	reply int64     // maximum tokens of the reply
	cost  float64   // of a prompt and a reply of these lengths
	held  llm.Usage // reserved: for one request, and what earlier requests of the call have used. Guarded by b.mu
	done  bool      // guarded by b.mu
}

// reserve reserves the maximum cost of a call with the given tokens of input. If concurrent calls have reserved too
// much, it waits until they end.
func (b *budget) reserve(ctx context.Context, info llm.Info, input int64) (*reservation, error) {
	return b.reserveFor(ctx, nil, info, input)
}

// reserveFor is reserve for the last call of a node, which may use what was kept for it. For other calls, last is nil.
func (b *budget) reserveFor(ctx context.Context, last *node, info llm.Info, input int64) (*reservation, error) {
	wanted := *b.limits.Reply
	if wanted < 0 {
		wanted = or(info.Output, defaultReply)
	}
	if info.Output > 0 {
		wanted = min(wanted, info.Output)
	}
	least := min(wanted, minReply)
	if *b.limits.Cost >= 0 && info.Price == nil && !info.Local {
		return nil, &v1.Error{
			Code:    v1.CodePriceUnknown,
			Op:      "ask " + info.Name,
			Message: "the run has a cost limit, and the price of this model is unknown",
			Remedy:  "set the price of the model in the configuration, or remove the cost limit",
		}
	}
	for {
		r, wait, err := b.tryReserve(last, info, input, wanted, least)
		if err != nil || r != nil {
			return r, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// again extends the reservation before a request is sent again, when all requests of the call so far have used paid.
// Its prompt has the given tokens by our estimate. again returns the error of the limit that does not allow it.
func (r *reservation) again(info llm.Info, input int64, paid llm.Usage) error {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	r.input = b.meter.inputFor(info.Name, input)
	r.cost = b.meter.costOf(info.Name, paidPrice(info), llm.Usage{Input: r.input, Output: r.reply})
	more := llm.Usage{
		Calls: paid.Calls + 1 - r.held.Calls,
		Input: paid.Tokens() + r.input + r.reply - r.held.Input,
		Cost:  paid.Cost + r.cost - r.held.Cost,
	}
	keptTokens, keptCost, keptCalls := b.keptFor(r.last)
	l := b.limits
	switch {
	case reached(b.spent.Calls+b.inFlight+more.Calls-1+keptCalls, l.Calls):
		return exhausted(v1.ReasonCalls, "%d of %d calls are used", b.spent.Calls+paid.Calls, *l.Calls)
	case *l.Tokens >= 0 && b.spent.Tokens()+b.tokens+more.Input+keptTokens > *l.Tokens:
		return exhausted(v1.ReasonTokens, "%d of %d tokens are spent, and to ask again needs at least %d",
			b.spent.Tokens()+paid.Tokens(), *l.Tokens, r.input+r.reply)
	case *l.Cost >= 0 && b.spent.Cost+b.cost+more.Cost+keptCost > *l.Cost:
		return exhausted(v1.ReasonCost, "$%.4f of $%.4f are spent, and to ask again needs more than the rest",
			b.spent.Cost+paid.Cost, *l.Cost)
	}
	r.hold(more)
	return nil
}

// hold adds to what is reserved. Tokens are counted as input.
//
// Preconditions: r.b.mu is held.
func (r *reservation) hold(more llm.Usage) {
	r.held = r.held.Add(more)
	r.b.tokens += more.Input
	r.b.cost += more.Cost
	r.b.inFlight += more.Calls
}

// tryReserve returns a reservation, or a channel to wait for if a call in flight may free enough, or the error of the
// limit that is reached.
func (b *budget) tryReserve(
	last *node, info llm.Info, input, wanted, least int64,
) (*reservation, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	input = b.meter.inputFor(info.Name, input)
	keptTokens, keptCost, keptCalls := b.keptFor(last)
	if reached(v1.Duration(time.Since(b.begun)), b.limits.Time) {
		return nil, nil, exhausted(v1.ReasonTime, "the limit is %s", b.limits.Time.Std())
	}
	if reached(b.spent.Calls+b.inFlight+keptCalls, b.limits.Calls) {
		// A call in flight that does not reach the provider does not count.
		if b.inFlight > 0 && b.spent.Calls+keptCalls < *b.limits.Calls {
			return nil, b.committed, nil
		}
		return nil, nil, exhausted(v1.ReasonCalls, "%d of %d calls are used", b.spent.Calls, *b.limits.Calls)
	}
	reply, short := wanted, Reason("")
	if *b.limits.Tokens >= 0 {
		left := *b.limits.Tokens - b.spent.Tokens() - b.tokens - keptTokens - input
		if left < reply {
			// Reserve half of the rest, so that concurrent calls can reserve some of it.
			reply = max(least, left/2)
		}
		if left < least {
			short = v1.ReasonTokens
		}
	}
	price := paidPrice(info)
	cost := func(u llm.Usage) float64 { return b.meter.costOf(info.Name, price, u) }
	if *b.limits.Cost >= 0 && price != nil {
		prompt := cost(llm.Usage{Input: input})
		left := *b.limits.Cost - b.spent.Cost - b.cost - keptCost - prompt
		each := (cost(llm.Usage{Input: input, Output: reply}) - prompt) / float64(reply)
		if afford := left / max(each, 1e-18); afford < float64(reply) {
			reply = max(least, int64(afford)/2)
			if afford < float64(least) {
				short = v1.ReasonCost
			}
		}
	}
	if *b.limits.Cost == 0 && !info.Local {
		short = v1.ReasonCost
	}
	if short != "" {
		if b.inFlight > 0 {
			return nil, b.committed, nil
		}
		if short == v1.ReasonCost {
			return nil, nil, exhausted(short, "$%.4f of $%.4f are spent, and the next call needs more than the rest",
				b.spent.Cost, *b.limits.Cost)
		}
		return nil, nil, exhausted(short, "%d of %d tokens are spent, and the next call needs at least %d",
			b.spent.Tokens(), *b.limits.Tokens, input+least)
	}
	r := &reservation{b: b, last: last, input: input, reply: reply, cost: cost(llm.Usage{Input: input, Output: reply})}
	r.hold(llm.Usage{Calls: 1, Input: input + reply, Cost: r.cost})
	return r, nil, nil
}

// commit replaces the reservation by the actual usage of the call. The usage is zero if the call did not reach its
// provider.
func (r *reservation) commit(model string, depth int, u llm.Usage) {
	r.commitAll(map[string]llm.Usage{model: u}, depth)
}

// commitAll is commit for a call of several models.
func (r *reservation) commitAll(by map[string]llm.Usage, depth int) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.done {
		return
	}
	r.done = true
	r.hold(llm.Usage{Calls: -r.held.Calls, Input: -r.held.Input, Cost: -r.held.Cost})
	for model, u := range by {
		b.add(model, depth, u)
		if b.whole != nil {
			b.whole.credit(model, depth, u)
		}
	}
	close(b.committed)
	b.committed = make(chan struct{})
}

// add adds usage.
//
// Preconditions: b.mu is held.
func (b *budget) add(model string, depth int, u llm.Usage) {
	if u == (llm.Usage{}) {
		return
	}
	b.spent = b.spent.Add(u)
	k := usageKey{model, depth}
	s := b.by[k]
	b.by[k] = Spent{Model: model, Depth: depth, Usage: s.Add(u)}
}

// credit adds usage without a reservation.
func (b *budget) credit(model string, depth int, u llm.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(model, depth, u)
	if b.whole != nil {
		b.whole.credit(model, depth, u)
	}
}

// useCPU adds the CPU time of a cell. It returns an error if the limit is exceeded.
func (b *budget) useCPU(d time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cpu += d
	if limit := b.limits.CPU.Std(); limit >= 0 && b.cpu > limit {
		return exhausted(v1.ReasonCPU, "cells used %s of %s", b.cpu.Round(time.Millisecond), limit)
	}
	return nil
}

// Remaining is what remains of a budget. A field is nil if there is no such limit.
type Remaining struct {
	Tokens  *int64   `json:"tokens,omitempty"`
	Cost    *float64 `json:"cost_usd,omitempty"`
	Seconds *float64 `json:"seconds,omitempty"`
	Calls   *int64   `json:"calls,omitempty"`
	CPU     *float64 `json:"cell_cpu_seconds,omitempty"`
	Depth   *int     `json:"depth,omitempty"`
	Turns   *int     `json:"turns,omitempty"`
}

// remaining returns what is neither spent nor reserved.
func (b *budget) remaining() Remaining {
	b.mu.Lock()
	defer b.mu.Unlock()
	var l Remaining
	if *b.limits.Tokens >= 0 {
		l.Tokens = new(max(0, *b.limits.Tokens-b.spent.Tokens()-b.tokens))
	}
	if *b.limits.Cost >= 0 {
		l.Cost = new(max(0, *b.limits.Cost-b.spent.Cost-b.cost))
	}
	if limit := b.limits.Time.Std(); limit >= 0 {
		l.Seconds = new(max(0, (limit - time.Since(b.begun)).Seconds()))
	}
	if *b.limits.Calls >= 0 {
		l.Calls = new(max(0, *b.limits.Calls-b.spent.Calls-b.inFlight))
	}
	if limit := b.limits.CPU.Std(); limit >= 0 {
		l.CPU = new(max(0, (limit - b.cpu).Seconds()))
	}
	return l
}

// usage returns the total usage, and the usage of each model at each depth.
func (b *budget) usage() (llm.Usage, []Spent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent, sortSpent(slices.AppendSeq([]Spent{}, maps.Values(b.by)))
}

// sortSpent sorts s by depth, then by name, and returns it.
func sortSpent(s []Spent) []Spent {
	slices.SortFunc(s, func(a, b Spent) int {
		return cmp.Or(cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.Model, b.Model))
	})
	return s
}

// String returns the remaining budget as the model reads it.
func (l Remaining) String() string {
	var parts []string
	add := func(format string, value any) { parts = append(parts, fmt.Sprintf(format, value)) }
	if l.Turns != nil {
		add("%d turns", *l.Turns)
	}
	if l.Tokens != nil {
		add("%d tokens", *l.Tokens)
	}
	if l.Cost != nil {
		add("$%.4f", *l.Cost)
	}
	if l.Seconds != nil {
		add("%.0f s", *l.Seconds)
	}
	if l.Calls != nil {
		add("%d model calls", *l.Calls)
	}
	if l.CPU != nil {
		add("%.1f s of CPU time for code", *l.CPU)
	}
	if len(parts) == 0 {
		return "all you need, nothing is limited"
	}
	return strings.Join(parts, ", ")
}
