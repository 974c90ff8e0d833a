package mcp

import (
	"errors"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// The tools of terraphim by their own names and parameters, for prompts and agents that were written for them. Each parameter does
// what its name says.

type terraphimSession struct {
	Session string `json:"session_id,omitempty" jsonschema:"name of the session; left out: the one of this connection"`
}

type terraphimCode struct {
	terraphimSession
	Code    string `json:"code" jsonschema:"Python to run"`
	Timeout int64  `json:"timeout_ms,omitempty" jsonschema:"milliseconds it may take"`
}

type terraphimBash struct {
	terraphimSession
	Command string `json:"command" jsonschema:"script for bash"`
	Timeout int64  `json:"timeout_ms,omitempty" jsonschema:"milliseconds it may take"`
	Dir     string `json:"working_dir,omitempty" jsonschema:"directory to run in, relative to the home directory"`
}

type terraphimQuery struct {
	terraphimSession
	Prompt      string   `json:"prompt" jsonschema:"what to ask the model"`
	Model       string   `json:"model,omitempty" jsonschema:"the model that is wanted"`
	Temperature *float64 `json:"temperature,omitempty"`
	MaxTokens   int64    `json:"max_tokens,omitempty" jsonschema:"of the reply"`
}

type terraphimReply struct {
	Response  string `json:"response"`
	Tokens    int64  `json:"tokens_used"`
	Estimated bool   `json:"estimated" jsonschema:"the tokens were not told but estimated"`
	Model     string `json:"model"`
}

type terraphimContext struct {
	terraphimSession
	Action string  `json:"action"`
	Key    string  `json:"key,omitempty"`
	Value  *string `json:"value,omitempty"`
}

type terraphimSnapshot struct {
	terraphimSession
	Action string `json:"action"`
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

// skill is what mcp_search_skills searches.
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

func (f *face) addTerraphim() {
	limited := func(in *jsonschema.Schema) { between(in, "timeout_ms", 0, float64(maxTimeout.Milliseconds())) }
	add(f, tool{name: "rlm_code", title: "Run Python", destructive: true, description: "The same as run_code.", shape: limited},
		func(c *call, in terraphimCode) (*sdk.CallToolResult, outcome, error) {
			return c.cell(in.Session, sandbox.Cell{Code: in.Code, RunOptions: sandbox.RunOptions{Timeout: milliseconds(in.Timeout)}})
		})
	add(f, tool{name: "rlm_bash", title: "Run a shell command", destructive: true, description: "The same as run_bash.", shape: limited},
		func(c *call, in terraphimBash) (*sdk.CallToolResult, outcome, error) {
			return c.command(in.Session, sandbox.Command{Shell: in.Command, Dir: below(in.Dir), RunOptions: sandbox.RunOptions{Timeout: milliseconds(in.Timeout)}})
		})
	add(f, tool{
		name: "rlm_query", title: "Ask a model", description: "Ask a model one thing, without code: one of the server's, or the client's own where it lends it. For a question over a large text use query.",
		shape: func(in *jsonschema.Schema) {
			between(in, "temperature", 0, 2)
			between(in, "max_tokens", 0, 1<<31)
		},
	}, func(c *call, in terraphimQuery) (*sdk.CallToolResult, terraphimReply, error) { return c.ask(in) })
	add(f, tool{
		name: "rlm_context", title: "Notes of the session", idempotent: true, destructive: true, description: "The same as context.",
		shape: func(in *jsonschema.Schema) { enum(in, "action", "get", "set", "list", "delete") },
	}, func(c *call, in terraphimContext) (*sdk.CallToolResult, contextResult, error) {
		return c.vars(contextArgs{where: where{in.Session}, Action: in.Action, Key: in.Key, Value: in.Value})
	})
	add(f, tool{
		name: "rlm_snapshot", title: "Snapshots", destructive: true, description: "The same as snapshot, without fork.",
		shape: func(in *jsonschema.Schema) { enum(in, "action", "create", "restore", "list", "delete") },
	}, func(c *call, in terraphimSnapshot) (*sdk.CallToolResult, snapshotResult, error) {
		return c.snapshot(snapshotArgs{where: where{in.Session}, Action: in.Action, Name: in.Name})
	})
	add(f, tool{name: "rlm_status", title: "Status of the session", readOnly: true, idempotent: true, description: "The same as status."},
		func(c *call, in terraphimStatus) (*sdk.CallToolResult, statusResult, error) {
			out, err := c.status(statusArgs{where: where{in.Session}, History: in.History})
			return nil, out, err
		})
	add(f, tool{name: "mcp_search_tools", title: "Search tools", readOnly: true, idempotent: true, description: "Find tools by words among those given."},
		func(_ *call, in terraphimTools) (*sdk.CallToolResult, searchResult, error) {
			found := search(in.Query, in.Tools, func(e entry) []string { return append([]string{e.Name, e.Description}, e.Tags...) })
			return nil, searchResult{Query: in.Query, Count: len(found), Tools: found}, nil
		})
	add(f, tool{name: "mcp_search_skills", title: "Search skills", readOnly: true, idempotent: true, description: "Find skills by words among those given."},
		func(_ *call, in terraphimSkills) (*sdk.CallToolResult, skillsResult, error) {
			found := search(in.Query, in.Skills, func(s skill) []string { return append([]string{s.Name, s.Description}, s.Tags...) })
			return nil, skillsResult{Query: in.Query, Count: len(found), Skills: found}, nil
		})
}

// ask asks a model one thing: one of the server's, or where it has none the client's own. The session does not matter to it but as one
// that the caller may use.
func (c *call) ask(in terraphimQuery) (*sdk.CallToolResult, terraphimReply, error) {
	if in.Session != "" {
		if _, _, err := c.open(in.Session); err != nil {
			return nil, terraphimReply{}, err
		}
	}
	p := c.progress("waiting for the model")
	defer p.stop()
	req := llm.Request{Messages: []llm.Message{{Role: llm.User, Content: in.Prompt}}, MaxTokens: in.MaxTokens, Temperature: in.Temperature}
	r, err := c.client.Complete(c, in.Model, req)
	if noModelThere(err) {
		m, none := c.sampler(in.Model)
		if none != nil {
			return nil, terraphimReply{}, errors.Join(none, err)
		}
		r, err = m.Complete(c, req)
	}
	if err != nil {
		return nil, terraphimReply{}, err
	}
	out := terraphimReply{Response: r.Text, Tokens: r.Usage.Tokens(), Estimated: r.Usage.Estimated, Model: r.Model}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Text}}}, out, nil
}
