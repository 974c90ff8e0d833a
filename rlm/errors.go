package rlm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package's errors.
const (
	CodeNoModel        sandbox.Code = llm.CodeNoModel    // no model is configured, or not the one that was asked for
	CodeModelFailed    sandbox.Code = "model_failed"     // a model could not be asked
	CodeWindow         sandbox.Code = "window_exceeded"  // a prompt is larger than the model's window
	CodeBudget         sandbox.Code = "budget_exhausted" // a limit of the whole tree was reached
	CodeDepth          sandbox.Code = "depth_exceeded"   // sub-calls are not allowed here
	CodePriceUnknown   sandbox.Code = "price_unknown"    // money is limited, and a model has no price
	CodeNoAnswer       sandbox.Code = "no_answer"        // the run ended without an answer
	CodeInvalidSchema  sandbox.Code = "invalid_schema"   // the schema for answers is none
	CodeAnswerRefused  sandbox.Code = "answer_refused"   // an answer does not meet its schema
	CodeContextMissing sandbox.Code = "context_missing"
	CodeContextEmpty   sandbox.Code = "context_empty"
	CodeContextBinary  sandbox.Code = "context_binary"
	CodeContextUnread  sandbox.Code = "context_unreadable"
	CodeContextChanged sandbox.Code = "context_changed" // since the run that is to be resumed
	CodeNotRecorded    sandbox.Code = "not_recorded"    // a replay asks what was not asked before
	CodeToolMissing    sandbox.Code = "tool_missing"    // a run that is resumed had a tool that its engine has not
	CodeRunNotFound    sandbox.Code = "run_not_found"
	CodeRunEnded       sandbox.Code = "run_ended" // there is nothing to resume
)

// Reason is why a run ended. The set is closed.
type Reason string

// The reasons.
const (
	ReasonAnswered  Reason = "answered"  // an answer was handed in
	ReasonTurns     Reason = "turns"     // no turns are left
	ReasonTokens    Reason = "tokens"    // no tokens are left
	ReasonCost      Reason = "cost"      // no money is left
	ReasonTime      Reason = "time"      // no time is left
	ReasonCalls     Reason = "calls"     // no model calls are left
	ReasonCPU       Reason = "cpu"       // cells have used up their CPU time
	ReasonErrors    Reason = "errors"    // too many cells failed in a row
	ReasonFormat    Reason = "format"    // too many replies in a row had nothing to run
	ReasonCancelled Reason = "cancelled" // its caller gave up on it
	ReasonModel     Reason = "model"     // the model could not be asked
	ReasonSandbox   Reason = "sandbox"   // the interpreter broke, or could not be had
	ReasonContext   Reason = "context"   // a context could not be put in
	ReasonInternal  Reason = "internal"  // our own fault
)

// limitError says which limit of the tree was reached.
type limitError struct {
	reason Reason
	text   string
}

func (e *limitError) Error() string { return e.text }

// exhausted is the error of a limit that was reached.
func exhausted(reason Reason, format string, args ...any) error {
	return &sandbox.Error{
		Code: CodeBudget, Op: "spend", Message: "the budget for " + string(reason) + " is used up",
		Remedy: "raise the limit; a run that was kept can be resumed with a higher one", Err: &limitError{reason, fmt.Sprintf(format, args...)},
	}
}

// reasonOf finds why a run that failed with err has ended.
func reasonOf(err error) Reason {
	if l, ok := errors.AsType[*limitError](err); ok {
		return l.reason
	}
	code := sandbox.CodeOf(err)
	if strings.HasPrefix(string(code), "model_") { // those of package llm
		return ReasonModel
	}
	switch code {
	case CodeWindow, CodePriceUnknown, CodeNotRecorded:
		return ReasonModel
	case CodeContextMissing, CodeContextEmpty, CodeContextBinary, CodeContextUnread, CodeContextChanged:
		return ReasonContext
	case sandbox.CodeInternal:
		return ReasonInternal
	}
	if errors.Is(err, context.Canceled) {
		return ReasonCancelled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ReasonTime
	}
	return ReasonSandbox
}
