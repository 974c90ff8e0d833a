package v1

import (
	"encoding/json"
	"fmt"
	"time"
)

// Run is a run in a list.
type Run struct {
	ID      string            `json:"id" doc:"id of the run"`
	Query   string            `json:"query" doc:"the question"`
	Model   string            `json:"model" doc:"provider/model of the root"`
	Labels  map[string]string `json:"labels,omitempty" doc:"labels of the run"`
	Limits  RunLimits         `json:"limits,omitzero" doc:"limits that apply now"`
	Started time.Time         `json:"started" doc:"when the run started"`
	Turns   int               `json:"turns" doc:"turns so far"`
	Usage   Usage             `json:"usage" doc:"tokens and cost so far"`
	Wall    time.Duration     `json:"wall_ns" doc:"time spent working, without interruptions"`
	Running bool              `json:"running,omitempty" doc:"a program works on it now; a run that is neither running nor has a result was interrupted and can be resumed"`
	Result  *RunResult        `json:"result,omitempty" doc:"how it ended; left out before that"`
}

// RunResult is how a run ended.
type RunResult struct {
	Run       string          `json:"run" doc:"id of the run"`
	Answer    string          `json:"answer" doc:"the answer as text"`
	Value     json.RawMessage `json:"value,omitempty" doc:"the answer as JSON, if it is more than text"`
	How       AnswerHow       `json:"how,omitempty" enum:"code,text,prose,json,plain" doc:"how the model gave the answer; left out if it is partial"`
	Reason    RunReason       `json:"reason" enum:"answered,turns,tokens,cost,time,calls,cpu,errors,format,length,refused,cancelled,model,sandbox,context,internal" doc:"why the run ended"`
	Message   string          `json:"message,omitempty" doc:"details of the reason"`
	Partial   bool            `json:"partial,omitempty" doc:"no final answer was given; this is the best one at the end of the run"`
	Plain     bool            `json:"plain,omitempty" doc:"the model was asked directly, without an interpreter"`
	Model     string          `json:"model,omitempty" doc:"provider/model of the root at the end, if the run began with another"`
	Turns     int             `json:"turns" doc:"turns of the root"`
	Children  int64           `json:"children,omitempty" doc:"child runs"`
	Cached    int64           `json:"cached,omitempty" doc:"sub-calls answered from the cache"`
	Cells     int64           `json:"cells" doc:"cells and commands that were run"`
	Usage     Usage           `json:"usage" doc:"tokens and cost of the whole tree"`
	By        []Spent         `json:"by,omitempty" doc:"tokens and cost by model and depth"`
	Limits    RunLimits       `json:"limits,omitzero" doc:"limits at the end"`
	Wall      time.Duration   `json:"wall_ns" doc:"time spent working, without interruptions"`
	Coverage  *Coverage       `json:"coverage,omitempty" doc:"how much of the context was read by models"`
	Samples   *Samples        `json:"samples,omitempty" doc:"candidates of a run with several, and how many agree"`
	StateFrom *time.Time      `json:"state_from,omitempty" doc:"the session had lost its state and was restored to this time"`
	Previous  string          `json:"previous_session,omitempty" doc:"set if the session is new: how the previous session of this name ended"`
	Dir       string          `json:"-"`
	// Conversation is what a follow-up question continues from.
	Conversation []Message `json:"-"`
}

// MaxSamples is the maximum number of candidates of a run.
const MaxSamples = 16

// Samples reports the candidates of a run. The answer of the run is the one on which most of them agree.
type Samples struct {
	Count      int         `json:"count" doc:"number of candidates"`
	Answered   int         `json:"answered" doc:"candidates that submitted an answer"`
	Agreement  int         `json:"agreement" doc:"candidates whose answer equals that of the run"`
	Candidates []Candidate `json:"candidates" doc:"the candidates"`
}

// Candidate is one of several independent attempts to answer the question of a run.
type Candidate struct {
	Node   string    `json:"node" doc:"place in the tree"`
	Answer string    `json:"answer" doc:"its answer, or the best it had"`
	Agrees bool      `json:"agrees,omitempty" doc:"its answer equals that of the run"`
	Reason RunReason `json:"reason" enum:"answered,turns,tokens,cost,time,calls,cpu,errors,format,length,refused,cancelled,model,sandbox,context,internal" doc:"why it ended"`
	Usage  Usage     `json:"usage" doc:"tokens and cost of the candidate, with its sub-calls and children"`
}

// AnswerHow is how a model gave the answer. No other values exist.
type AnswerHow string

// The ways to give an answer.
const (
	HowCode  AnswerHow = "code"  // code submitted it
	HowText  AnswerHow = "text"  // FINAL(…) or FINAL_VAR(…) in the text of a reply
	HowProse AnswerHow = "prose" // two replies in a row with the same text and nothing to run, after at least one cell
	HowJSON  AnswerHow = "json"  // a reply that is JSON and meets the schema of the answer
	HowPlain AnswerHow = "plain" // the reply to a plain call, without an interpreter
)

