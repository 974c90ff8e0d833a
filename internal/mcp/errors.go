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

// Codes of this package, beside those that come from the server.
const (
	CodeSessionNeeded v1.Code = "session_argument_needed" // the connection has no session of its own
	CodeNoModel               = v1.CodeModelMissing
	CodeOrigin        v1.Code = "origin_refused"
	CodeSampling      v1.Code = "sampling_failed"
)

func invalid(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read arguments", Message: fmt.Sprintf(format, args...)}
}

// failed tells a model what went wrong: the code first, then what happened, what to do, and whether trying again can help. A failed
// tool is a result, not an error of the protocol, because only results are shown to models.
func failed(err error) *sdk.CallToolResult {
	var b strings.Builder
	e, ok := errors.AsType[*v1.Error](err)
	switch {
	case ok:
		fmt.Fprintf(&b, "%s: %s", e.Code, e.Error())
		if e.Retry {
			b.WriteString("; trying again may help")
		}
	case errors.Is(err, context.Canceled):
		b.WriteString(string(v1.CodeCancelled) + ": given up")
	default:
		b.WriteString(err.Error())
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: b.String()}}}
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
