package llm

import (
	"context"
	"errors"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// fallback asks one model after the other until one answers.
type fallback struct {
	models []Model
	info   Info
}

// Fallback makes one model of several: the first is asked, and when it fails in a way that another one may not, the next. A call
// that was given up, a request that is wrong, and a reply of which something was already heard are not tried again.
// It has the name and price of the first and the smallest window of all, so that a prompt fits whoever answers; Reply.Model says who did.
func Fallback(first Model, others ...Model) Model {
	if len(others) == 0 {
		return first
	}
	f := &fallback{models: append([]Model{first}, others...), info: first.Info()}
	for _, m := range others {
		info := m.Info()
		f.info.Window, f.info.Output = min(f.info.Window, info.Window), min(f.info.Output, info.Output)
		f.info.Local = f.info.Local && info.Local
	}
	return f
}

// Names gives the models that may answer for this one, in the order in which they are asked.
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

// Count implements Model: the largest estimate.
func (f *fallback) Count(text string) int64 {
	var n int64
	for _, m := range f.models {
		n = max(n, m.Count(text))
	}
	return n
}

// Complete implements Model.
func (f *fallback) Complete(ctx context.Context, req Request) (*Reply, error) {
	heard := false
	if listener := req.Delta; listener != nil {
		req.Delta = func(text string) bool {
			heard = true
			return listener(text)
		}
	}
	var spent Usage
	var failures []error
	for _, m := range f.models {
		reply, err := m.Complete(ctx, req)
		if reply != nil {
			spent = spent.Add(reply.Usage)
			reply.Usage = spent
		}
		if err == nil {
			return reply, nil
		}
		failures = append(failures, err)
		if heard || ctx.Err() != nil || !passesOn(err) {
			if reply == nil && spent != (Usage{}) {
				reply = &Reply{Model: m.Info().Name, Finish: FinishCut, Usage: spent}
			}
			return reply, err
		}
	}
	var paid *Reply
	if spent != (Usage{}) {
		paid = &Reply{Model: f.info.Name, Finish: FinishCut, Usage: spent}
	}
	return paid, allFailed(failures)
}

// passesOn tells whether another model may succeed where one failed.
func passesOn(err error) bool {
	switch v1.CodeOf(err) {
	case v1.CodeCancelled, v1.CodeInvalidRequest:
		return false
	}
	return true
}

// allFailed is the error when no model answered: the first one's, with what the others said.
func allFailed(failures []error) error {
	first := &v1.Error{Code: v1.CodeOf(failures[0])}
	if e, ok := errors.AsType[*v1.Error](failures[0]); ok {
		first.Op, first.Remedy = e.Op, e.Remedy
	}
	said := make([]string, 0, len(failures))
	for _, err := range failures {
		said = append(said, err.Error())
		first.Retry = first.Retry || retryable(err)
	}
	first.Message = "every model of the fall-back list failed: " + strings.Join(said, "; then ")
	return first
}