// RunReason is why a run ended. No other values exist.
type RunReason string

// The reasons.
const (
	ReasonAnswered  RunReason = "answered"  // a final answer was given
	ReasonTurns     RunReason = "turns"     // no turns are left
	ReasonTokens    RunReason = "tokens"    // no tokens are left
	ReasonCost      RunReason = "cost"      // no money is left
	ReasonTime      RunReason = "time"      // no time is left
	ReasonCalls     RunReason = "calls"     // no model calls are left
	ReasonCPU       RunReason = "cpu"       // no CPU time of cells is left
	ReasonErrors    RunReason = "errors"    // code failed in too many turns in a row
	ReasonFormat    RunReason = "format"    // too many replies in a row had nothing to run
	ReasonLength    RunReason = "length"    // the reply was cut at its maximum length
	ReasonRefused   RunReason = "refused"   // the model or its provider refused to answer
	ReasonCancelled RunReason = "cancelled" // its caller cancelled it
	ReasonModel     RunReason = "model"     // the model call failed
	ReasonSandbox   RunReason = "sandbox"   // the interpreter was lost, or could not be started
	ReasonContext   RunReason = "context"   // a context could not be loaded
	ReasonInternal  RunReason = "internal"  // a fault of recluse
)

// Spent is what the calls of one model at one depth used.
type Spent struct {
	Model string `json:"model" doc:"provider/model"`
	Depth int    `json:"depth" doc:"depth in the tree; 0 is the root"`
	Usage
}

// Coverage is how much of the context was read by models.
type Coverage struct {
	Bytes   int64     `json:"bytes" doc:"bytes of the context, without omitted files"`
	Read    int64     `json:"read" doc:"bytes of it that reached a model"`
	Percent float64   `json:"percent" doc:"share of the bytes that reached a model"`
	ByModel int64     `json:"by_model" doc:"bytes that reached the root model"`
	ByCalls int64     `json:"by_calls" doc:"bytes that reached sub-calls"`
	Spans   []Span    `json:"spans,omitempty" doc:"parts that were read, in order; at most 1000 are listed"`
	More    int       `json:"more_spans,omitempty" doc:"further parts that are not listed"`
	Omitted []Omitted `json:"omitted,omitempty" doc:"files that are not counted"`
}

// Omitted are files of the context that are not counted.
type Omitted struct {
	Why   OmittedWhy `json:"why" doc:"why the files are not counted"`
	Files int        `json:"files" doc:"number of files"`
	Bytes int64      `json:"bytes" doc:"bytes of these files"`
}

// OmittedWhy is the reason why a file is not counted.
type OmittedWhy string

// Span is a piece of a context file.
type Span struct {
	File  string `json:"file" doc:"path of the file; empty for a text"`
	Start int64  `json:"start" doc:"first byte"`
	End   int64  `json:"end" doc:"byte after the last"`
}

// The reasons.
const (
	OmittedPDF        OmittedWhy = "PDF"
	OmittedEncoding   OmittedWhy = "not UTF-8"
	OmittedBound      OmittedWhy = "too many files or bytes"
	OmittedUnreadable OmittedWhy = "unreadable"
)

// RunEventKind is the kind of an event.
type RunEventKind string

// RunEvent is one thing that happened in a run.
type RunEvent struct {
	Seq   int64           `json:"seq" doc:"number of the event, from 1, without gaps; 0: progress, which is not stored"`
	Time  time.Time       `json:"time" doc:"when it happened"`
	Node  string          `json:"node" doc:"place in the tree: 0 is the run itself, 0/… its children"`
	Depth int             `json:"depth" doc:"depth in the tree"`
	Turn  int             `json:"turn,omitempty" doc:"turn of the node"`
	Kind  RunEventKind    `json:"kind" enum:"run_started,context,sandbox,turn_started,turn_ended,call_started,call_ended,cell_started,gate,cell_ended,child_started,child_ended,tool,compacted,snapshot,resumed,answer,run_ended,progress" doc:"kind of event"`
	Data  json.RawMessage `json:"data,omitempty" doc:"details, by kind"`
}

