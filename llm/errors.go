package llm

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// retryable tells whether an error says that the same call may succeed later.
func retryable(err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	return ok && e.Retry
}

// cancelled is the error of a call whose context has ended.
func cancelled(ctx context.Context, model string) error {
	return &v1.Error{Code: v1.CodeCancelled, Op: "ask " + model, Message: "the call was given up", Err: context.Cause(ctx)}
}

// check refuses a request that no provider could answer.
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
			return bad("a message has the unknown role " + string(m.Role))
		}
	}
	if req.MaxTokens < 0 {
		return bad("max_tokens is negative")
	}
	for _, s := range req.Stop {
		if s == "" {
			return bad("a stop word is empty")
		}
	}
	if len(req.Schema) > 0 && !json.Valid(req.Schema) {
		return bad("the schema is no JSON")
	}
	return nil
}

// brief makes one short line of a text that somebody else wrote.
func brief(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " ")
	if len(s) <= limit {
		return s
	}
	return cutRunes(s, limit) + "…"
}
