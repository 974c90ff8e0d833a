package v1

import (
	"encoding/json"
	"time"
)

// The kinds of events, with what their data is.
const (
	KindRunStarted   RunEventKind = "run_started"   // RunStarted
	KindContext      RunEventKind = "context"       // ContextLoaded
	KindSandbox      RunEventKind = "sandbox"       // SandboxReady
	KindTurnStarted  RunEventKind = "turn_started"  // no data
	KindTurnEnded    RunEventKind = "turn_ended"    // TurnEnded
	KindCallStarted  RunEventKind = "call_started"  // CallStarted
	KindCallEnded    RunEventKind = "call_ended"    // CallEnded
	KindCellStarted  RunEventKind = "cell_started"  // CellStarted
	KindGate         RunEventKind = "gate"          // Judged
	KindCellEnded    RunEventKind = "cell_ended"    // CellEnded
	KindChildStarted RunEventKind = "child_started" // ChildStarted
	KindChildEnded   RunEventKind = "child_ended"   // ChildEnded
	KindTool         RunEventKind = "tool"          // ToolUsed
	KindCompacted    RunEventKind = "compacted"     // Compacted
	KindSnapshot     RunEventKind = "snapshot"      // SnapshotTaken
	KindResumed      RunEventKind = "resumed"       // Resumed
	KindAnswer       RunEventKind = "answer"        // Answer
	KindRunEnded     RunEventKind = "run_ended"     // *Result
)

// RunStarted begins a log.
type RunStarted struct {
	Run    string            `json:"run"`
	Query  string            `json:"query"`
	Model  string            `json:"model"`
	Schema json.RawMessage   `json:"schema,omitempty"`
	Limits RunLimits         `json:"limits"`
	Labels map[string]string `json:"labels,omitempty"`
	Forked string            `json:"forked_from,omitempty"`
}

// ContextLoaded tells what the model hears about the context.
type ContextLoaded struct {
	Contexts []ContextNote `json:"contexts"`
	Bytes    int64         `json:"bytes"`
}

// ContextNote describes one context variable.
type ContextNote struct {
	Variable string `json:"variable"`
	Name     string `json:"name,omitempty"`
	Type     string `json:"type"`
	Size     int64  `json:"size,omitempty"`  // len() of it
	Chars    int64  `json:"chars,omitempty"` // of text in it, where that is known
	Encoding string `json:"encoding,omitempty"`
	Skipped  int    `json:"skipped,omitempty"`
}

// SandboxReady names the machine of a node.
type SandboxReady struct {
	ID     string `json:"id"`               // empty: it is lent to the run
	Inside string `json:"inside,omitempty"` // where its context lies
}

// RunAnswer is what was handed in, or would be.
type RunAnswer struct {
	Content string          `json:"content"`
	Value   json.RawMessage `json:"value,omitempty"`
}

// TurnEnded is what a turn added to the conversation.
type TurnEnded struct {
	Reply       string `json:"reply"`
	Finish      Finish `json:"finish,omitempty"`
	Observation string `json:"observation,omitempty"`
}

// The ways in which a run asks models.
const (
	CallTurn    = "turn"    // the root model, for the next step
	CallLast    = "last"    // the root model, for its best answer when turns are over
	CallPlain   = "plain"   // a question that needs no interpreter
	CallSub     = "sub"     // llm_query
	CallSummary = "summary" // compaction
)

// CallStarted begins a model call. Prompts may hold much of the context, so only their beginning is told.
type CallStarted struct {
	ID      string `json:"id"`
	Call    string `json:"call"`
	Model   string `json:"model"`
	Key     string `json:"key"` // of what was asked
	Chars   int64  `json:"chars"`
	Tokens  int64  `json:"tokens"` // estimated
	Preview string `json:"preview,omitempty"`
}

