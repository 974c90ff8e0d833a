package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// Codes of this package, beside those that come from the server.
const (
	CodeSessionNeeded sandbox.Code = "session_argument_needed" // the connection has no session of its own
	CodeNoModel                    = llm.CodeNoModel
	CodeOrigin        sandbox.Code = "origin_refused"
	CodeSampling      sandbox.Code = "sampling_failed"
)

func invalid(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "read arguments", Message: fmt.Sprintf(format, args...)}
}

// failed tells a model what went wrong: the code first, then what happened, what to do, and whether trying again can help. A failed
// tool is a result, not an error of the protocol, because only results are shown to models.
func failed(err error) *sdk.CallToolResult {
	var b strings.Builder
	e, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case ok:
		fmt.Fprintf(&b, "%s: %s", e.Code, e.Error())
		if e.Retry {
			b.WriteString("; trying again may help")
		}
	case errors.Is(err, context.Canceled):
		b.WriteString(string(sandbox.CodeCancelled) + ": given up")
	default:
		b.WriteString(err.Error())
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: b.String()}}}
}
