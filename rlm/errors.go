package rlm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// limitError reports which limit of the run was reached.
type limitError struct {
	reason Reason
	text   string
}

func (e *limitError) Error() string { return e.text }

// exhausted returns the error that a limit was reached. Its remedy names the flag of the limit, if there is one.
func exhausted(reason Reason, format string, args ...any) error {
	e := &v1.Error{
		Code:    v1.CodeBudget,
		Op:      "spend",
		Message: "the budget for " + string(reason) + " is used up",
		Err:     &limitError{reason, fmt.Sprintf(format, args...)},
	}
	if flag := v1.LimitFlag(reason); flag != "" {
		e.Remedy = "resume the run with a higher limit (--" + flag + ")"
	}
	return e
}

// reasonOf returns the Reason of a run that failed with err.
func reasonOf(err error) Reason {
	if l, ok := errors.AsType[*limitError](err); ok {
		return l.reason
	}
	code := v1.CodeOf(err)
	if strings.HasPrefix(string(code), "model_") { // the codes of package llm
		return v1.ReasonModel
	}
	switch code {
	case v1.CodeWindow, v1.CodePriceUnknown, v1.CodeNotRecorded:
		return v1.ReasonModel
	case v1.CodeContextMissing, v1.CodeContextEmpty, v1.CodeContextBinary, v1.CodeContextUnread, v1.CodeContextChanged:
		return v1.ReasonContext
	case v1.CodeInternal:
		return v1.ReasonInternal
	}
	if errors.Is(err, context.Canceled) {
		return v1.ReasonCancelled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return v1.ReasonTime
	}
	return v1.ReasonSandbox
}