// CallEnded ends it.
type CallEnded struct {
	ID     string        `json:"id"`
	Call   string        `json:"call"`
	Key    string        `json:"key"`
	Model  string        `json:"model"`
	Text   string        `json:"text"`
	Finish Finish        `json:"finish,omitempty"`
	Usage  Usage         `json:"usage"`
	Wall   time.Duration `json:"wall_ns"`
	Cached bool          `json:"cached,omitempty"`
	Error  *EventError   `json:"error,omitempty"`
}

// EventError is an error in an event.
type EventError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// CellStarted begins a cell or command.
type CellStarted struct {
	Lang string `json:"lang"`
	Code string `json:"code"`
}

// Judged is what the gate said about code that did not simply pass: it was warned of, refused, or let run by a person.
type Judged struct {
	Action     GateAction `json:"action"`
	Reason     string     `json:"reason,omitempty"`
	Approval   string     `json:"approval,omitempty"` // the question that a person was asked
	ApprovedBy string     `json:"approved_by,omitempty"`
	Escalated  bool       `json:"escalated,omitempty"`
}

// Outcome is a verdict in an event: the same fields, without the methods that would write output twice.
type Outcome Verdict

// CellEnded is how a cell or command ended, as the model sees it. Output, result and error are cut to what the model is shown, and take the place of those of
// the verdict; everything else of it is there as it is.
type CellEnded struct {
	Outcome
	OK       bool              `json:"ok"`
	Error    string            `json:"error,omitempty"` // the traceback, or why it did not run
	Stdout   string            `json:"stdout,omitempty"`
	Stderr   string            `json:"stderr,omitempty"`
	Result   string            `json:"result,omitempty"`
	Produced int64             `json:"produced"` // bytes of output
	Restored []string          `json:"restored,omitempty"`
	Vars     map[string]string `json:"vars,omitempty"`
}

// ChildStarted begins a child run; its events carry Node.
type ChildStarted struct {
	Node    string `json:"node"`
	Model   string `json:"model,omitempty"`
	Key     string `json:"key"`
	Chars   int64  `json:"chars"`
	Preview string `json:"preview,omitempty"`
}

// ChildEnded ends it.
type ChildEnded struct {
	Node   string      `json:"node"`
	Key    string      `json:"key"`
	Answer string      `json:"answer"`
	Reason RunReason   `json:"reason"`
	Error  *EventError `json:"error,omitempty"`
}

// ToolUsed is a call of a Go tool.
type ToolUsed struct {
	Name  string          `json:"name"`
	Args  json.RawMessage `json:"args,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
	Code  Code            `json:"code,omitempty"` // of the error, if it has one
}

// Compacted says that turns gave way to a summary.
type Compacted struct {
	Upto    int    `json:"upto_turn"`
	Summary string `json:"summary"`
}

// SnapshotTaken names a snapshot with the state behind a turn.
type SnapshotTaken struct {
	ID string `json:"id"`
}

// Resumed says how an interrupted run went on.
type Resumed struct {
	How   string `json:"how"` // attached, restored or rebuilt
	Turn  int    `json:"turn"`
	Rerun int    `json:"rerun"` // turns whose cells were run again
	// Limits are those from now on.
	Limits RunLimits `json:"limits,omitzero"`
	// Tools are those from now on, when they are not the same as before.
	Tools []ToolNote `json:"tools,omitempty"`
}

// Param is a parameter of a tool. One that must be given can be given by its place, too.
type Param struct {
	Name     string `json:"name"`
	Optional bool   `json:"optional,omitempty"` // one that is left out is not sent
}

// ToolNote is a tool as the bridge hears of it, and as a run remembers it.
type ToolNote struct {
	Name   string  `json:"name"`
	Doc    string  `json:"doc,omitempty"`
	Help   string  `json:"help,omitempty"`
	Params []Param `json:"params,omitzero"` // empty is not none
	More   bool    `json:"more,omitempty"`
	Source string  `json:"source,omitempty"`
}
