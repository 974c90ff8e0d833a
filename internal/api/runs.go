package api

import (
	"encoding/json"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// NewRun asks for a run.
type NewRun struct {
	Query     string            `json:"query" doc:"the question"`
	Contexts  []RunContext      `json:"contexts,omitempty" doc:"what it is about; code finds the first as context, and all as context_0, context_1 and so on"`
	Schema    json.RawMessage   `json:"schema,omitempty" doc:"JSON Schema that the answer must meet"`
	Model     string            `json:"model,omitempty" doc:"provider/model; left out: as the server is configured"`
	SubModels []string          `json:"sub_models,omitempty" doc:"for the calls it makes, by depth"`
	Limits    v1.RunLimits      `json:"limits,omitzero" doc:"what is left out is as configured, which callers over the network cannot exceed"`
	Labels    map[string]string `json:"labels,omitempty"`
	Gate      string            `json:"gate,omitempty" doc:"off, warn or block; left out: as the server is configured. Not with session, which has its own"`
	Role      string            `json:"role,omitempty" doc:"chooses the thesaurus that the gate judges by. Not with session"`
	Session   string            `json:"session,omitempty" doc:"work in this session, whose variables stay; left out: in a sandbox of its own"`
	Host      *RunHost          `json:"host,omitempty" doc:"about the server's machine; only for its own user, on its socket. Not with session"`
}

// RunHost is what a run may ask of the server's machine. Only the user of that machine may give it, over the server's own socket. What is left out is
// as the server is configured.
type RunHost struct {
	Spec             *sandbox.Spec `json:"spec,omitempty" doc:"of its sandboxes; limits that are left out are as configured"`
	Backends         []string      `json:"backends,omitempty" doc:"the first of these that works"`
	MinIsolation     string        `json:"min_isolation,omitempty" enum:"none,container,kernel,vm" doc:"refuse anything weaker"`
	AllowNoIsolation *bool         `json:"allow_no_isolation,omitempty" doc:"consent to a backend that isolates nothing"`
	AllowContainer   *bool         `json:"allow_container,omitempty" doc:"consent to containers that share the host's kernel"`
	MCP              []MCPServer   `json:"mcp,omitempty" doc:"more MCP servers whose tools its code can call"`
	PlainBelow       *int64        `json:"plain_below,omitempty" minimum:"0" doc:"tokens of a context below which the model is simply given it; 0: never"`
	CacheBytes       *int64        `json:"cache_bytes,omitempty" minimum:"0" doc:"bytes of replies that are kept on disk for later runs; 0: none"`
}

// MCPServer is a program or an address that offers tools.
type MCPServer struct {
	Name    string   `json:"name" doc:"begins the names of its tools"`
	Command []string `json:"command,omitempty" doc:"program and arguments, without a shell"`
	Dir     string   `json:"dir,omitempty" doc:"where the program works"`
	URL     string   `json:"url,omitempty" doc:"instead of a command, its address"`
}

// RunContext is one context: exactly one of text, json, list and path is given.
type RunContext struct {
	Name string          `json:"name,omitempty" doc:"how the model hears of it"`
	Text *string         `json:"text,omitempty"`
	JSON json.RawMessage `json:"json,omitempty" doc:"any value"`
	List []string        `json:"list,omitempty" doc:"a list of texts"`
	Path string          `json:"path,omitempty" doc:"file or directory of the server's machine; only for its own user"`
}

// Runs is one page.
type Runs struct {
	Runs     []*rlm.Info `json:"runs"`
	Problems []Problem   `json:"problems,omitempty" doc:"runs that cannot be read; only for the machine's own user"`
	Next     string      `json:"next,omitempty" doc:"give it as after for the next page; empty: this is the last"`
}

// RunAgain is how a kept run goes on: what is left out is as it was.
type RunAgain struct {
	Model     string       `json:"model,omitempty" doc:"provider/model, for a run that named none"`
	SubModels []string     `json:"sub_models,omitempty" doc:"for the calls it makes, by depth"`
	Limits    v1.RunLimits `json:"limits,omitzero" doc:"fields that are set replace the run's own"`
	Host      *RunHost     `json:"host,omitempty" doc:"about the server's machine; only for its own user, on its socket"`
}

// ForkRun begins a new run from one of another's turns.
type ForkRun struct {
	At int `json:"at" doc:"the last turn that both share; 0: none"`
	RunAgain
}

// ReplayRun runs a kept run again, with the replies that models gave then.
type ReplayRun struct {
	Host *RunHost `json:"host,omitempty" doc:"about the server's machine; only for its own user, on its socket"`
}
