package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// retryable reports whether the same call may succeed later.
func retryable(err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	return ok && e.Retry
}

// cancelled returns the error of a call whose ctx has ended.
func cancelled(ctx context.Context, model string) error {
	return &v1.Error{
		Code:    v1.CodeCancelled,
		Op:      "ask " + model,
		Message: "the call was cancelled",
		Err:     context.Cause(ctx),
	}
}

// check returns an error for a request that is invalid for every provider.
func check(model string, req Request) error {
	bad := func(why string) error {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "ask " + model, Message: why}
	}
	if len(req.Messages) == 0 {
		return bad("the request has no messages")
	}
	for _, m := range req.Messages {
		switch m.Role {
		case System, User, Assistant:
		default:
			return bad(fmt.Sprintf("invalid role %q of a message", m.Role))
		}
	}
	if req.MaxTokens < 0 {
		return bad("max_tokens is negative")
	}
	for _, s := range req.Stop {
		if s == "" {
			return bad("empty stop word")
		}
	}
	if len(req.Schema) > 0 && !json.Valid(req.Schema) {
		return bad("the schema is not valid JSON")
	}
	return nil
}

// oneLine returns a text from outside as one line of about limit bytes.
func oneLine(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " ")
	if len(s) <= limit {
		return s
	}
	return cutRunes(s, limit) + "…"
}
