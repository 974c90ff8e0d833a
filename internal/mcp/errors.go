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

// told is an error with a text for models: the code first, then what happened, what to do, and whether trying again can help. The SDK makes a
// result of it, not an error of the protocol, because only results are shown to models.
func told(err error) error { return &tellable{err} }

type tellable struct{ error }

// Unwrap returns the error itself.
func (t *tellable) Unwrap() error { return t.error }

// Error implements error.
func (t *tellable) Error() string {
	e, ok := errors.AsType[*v1.Error](v1.ForModel(t.error))
	switch {
	case ok && e.Retry:
		return fmt.Sprintf("%s: %s; trying again may help", e.Code, e)
	case ok:
		return fmt.Sprintf("%s: %s", e.Code, e)
	case errors.Is(t.error, context.Canceled):
		return string(v1.CodeCancelled) + ": given up"
	}
	return t.error.Error()
}

// maxComplaint bounds the text of an error. The SDK quotes arguments it does not like, however large they are.
const maxComplaint = 4 << 10

// brief keeps complaints short.
func brief(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if wire, ok := errors.AsType[*jsonrpc.Error](err); ok && len(wire.Message) > maxComplaint {
			short := *wire
			short.Message = cut(wire.Message)
			return res, &short
		}
		if r, ok := res.(*sdk.CallToolResult); ok && r != nil && r.IsError && r.StructuredContent == nil {
			for _, c := range r.Content {
				if t, ok := c.(*sdk.TextContent); ok {
					t.Text = cut(t.Text)
				}
			}
		}
		return res, err
	}
}

// cut keeps the beginning and the end of a text.
func cut(s string) string {
	if len(s) <= maxComplaint {
		return s
	}
	return strings.ToValidUTF8(s[:maxComplaint/2]+" … "+s[len(s)-maxComplaint/2:], "")
}
