package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func invalid(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read arguments", Message: fmt.Sprintf(format, args...)}
}

// forModel returns an error whose text is for models: the code, the message, the remedy, and whether a retry can help.
// The SDK turns it into a result, not into an error of the protocol, because clients show only results to models.
func forModel(err error) error { return &modelError{err} }

type modelError struct{ error }

// Unwrap returns the original error.
func (t *modelError) Unwrap() error { return t.error }

// Error implements error.
func (t *modelError) Error() string {
	e, ok := errors.AsType[*v1.Error](v1.ForModel(t.error))
	switch {
	case ok && e.Retry:
		return fmt.Sprintf("%s: %s; a retry may help", e.Code, e)
	case ok:
		return fmt.Sprintf("%s: %s", e.Code, e)
	case errors.Is(t.error, context.Canceled):
		return string(v1.CodeCancelled) + ": the call was cancelled"
	}
	return t.error.Error()
}

// maxErrorText is the maximum size of an error text in bytes. The SDK quotes invalid arguments, which can be large.
const maxErrorText = 4 << 10

// shortenErrors is a middleware that shortens long error texts.
func shortenErrors(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if wire, ok := errors.AsType[*jsonrpc.Error](err); ok && len(wire.Message) > maxErrorText {
			short := *wire
			short.Message = shorten(wire.Message)
			return res, &short
		}
		if r, ok := res.(*sdk.CallToolResult); ok && r != nil && r.IsError && r.StructuredContent == nil {
			for _, c := range r.Content {
				if t, ok := c.(*sdk.TextContent); ok {
					t.Text = shorten(t.Text)
				}
			}
		}
		return res, err
	}
}

// shorten returns the beginning and the end of a long text.
func shorten(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText/2]+" … "+s[len(s)-maxErrorText/2:], "")
}
