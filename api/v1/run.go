package v1

import (
	"encoding/json"
	"fmt"
	"time"
)

// Run is a run in a list.
type Run struct {
	ID      string            `json:"id"`
	Query   string            `json:"query"`
	Model   string            `json:"model"`
	Labels  map[string]string `json:"labels,omitempty"`
	Limits  RunLimits         `json:"limits,omitzero"` // those that hold now; Resume and Fork take them
	Started time.Time         `json:"started"`
	Turns   int               `json:"turns"`
	Usage   Usage             `json:"usage"`
	Wall    time.Duration     `json:"wall_ns"`
	// Running says that a program works on it now. A run that neither runs nor has a result was interrupted, and can be resumed.
	Running bool       `json:"running,omitempty"`
	Result  *RunResult `json:"result,omitempty"`
}

// RunResult is how a run ended.
type RunResult struct {
	Run     string          `json:"run"`
	Answer  string          `json:"answer"`
	Value   json.RawMessage `json:"value,omitempty"` // the answer as JSON, when it was handed in as more than text
	Reason  RunReason       `json:"reason"`
	Message string          `json:"message,omitempty"` // more about the reason
	// Partial says that the answer was not handed in: it is the best that there was when the run ended.
	Partial  bool          `json:"partial,omitempty"`
	Plain    bool          `json:"plain,omitempty"` // the model was asked directly
	Turns    int           `json:"turns"`
	Children int64         `json:"children,omitempty"`
	Cached   int64         `json:"cached,omitempty"` // sub-calls answered from the cache
	Cells    int64         `json:"cells"`
	Usage    Usage         `json:"usage"`
	By       []Spent       `json:"by,omitempty"`
	Limits   RunLimits     `json:"limits,omitzero"` // that held at its end
	Wall     time.Duration `json:"wall_ns"`
	Coverage *Coverage     `json:"coverage,omitempty"`
	// StateFrom says that the machine the run was lent had lost its state, and went back to that of this moment.
	StateFrom *time.Time `json:"state_from,omitempty"`
	Dir       string     `json:"-"`
	// Conversation is what a follow-up question goes on from.
	Conversation []Message `json:"-"`
}

// RunReason is why a run ended. The set is closed.
type RunReason string

// The reasons.
const (
	ReasonAnswered  RunReason = "answered"  // an answer was handed in
	ReasonTurns     RunReason = "turns"     // no turns are left
	ReasonTokens    RunReason = "tokens"    // no tokens are left
	ReasonCost      RunReason = "cost"      // no money is left
	ReasonTime      RunReason = "time"      // no time is left
	ReasonCalls     RunReason = "calls"     // no model calls are left
	ReasonCPU       RunReason = "cpu"       // cells have used up their CPU time
	ReasonErrors    RunReason = "errors"    // too many cells failed in a row
	ReasonFormat    RunReason = "format"    // too many replies in a row had nothing to run
	ReasonCancelled RunReason = "cancelled" // its caller gave up on it
	ReasonModel     RunReason = "model"     // the model could not be asked
	ReasonSandbox   RunReason = "sandbox"   // the interpreter broke, or could not be had
	ReasonContext   RunReason = "context"   // a context could not be put in
	ReasonInternal  RunReason = "internal"  // our own fault
)

// Spent is what one model took at one depth.
type Spent struct {
	Model string `json:"model"`
	Depth int    `json:"depth"`
	Usage
}

// Coverage is how much of the context was read by models.
type Coverage struct {
	Bytes   int64   `json:"bytes"`   // of the context, without what is in Omitted
	Read    int64   `json:"read"`    // of it that reached a model
	Percent float64 `json:"percent"` // of Bytes
	ByModel int64   `json:"by_model"`
	ByCalls int64   `json:"by_calls"`
	// Spans are what was read, in order; at most 1000 are listed.
	Spans []Span `json:"spans,omitempty"`
	More  int    `json:"more_spans,omitempty"`
	// Omitted is what nobody counts: whatever was read of it is in none of the figures above.
	Omitted []Omitted `json:"omitted,omitempty"`
}

// Omitted are files of the context that are not counted.
type Omitted struct {
	Why   OmittedWhy `json:"why"`
	Files int        `json:"files"`
	Bytes int64      `json:"bytes"`
}

// OmittedWhy says why a file is not counted.
type OmittedWhy string

// Span is a piece of a context file.
type Span struct {
	File  string `json:"file"`
	Start int64  `json:"start"` // in bytes
	End   int64  `json:"end"`
}

