package mcp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

// approval is the key of the question in a call that waits for a person.
const approval = "approval"

// maxQuestion bounds the code that is shown in a question.
const maxQuestion = 4 << 10

// question makes a question to the client's user of a refusal that a person may lift: nil if there is nothing to ask, or nobody who could
// be asked, or whose answer would count. The call is repeated by the client with the answer, in either era of the protocol.
func (c *call) question(err error) *sdk.CallToolResult {
	e, ok := errors.AsType[*v1.Error](err)
	can := c.req.ClientCapabilities()
	if !ok || e.Code != v1.CodeGateRefused || can == nil || can.Elicitation == nil {
		return nil
	}
	srv, err := c.client.Server(c)
	if err != nil || srv.Scope != "admin" { // only they may grant
		return nil
	}
	pending, err := c.client.Approvals(c, v1.ApprovalPending)
	if err != nil {
		return nil
	}
	for _, a := range pending {
		if !strings.Contains(e.Remedy, a.ID) {
			continue
		}
		code := a.Request.Text()
		if len(code) > maxQuestion {
			code = strings.ToValidUTF8(code[:maxQuestion], "") + "\n…"
		}
		return &sdk.CallToolResult{
			RequestState: a.ID,
			InputRequests: sdk.InputRequestMap{approval: &sdk.ElicitParams{
				Message: fmt.Sprintf("The gate asks whether this code may run once in session %s.\n\n%s\n\n%s", a.Request.Session, e.Message, code),
				RequestedSchema: &jsonschema.Schema{
					Type: "object", Required: []string{"allow"},
					Properties: map[string]*jsonschema.Schema{
						"allow": {Type: "boolean", Title: "Let it run", Description: "yes lets exactly this code run once"},
						"note":  {Type: "string", Title: "Note", Description: "for the audit log"},
					},
				},
			}},
		}
	}
	return nil
}

// answer hands a person's answer to the gate. With an error the call must not go on.
func (c *call) answer() error {
	res, ok := c.req.Params.InputResponses[approval].(*sdk.ElicitResult)
	if !ok {
		return nil
	}
	allow, _ := res.Content["allow"].(bool)
	note, _ := res.Content["note"].(string)
	grant := res.Action == "accept" && allow
	if _, err := c.client.Resolve(c, c.req.Params.RequestState, client.Answer{Grant: grant, Note: note}); err != nil {
		return err
	}
	if !grant {
		return &v1.Error{Code: v1.CodeGateRefused, Op: "judge code", Message: "the user did not allow this code", Remedy: "do it another way, or ask the user what they would allow"}
	}
	return nil
}
