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

// approvalKey is the key of the question in the input requests of a call.
const approvalKey = "approval"

// maxShownCode is how many bytes of the code are shown in a question.
const maxShownCode = 4 << 10

// approvalRequest returns a result that asks the client's user for an approval, if err is a refusal of the gate that an
// approval can lift. It returns nil if err is another error, if the client cannot ask its user, or if the caller may
// not approve. The client repeats the call with the answer, in all versions of the protocol.
func (c *call) approvalRequest(err error) *sdk.CallToolResult {
	e, ok := errors.AsType[*v1.Error](err)
	can := c.req.ClientCapabilities()
	if !ok || e.Code != v1.CodeGateRefused || can == nil || can.Elicitation == nil {
		return nil
	}
	srv, err := c.client.Server(c)
	if err != nil || srv.Scope != "admin" { // only this scope may approve
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
		if len(code) > maxShownCode {
			code = strings.ToValidUTF8(code[:maxShownCode], "") + "\n…"
		}
		return &sdk.CallToolResult{
			RequestState: a.ID,
			InputRequests: sdk.InputRequestMap{approvalKey: &sdk.ElicitParams{
				Message: fmt.Sprintf("May this code run once in session %s? The gate requires an approval.\n\n%s\n\n%s",
					a.Request.Session, e.Message, code),
				RequestedSchema: &jsonschema.Schema{
					Type: "object", Required: []string{"allow"},
					Properties: map[string]*jsonschema.Schema{
						"allow": {Type: "boolean", Title: "Allow", Description: "yes: exactly this code may run once"},
						"note":  {Type: "string", Title: "Note", Description: "for the audit log"},
					},
				},
			}},
		}
	}
	return nil
}

// resolveApproval sends the user's answer to the gate, if the call contains one. It returns an error if the code must
// not run.
func (c *call) resolveApproval() error {
	res, ok := c.req.Params.InputResponses[approvalKey].(*sdk.ElicitResult)
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
		return &v1.Error{
			Code:    v1.CodeGateRefused,
			Op:      "judge code",
			Message: "the user did not allow this code",
			Remedy:  "use another way, or ask the user what they would allow",
		}
	}
	return nil
}
