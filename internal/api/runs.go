package api

import (
	"encoding/json"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
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
	Runs []*rlm.Info `json:"runs"`
	Next string      `json:"next,omitempty" doc:"give it as after for the next page; empty: this is the last"`
}

// ResumeRun goes on with a run.
type ResumeRun struct {
	Limits v1.RunLimits `json:"limits,omitzero" doc:"instead of the run's own; what it has spent counts"`
}

// ForkRun begins a new run from one of another's turns.
type ForkRun struct {
	At     int          `json:"at" doc:"the last turn that both share; 0: none"`
	Limits v1.RunLimits `json:"limits,omitzero" doc:"instead of the run's own"`
}
