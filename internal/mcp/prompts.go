package mcp

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const howTo = `You have a machine of your own behind these tools, and a question whose material may be far too large to read at once. Work as a recursive language model does:

1. Keep the material out of this conversation. Put it into a file or a variable with files or run_code, and look at its size, its first lines and its structure before anything else.
2. Write code that narrows it down: search, split, count, sample. Print little; what you print is all you see.
3. Where reading is needed, read slices. If the tool query is offered, hand it a question together with the text or the file: it lets a model write such code itself, and call models on the pieces.
4. Keep what you find in variables. They stay from call to call; snapshot keeps them over something risky, and fork tries several ways at once.
5. Check the answer against the material with code before you give it: recount, look the quoted passage up again, test the edge cases.
6. If a call fails, its result says why and what to do next. A time-out keeps files and most often variables; the result says which.`

// addPrompts explains how to work with an RLM.
func (f *face) addPrompts() {
	f.server.AddPrompt(&sdk.Prompt{
		Name: "rlm", Title: "Work over a large text", Description: "How to answer a question over material that is too large to read, with this server's tools.",
		Arguments: []*sdk.PromptArgument{
			{Name: "question", Description: "what is to be answered", Required: true},
			{Name: "material", Description: "where it is: a path in the sandbox, or what it is"},
		},
	}, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		if req.Params.Arguments["question"] == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the argument question is missing: say what is to be answered"}
		}
		var b strings.Builder
		b.WriteString(howTo)
		fmt.Fprintf(&b, "\n\nThe question: %s\n", req.Params.Arguments["question"])
		if m := req.Params.Arguments["material"]; m != "" {
			fmt.Fprintf(&b, "The material: %s\n", m)
		}
		return &sdk.GetPromptResult{
			Description: "How to work over a large text",
			Messages:    []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: b.String()}}},
		}, nil
	})
}
