package llm

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package. An error of a model call is a *sandbox.Error with one of them, or with sandbox.CodeCancelled
// when the caller's context ended, or sandbox.CodeInvalidRequest when the request itself makes no sense.
const (
	CodeNoModel         sandbox.Code = "model_missing"          // none is configured and none was found
	CodeUnknown         sandbox.Code = "model_unknown"          // no such provider or model
	CodeKeyMissing      sandbox.Code = "model_key_missing"      // the provider needs a key and there is none
	CodeKeyRefused      sandbox.Code = "model_key_refused"      // the provider does not take the key
	CodeUnreachable     sandbox.Code = "model_unreachable"      // nobody answers, or the connection broke
	CodeRateLimited     sandbox.Code = "model_rate_limited"     // too many requests or tokens for now
	CodeQuota           sandbox.Code = "model_quota"            // the account has no money left
	CodeOverloaded      sandbox.Code = "model_overloaded"       // the provider fails by its own fault
	CodeContextExceeded sandbox.Code = "model_context_exceeded" // the prompt does not fit into the window
	CodeRefused         sandbox.Code = "model_refused"          // the provider does not take the request
	CodeTimeout         sandbox.Code = "model_timeout"          // our own time limit, not the caller's
	CodeReplyBroken     sandbox.Code = "model_reply_broken"     // the answer is not what the provider's protocol says
	CodeConfig          sandbox.Code = "model_config"           // the configuration makes no sense
	CodeScript          sandbox.Code = "model_script"           // a script has no rule for this, or is wrong
	CodeCassette        sandbox.Code = "model_cassette"         // a recording does not hold what was asked, or is damaged
)

// Sentinels for errors.Is.
var (
	ErrNoModel         = &sandbox.Error{Code: CodeNoModel}
	ErrUnknown         = &sandbox.Error{Code: CodeUnknown}
	ErrKeyMissing      = &sandbox.Error{Code: CodeKeyMissing}
	ErrKeyRefused      = &sandbox.Error{Code: CodeKeyRefused}
	ErrUnreachable     = &sandbox.Error{Code: CodeUnreachable}
	ErrRateLimited     = &sandbox.Error{Code: CodeRateLimited}
	ErrQuota           = &sandbox.Error{Code: CodeQuota}
	ErrOverloaded      = &sandbox.Error{Code: CodeOverloaded}
	ErrContextExceeded = &sandbox.Error{Code: CodeContextExceeded}
	ErrRefused         = &sandbox.Error{Code: CodeRefused}
	ErrTimeout         = &sandbox.Error{Code: CodeTimeout}
	ErrReplyBroken     = &sandbox.Error{Code: CodeReplyBroken}
	ErrConfig          = &sandbox.Error{Code: CodeConfig}
	ErrScript          = &sandbox.Error{Code: CodeScript}
	ErrCassette        = &sandbox.Error{Code: CodeCassette}
)

// retryable tells whether an error says that the same call may succeed later.
func retryable(err error) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Retry
}

// cancelled is the error of a call whose context has ended.
func cancelled(ctx context.Context, model string) error {
	return &sandbox.Error{Code: sandbox.CodeCancelled, Op: "ask " + model, Message: "the call was given up", Err: context.Cause(ctx)}
}

// check refuses a request that no provider could answer.
func check(model string, req Request) error {
	bad := func(why string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "ask " + model, Message: why}
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
