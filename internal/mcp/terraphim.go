package mcp

import (
	"errors"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// The tools with the names and parameters of terraphim's tools, for prompts and agents that were written for them.

type terraphimSession struct {
	Session string `json:"session_id,omitempty" doc:"name of the session; left out: the session of this connection"`
}

type terraphimCode struct {
	terraphimSession
	Code    string `json:"code" doc:"Python code to run"`
	Timeout int64  `json:"timeout_ms,omitempty" doc:"timeout in milliseconds"`
}

type terraphimBash struct {
	terraphimSession
	Command string `json:"command" doc:"bash script to run"`
	Timeout int64  `json:"timeout_ms,omitempty" doc:"timeout in milliseconds"`
	Dir     string `json:"working_dir,omitempty" doc:"directory to run in, relative to the working directory of the sandbox"`
}

type terraphimQuery struct {
	terraphimSession
	Prompt      string   `json:"prompt" doc:"prompt for the model"`
	Model       string   `json:"model,omitempty" doc:"provider/model"`
	Temperature *float64 `json:"temperature,omitempty"`
	MaxTokens   int64    `json:"max_tokens,omitempty" doc:"maximum tokens of the reply"`
}

type terraphimReply struct {
	Response  string `json:"response"`
	Tokens    int64  `json:"tokens_used"`
	Estimated bool   `json:"estimated" doc:"the tokens are estimated, because the provider did not report them"`
	Model     string `json:"model"`
}

type terraphimContext struct {
	terraphimSession
	contextFields
}

type terraphimSnapshot struct {
	terraphimSession
	Action string `json:"action" enum:"create,restore,list,delete"`
	Name   string `json:"snapshot_name,omitempty"`
}

type terraphimStatus struct {
	terraphimSession
	History bool `json:"include_history,omitempty"`
}

type terraphimTools struct {
	Query string  `json:"query"`
	Tools []entry `json:"tools"`
}

// skill is a skill in a search of mcp_search_skills.
type skill struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Version     string   `json:"version,omitempty"`
	Author      string   `json:"author,omitempty"`
	Tags        []string `json:"tags,omitempty"`
}

type terraphimSkills struct {
	Query  string  `json:"query"`
	Skills []skill `json:"skills"`
}

type skillsResult struct {
	Query  string  `json:"query"`
	Count  int     `json:"count"`
	Skills []skill `json:"skills"`
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (srv *mcpServer) addTerraphim() {
	limited := func(in *jsonschema.Schema) { setRange(in, "timeout_ms", 0, float64(maxTimeout.Milliseconds())) }
	add(srv, tool{
		name:        "rlm_code",
		title:       "Run Python",
		destructive: true,
		description: "The same as run_code.",
		shape:       limited,
	},
		func(c *call, in terraphimCode) (outcome, error) {
			return c.cell(in.Session, "", sandbox.Cell{
				Code:       in.Code,
				RunOptions: sandbox.RunOptions{Timeout: milliseconds(in.Timeout)},
			})
		})
	add(srv, tool{
		name:        "rlm_bash",
		title:       "Run a shell command",
		destructive: true,
		description: "The same as run_bash.",
		shape:       limited,
	},
		func(c *call, in terraphimBash) (outcome, error) {
			return c.command(in.Session, "", sandbox.Command{
				Shell:      in.Command,
				Dir:        in.Dir,
				RunOptions: sandbox.RunOptions{Timeout: milliseconds(in.Timeout)},
			})
		})
	add(srv, tool{
		name:  "rlm_query",
		title: "Ask a model",
		description: "Send one prompt to a model, without code: to a model of the server, " +
			"or to the client's own if the client offers it. For a question over a large text use query.",
		shape: func(in *jsonschema.Schema) {
			setRange(in, "temperature", 0, 2)
			setRange(in, "max_tokens", 0, 1<<31)
		},
	}, (*call).ask)
	add(srv, tool{
		name:        "rlm_context",
		title:       "Variables of the session",
		idempotent:  true,
		destructive: true,
		description: "The same as context.",
	},
		func(c *call, in terraphimContext) (contextResult, error) {
			return c.vars(contextArgs{sessionArg{in.Session}, in.contextFields})
		})
	add(srv, tool{
		name:        "rlm_snapshot",
		title:       "Snapshots",
		destructive: true,
		description: "The same as snapshot, without fork.",
	},
		func(c *call, in terraphimSnapshot) (snapshotResult, error) {
			return c.snapshot(snapshotArgs{sessionArg: sessionArg{in.Session}, Action: in.Action, Name: in.Name})
		})
	add(srv, tool{
		name:        "rlm_status",
		title:       "Status of the session",
		readOnly:    true,
		idempotent:  true,
		description: "The same as status.",
	},
		func(c *call, in terraphimStatus) (statusResult, error) {
			return c.status(statusArgs{sessionArg: sessionArg{in.Session}, History: in.History})
		})
	add(srv, tool{
		name:        "mcp_search_tools",
		title:       "Search tools",
		readOnly:    true,
		idempotent:  true,
		description: "Find tools by words among the tools in the arguments.",
	},
		func(_ *call, in terraphimTools) (searchResult, error) {
			found := search(
				in.Query,
				in.Tools,
				func(e entry) []string { return append([]string{e.Name, e.Description}, e.Tags...) },
			)
			return searchResult{Query: in.Query, Count: len(found), Tools: found}, nil
		})
	add(srv, tool{
		name:        "mcp_search_skills",
		title:       "Search skills",
		readOnly:    true,
		idempotent:  true,
		description: "Find skills by words among the skills in the arguments.",
	},
		func(_ *call, in terraphimSkills) (skillsResult, error) {
			found := search(
				in.Query,
				in.Skills,
				func(s skill) []string { return append([]string{s.Name, s.Description}, s.Tags...) },
			)
			return skillsResult{Query: in.Query, Count: len(found), Skills: found}, nil
		})
}

// ask sends one prompt to a model of the server, or to the client's own if the server has none. If the arguments name a
// session, it is opened, but not used.
func (c *call) ask(in terraphimQuery) (terraphimReply, error) {
	if in.Session != "" {
		if _, _, err := c.open(in.Session); err != nil {
			return terraphimReply{}, err
		}
	}
	p := c.progress("waiting for the model")
	defer p.stop()
	req := llm.Request{
		Messages:    []llm.Message{{Role: llm.User, Content: in.Prompt}},
		MaxTokens:   in.MaxTokens,
		Temperature: in.Temperature,
	}
	r, err := c.client.Complete(c, in.Model, req)
	if serverHasNoModel(err) {
		m, none := c.sampler(in.Model)
		if none != nil {
			return terraphimReply{}, errors.Join(none, err)
		}
		r, err = m.Complete(c, req)
	}
	if err != nil {
		return terraphimReply{}, err
	}
	return terraphimReply{Response: r.Text, Tokens: r.Usage.Tokens(), Estimated: r.Usage.Estimated, Model: r.Model}, nil
}

// render returns the text of the reply.
func (r terraphimReply) render() *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Response}}}
}