// The reasons.
const (
	OmittedPDF        OmittedWhy = "PDF"
	OmittedEncoding   OmittedWhy = "not UTF-8"
	OmittedBound      OmittedWhy = "too many files or bytes"
	OmittedUnreadable OmittedWhy = "unreadable"
)

// RunEventKind is what an event tells.
type RunEventKind string

// RunEvent is one thing that happened in a run.
type RunEvent struct {
	Seq  int64     `json:"seq"` // from 1 on, without gaps
	Time time.Time `json:"time"`
	// Node is the place in the tree: "0" is the run itself, "0/…" its children.
	Node  string          `json:"node"`
	Depth int             `json:"depth"`
	Turn  int             `json:"turn,omitempty"`
	Kind  RunEventKind    `json:"kind"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// NewRun asks for a run.
type NewRun struct {
	Query     string            `json:"query" doc:"the question"`
	Contexts  []RunContext      `json:"contexts,omitempty" doc:"what it is about; code finds the first as context, and all as context_0, context_1 and so on"`
	Schema    json.RawMessage   `json:"schema,omitempty" doc:"JSON Schema that the answer must meet"`
	Model     string            `json:"model,omitempty" doc:"provider/model; left out: as the server is configured"`
	SubModels []string          `json:"sub_models,omitempty" doc:"for the calls it makes, by depth"`
	Limits    RunLimits         `json:"limits,omitzero" doc:"what is left out is as configured, which callers over the network cannot exceed"`
	Labels    map[string]string `json:"labels,omitempty"`
	Gate      string            `json:"gate,omitempty" doc:"off, warn or block; left out: as the server is configured. Not with session, which has its own"`
	Role      string            `json:"role,omitempty" doc:"chooses the thesaurus that the gate judges by. Not with session"`
	Session   string            `json:"session,omitempty" doc:"work in this session, whose variables stay; left out: in a sandbox of its own"`
	Host      *RunHost          `json:"host,omitempty" doc:"about the server's machine; only for its own user, on its socket. Not with session"`
}

// RunHost is what a run may ask of the server's machine. Only the user of that machine may give it, over the server's own socket. What is left out is
// as the server is configured.
type RunHost struct {
	Spec             *Spec       `json:"spec,omitempty" doc:"of its sandboxes; limits that are left out are as configured"`
	Backends         []string    `json:"backends,omitempty" flag:"backend" value:"backend" scope:"backend" doc:"the first of these that works, such as gvisor,docker,local"`
	MinIsolation     string      `json:"min_isolation,omitempty" flag:"min-isolation" value:"level" scope:"server" enum:"none,container,kernel,vm" doc:"refuse weaker isolation: none, container, kernel or vm"`
	AllowNoIsolation *bool       `json:"allow_no_isolation,omitempty" flag:"allow-no-isolation" scope:"server" doc:"consent to a backend that isolates nothing"`
	AllowContainer   *bool       `json:"allow_container,omitempty" flag:"allow-container" scope:"server" doc:"consent to containers that share the host's kernel; to name docker is consent too"`
	MCP              []MCPServer `json:"mcp,omitempty" doc:"more MCP servers whose tools its code can call"`
	PlainBelow       *int64      `json:"plain_below,omitempty" minimum:"0" doc:"tokens of a context below which the model is simply given it; 0: never"`
	CacheBytes       *int64      `json:"cache_bytes,omitempty" minimum:"0" doc:"bytes of replies that are kept on disk for later runs; 0: none"`
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

// RunPage is one page.
type RunPage struct {
	Runs     []*Run    `json:"runs"`
	Problems []Problem `json:"problems,omitempty" doc:"runs that cannot be read; only for the machine's own user"`
	Next     string    `json:"next,omitempty" doc:"give it as after for the next page; empty: this is the last"`
}

// RunAgain is how a kept run goes on: what is left out is as it was.
type RunAgain struct {
	Model     string    `json:"model,omitempty" doc:"provider/model, for a run that named none"`
	SubModels []string  `json:"sub_models,omitempty" doc:"for the calls it makes, by depth"`
	Limits    RunLimits `json:"limits,omitzero" doc:"fields that are set replace the run's own"`
	Host      *RunHost  `json:"host,omitempty" doc:"about the server's machine; only for its own user, on its socket"`
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

// Decode fills v from the event's data.
func (e *RunEvent) Decode(v any) error {
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
	}
	return nil
}
