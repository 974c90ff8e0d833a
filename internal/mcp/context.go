package mcp

import "fmt"

type contextArgs struct {
	sessionArg
	contextFields
}

type contextFields struct {
	Action string  `json:"action" enum:"get,set,list,delete" doc:"action to perform"`
	Key    string  `json:"key,omitempty" doc:"name of the variable; for get, set and delete"`
	Value  *string `json:"value,omitempty" doc:"value of the variable; for set"`
}

type contextResult struct {
	Session   string            `json:"session"`
	Action    string            `json:"action"`
	Key       string            `json:"key,omitempty"`
	Value     *string           `json:"value,omitempty"`
	Variables map[string]string `json:"variables,omitempty" doc:"all variables; result of list"`
}

func (srv *mcpServer) addContext() {
	add(srv, tool{
		name:        "context",
		title:       "Variables of the session",
		idempotent:  true,
		destructive: true,
		description: "Get, set, list or delete named texts that are stored with the session, outside of the sandbox. " +
			"They outlive restores and restarts of the interpreter.",
	}, (*call).vars)
}

func (c *call) vars(in contextArgs) (contextResult, error) {
	out := contextResult{Action: in.Action, Key: in.Key}
	if in.Action != "list" && in.Key == "" {
		return out, invalid("%s needs a key", in.Action)
	}
	if in.Action == "set" && in.Value == nil {
		return out, invalid("set needs a value")
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return out, err
	}
	out.Session = s.Name()
	switch in.Action {
	case "get":
		v, err := s.Var(c, in.Key)
		out.Value = &v
		return out, err
	case "set":
		out.Value = in.Value
		return out, s.SetVar(c, in.Key, *in.Value)
	case "delete":
		return out, s.DeleteVar(c, in.Key)
	case "list":
		out.Variables, err = s.Vars(c)
		return out, err
	}
	return out, fmt.Errorf("invalid action %q", in.Action) // unreachable: the schema allows no other
}
