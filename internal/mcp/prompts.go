package mcp

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// rlmInstructions are sent to the client's model.
const rlmInstructions = `These tools give you your own machine, and you have a question whose material may be far too large to read at once. Work as a recursive language model does:

1. Keep the material out of this conversation. Put it into a file or a variable with files or run_code, and first look at its size, its first lines and its structure.
2. Write code that narrows it down: search, split, count, sample. Print little; what you print is all you see.
3. Where reading is needed, read slices. If the tool query is available, send it a question together with the text or the file: it lets a model write such code itself, and call models on the pieces.
4. Keep what you find in variables. They stay from call to call; take a snapshot before something risky, and use fork to try several ways at once.
5. Check the answer against the material with code before you give it: recount, look up the quoted passage again, test the edge cases.
6. If a call fails, its result states the reason and what to do next. After a timeout files stay, and most often variables; the result states which.`

// addPrompts adds the prompt rlm, which explains how to work over a large text.
func (srv *mcpServer) addPrompts() {
	srv.server.AddPrompt(&sdk.Prompt{
		Name:        "rlm",
		Title:       "Work over a large text",
		Description: "How to answer a question over material that is too large to read, with this server's tools.",
		Arguments: []*sdk.PromptArgument{
			{Name: "question", Description: "question to answer", Required: true},
			{Name: "material", Description: "path of the material in the sandbox, or a description of it"},
		},
	}, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		if req.Params.Arguments["question"] == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "missing argument question"}
		}
		var b strings.Builder
		b.WriteString(rlmInstructions)
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
