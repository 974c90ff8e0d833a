package llm

import (
	"context"
	"errors"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// fallback calls its models in order until one answers.
type fallback struct {
	models []Model
	info   Info
}

// Fallback returns a model that calls first, and after a failure the next of others. A call is not repeated with
// another model if it was cancelled, if the request is invalid, or if Request.Delta has received a part of the reply.
//
// The model has the name of first, the highest prices and the smallest window of all, so that a prompt fits each of
// them and no model costs more. Its price is unknown if one of the prices is. Reply.Model is the model that answered.
func Fallback(first Model, others ...Model) Model {
	if len(others) == 0 {
		return first
	}
	f := &fallback{models: append([]Model{first}, others...), info: first.Info()}
	for _, m := range others {
		info := m.Info()
		f.info.Window, f.info.Output = min(f.info.Window, info.Window), min(f.info.Output, info.Output)
		f.info.Price = f.info.highestPrice(info)
		f.info.Local = f.info.Local && info.Local
	}
	return f
}

// highestPrice returns a price that is not below the price of either model; nil: one of them is unknown.
func (i Info) highestPrice(other Info) *Price {
	switch {
	case other.Local:
		return i.Price
	case i.Local:
		return other.Price
	case i.Price == nil || other.Price == nil:
		return nil
	}
	a, b := *i.Price, *other.Price
	p := Price{max(a.Input, b.Input), max(a.CachedInput, b.CachedInput), max(a.Output, b.Output), nil}
	for _, l := range []*LongPrice{a.Long, b.Long} {
		if l == nil {
			continue
		}
		if p.Long == nil {
			p.Long = &LongPrice{l.Above, p.Input, p.CachedInput, p.Output}
		}
		p.Long.Above = min(p.Long.Above, l.Above)
		p.Long.Input = max(p.Long.Input, l.Input)
		p.Long.CachedInput = max(p.Long.CachedInput, l.CachedInput)
		p.Long.Output = max(p.Long.Output, l.Output)
	}
	return &p
}

// Names returns the names of the models that may answer for m, in the order in which they are called.
func Names(m Model) []string {
	f, ok := m.(*fallback)
	if !ok {
		return []string{m.Info().Name}
	}
	var names []string
	for _, m := range f.models {
		names = append(names, Names(m)...)
	}
	return names
}

// Info implements Model.
func (f *fallback) Info() Info { return f.info }

// Count implements Model. It returns the largest estimate of all models.
func (f *fallback) Count(text string) int64 {
	var n int64
	for _, m := range f.models {
		n = max(n, m.Count(text))
	}
	return n
}

// Complete implements Model.
func (f *fallback) Complete(ctx context.Context, req Request) (*Reply, error) {
	delivered := false
	if delta := req.Delta; delta != nil {
		req.Delta = func(text string) bool {
			delivered = true
			return delta(text)
		}
	}
	var spent Usage
	whole := req // whose Repeat gets the usage of all models
	if req.Repeat != nil {
		req.Repeat = func(paid Usage) bool { return whole.Repeat(spent.Add(paid)) }
	}
	var failures []error
	by := map[string]Usage{}
	for _, m := range f.models {
		reply, err := m.Complete(ctx, req)
		if reply != nil {
			used := reply.By // set if m is a fallback list
			if len(used) == 0 && reply.Usage != (Usage{}) {
				used = map[string]Usage{m.Info().Name: reply.Usage}
			}
			for name, u := range used {
				by[name] = by[name].Add(u)
			}
			spent = spent.Add(reply.Usage)
			reply.Usage = spent
			if len(by) > 1 {
				reply.By = by
			}
		}
		if err == nil {
			return reply, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil || !mayFallBack(err) || !mayRepeat(whole, spent, delivered) {
			if reply == nil && spent != (Usage{}) {
				reply = &Reply{Model: m.Info().Name, Finish: FinishCut, Usage: spent, By: by}
			}
			return reply, err
		}
		delivered = false
	}
	var paid *Reply
	if spent != (Usage{}) {
		paid = &Reply{Model: f.info.Name, Finish: FinishCut, Usage: spent, By: by}
	}
	return paid, allFailed(failures)
}

// mayFallBack reports whether another model may succeed after this error.
func mayFallBack(err error) bool {
	switch v1.CodeOf(err) {
	case v1.CodeCancelled, v1.CodeInvalidRequest:
		return false
	}
	return true
}

// allFailed returns the error of a call that no model answered. It has the code, operation and remedy of the first
// error and the messages of all.
func allFailed(failures []error) error {
	first := &v1.Error{Code: v1.CodeOf(failures[0])}
	if e, ok := errors.AsType[*v1.Error](failures[0]); ok {
		first.Op, first.Remedy = e.Op, e.Remedy
	}
	messages := make([]string, 0, len(failures))
	for _, err := range failures {
		messages = append(messages, err.Error())
		first.Retry = first.Retry || retryable(err)
	}
	first.Message = "all models of the fallback list failed: " + strings.Join(messages, "; then ")
	return first
}