// NewRun requests a run.
type NewRun struct {
	Query     string            `json:"query" doc:"the question"`
	Contexts  []RunContext      `json:"contexts,omitempty" doc:"texts that the question is about; in code the first is the variable context, and all are context_0, context_1 and so on"`
	Schema    json.RawMessage   `json:"schema,omitempty" doc:"JSON Schema that the answer must match"`
	Model     string            `json:"model,omitempty" doc:"provider/model of the root; left out: as the server is configured"`
	SubModels []string          `json:"sub_models,omitempty" doc:"models of its sub-calls, by depth"`
	Limits    RunLimits         `json:"limits,omitzero" doc:"limits of the run; left out: as configured; callers over the network cannot exceed the configured limits"`
	Samples   int               `json:"samples,omitempty" minimum:"0" maximum:"16" doc:"number of candidates that answer the question independently, from one copy of the loaded context; the answer on which most agree is chosen. They share the budget in equal parts. 0 or 1: one. Not with session"`
	Prompt    string            `json:"prompt,omitempty" doc:"name of the prompt profile of the run and its children: default, official, compact or plan; left out: as the server is configured"`
	System    string            `json:"system_prompt,omitempty" doc:"template of the system prompt, instead of that of the profile; only for the user of the server's machine, over the server's socket"`
	Labels    map[string]string `json:"labels,omitempty" doc:"labels to find the run by"`
	Gate      string            `json:"gate,omitempty" doc:"mode of the gate: off, warn or block; left out: as the server is configured. Not with session, which has its own"`
	Role      string            `json:"role,omitempty" doc:"role that selects the gate's thesaurus. Not with session"`
	Session   string            `json:"session,omitempty" doc:"run in this session, whose Python variables stay; left out: in a new sandbox"`
	Host      *RunHost          `json:"host,omitempty" doc:"settings of the server's machine; only for the user of that machine, over the server's socket. Not with session"`
}

// RunHost is what a run may use of the server's machine. Only the user of that machine may set it, over the server's
// socket. Fields that are left out are as the server is configured.
type RunHost struct {
	Spec             *Spec       `json:"spec,omitempty" doc:"spec of its sandboxes; limits that are left out are as configured"`
	Backends         []string    `json:"backends,omitempty" flag:"backend" value:"backend" scope:"backend" doc:"backends to try in this order, such as gvisor,docker; the first that works and is allowed is used (default as configured)"`
	MinIsolation     string      `json:"min_isolation,omitempty" flag:"min-isolation" scope:"server" enum:"none,container,kernel,vm" doc:"refuse weaker isolation; container: shares the host's kernel; kernel: has its own, as with gVisor; vm: a virtual machine"`
	AllowNoIsolation *bool       `json:"allow_no_isolation,omitempty" flag:"allow-no-isolation" scope:"server" doc:"allow the local backend, which isolates nothing"`
	AllowContainer   *bool       `json:"allow_container,omitempty" flag:"allow-container" scope:"server" doc:"allow containers, which share the host's kernel; implied if docker is named as the backend"`
	MCP              []MCPServer `json:"mcp,omitempty" doc:"additional MCP servers whose tools its code can call"`
	PlainBelow       *int64      `json:"plain_below,omitempty" minimum:"0" doc:"contexts with fewer tokens are put into the prompt, without an interpreter; 0: never"`
	CacheBytes       *int64      `json:"cache_bytes,omitempty" minimum:"0" doc:"bytes of model replies to cache on disk for later runs; 0: none"`
}

// MCPServer is an MCP server that offers tools: a program or a URL.
type MCPServer struct {
	Name    string   `json:"name" doc:"prefix of the names of its tools"`
	Command []string `json:"command,omitempty" doc:"program and arguments, without a shell"`
	Dir     string   `json:"dir,omitempty" doc:"working directory of the program"`
	URL     string   `json:"url,omitempty" doc:"URL of the server, instead of a command"`
}

// RunContext is one context. Exactly one of text, json, list and path is set.
type RunContext struct {
	Name string          `json:"name,omitempty" doc:"name that the model sees"`
	Text *string         `json:"text,omitempty" doc:"the context as text"`
	JSON json.RawMessage `json:"json,omitempty" doc:"the context as any JSON value"`
	List []string        `json:"list,omitempty" doc:"the context as a list of texts"`
	Path string          `json:"path,omitempty" doc:"file or directory on the server's machine; only for the user of that machine"`
}

// RunPage is one page of runs.
type RunPage struct {
	Runs     []*Run    `json:"runs" doc:"runs, newest first"`
	Problems []Problem `json:"problems,omitempty" doc:"runs that cannot be read; only for the user of the server's machine"`
	Next     string    `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// RunAgain is the request to continue a recorded run. Fields that are left out stay as they were.
type RunAgain struct {
	Model     string    `json:"model,omitempty" doc:"provider/model of the root from now on"`
	SubModels []string  `json:"sub_models,omitempty" doc:"models of its sub-calls, by depth"`
	Limits    RunLimits `json:"limits,omitzero" doc:"fields that are set replace the run's own"`
	Host      *RunHost  `json:"host,omitempty" doc:"settings of the server's machine; only for the user of that machine, over the server's socket"`
}

// ForkRun requests a new run that starts after a turn of another run.
type ForkRun struct {
	At int `json:"at" doc:"last turn that both runs share; 0: none"`
	RunAgain
}

// ReplayRun requests a replay: the recorded run is run again, with the recorded replies of models.
type ReplayRun struct {
	Host *RunHost `json:"host,omitempty" doc:"settings of the server's machine; only for the user of that machine, over the server's socket"`
}

// Decode decodes the event's data into v.
func (e *RunEvent) Decode(v any) error {
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
	}
	return nil
}
