package mcp

import (
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

type contextArgs struct {
	where
	Action string  `json:"action" jsonschema:"what to do"`
	Key    string  `json:"key,omitempty" jsonschema:"name of the variable; for get, set and delete"`
	Value  *string `json:"value,omitempty" jsonschema:"its value; for set"`
}

type contextResult struct {
	Session   string            `json:"session"`
	Action    string            `json:"action"`
	Key       string            `json:"key,omitempty"`
	Value     *string           `json:"value,omitempty"`
	Variables map[string]string `json:"variables,omitempty" jsonschema:"all of them; of list"`
}

func (f *face) addContext() {
	add(f, tool{
		name: "context", title: "Notes of the session", idempotent: true, destructive: true,
		description: "Get, set, list or delete named texts that are kept with the session, outside of the sandbox: they outlive restores, and a restarted interpreter.",
		shape:       func(in *jsonschema.Schema) { enum(in, "action", "get", "set", "list", "delete") },
	}, func(c *call, in contextArgs) (*sdk.CallToolResult, contextResult, error) { return c.vars(in) })
}

func (c *call) vars(in contextArgs) (*sdk.CallToolResult, contextResult, error) {
	out := contextResult{Action: in.Action, Key: in.Key}
	if in.Action != "list" && in.Key == "" {
		return nil, out, invalid("%s needs a key", in.Action)
	}
	if in.Action == "set" && in.Value == nil {
		return nil, out, invalid("set needs a value")
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return nil, out, err
	}
	out.Session = s.Name()
	switch in.Action {
	case "get":
		v, err := s.Var(c, in.Key)
		out.Value = &v
		return nil, out, err
	case "set":
		out.Value = in.Value
		return nil, out, s.SetVar(c, in.Key, *in.Value)
	case "delete":
		return nil, out, s.DeleteVar(c, in.Key)
	case "list":
		out.Variables, err = s.Vars(c)
		return nil, out, err
	}
	return nil, out, fmt.Errorf("action %q has no meaning", in.Action) // the schema does not let it through
}
