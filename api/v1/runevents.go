package v1

import (
	"encoding/json"
	"time"
)

// The kinds of events, each with the type of its data.
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
	KindProgress     RunEventKind = "progress"      // Progress; not stored
)

// RunStarted is the first event of a trajectory.
type RunStarted struct {
	Run     string            `json:"run" doc:"id of the run"`
	Query   string            `json:"query" doc:"the question"`
	Model   string            `json:"model" doc:"provider/model of the root"`
	Schema  json.RawMessage   `json:"schema,omitempty" doc:"JSON Schema of the answer"`
	Limits  RunLimits         `json:"limits" doc:"limits of the run"`
	Labels  map[string]string `json:"labels,omitempty" doc:"labels of the run"`
	Forked  string            `json:"forked_from,omitempty" doc:"run that it was forked from"`
	Samples int               `json:"samples,omitempty" doc:"number of candidates that answer the question"`
}

// ContextLoaded describes the contexts to the model.
type ContextLoaded struct {
	Contexts    []ContextNote `json:"contexts" doc:"context variables"`
	Bytes       int64         `json:"bytes" doc:"bytes of all contexts"`
	Interpreter Interpreter   `json:"interpreter,omitzero" doc:"interpreter of the code"`
}

// Interpreter describes the interpreter of a run.
type Interpreter struct {
	Python   string   `json:"python,omitempty" doc:"version of Python"`
	Packages []string `json:"packages,omitempty" doc:"well-known packages that are installed"`
	Network  *bool    `json:"network,omitempty" doc:"the interpreter has a network; left out: unknown"`
	Earlier  []string `json:"earlier,omitempty" doc:"variables that existed in the sandbox before the question"`
}

// ContextNote describes one context variable.
type ContextNote struct {
	Variable string `json:"variable" doc:"name of the variable in the code"`
	Name     string `json:"name,omitempty" doc:"name that the caller gave it"`
	Type     string `json:"type" doc:"Python type"`
	Size     int64  `json:"size,omitempty" doc:"its len()"`
	Chars    int64  `json:"chars,omitempty" doc:"characters of text in it, where known"`
	Encoding string `json:"encoding,omitempty" doc:"encoding of the file"`
	Skipped  int    `json:"skipped,omitempty" doc:"files that were left out"`
	Lines    int64  `json:"lines,omitempty" doc:"lines of a text"`
	Bytes    int64  `json:"bytes,omitempty" doc:"bytes of all files of a directory"`

	Head    string   `json:"head,omitempty" doc:"beginning of a text, or of the first item"`
	Tail    string   `json:"tail,omitempty" doc:"end of a text, or of the last item"`
	Item    string   `json:"item,omitempty" doc:"Python type of the first item"`
	Keys    []string `json:"keys,omitempty" doc:"first keys of a dict or of the first item, or first paths of a directory"`
	Example string   `json:"example,omitempty" doc:"Python expression that accesses a part"`

	Extensions []ExtensionNote `json:"extensions,omitempty" doc:"files of a directory by extension, the most bytes first"`
	Rows       *RowsNote       `json:"rows,omitempty" doc:"rows of a text in JSON Lines or CSV"`
}

// ExtensionNote counts the files of a directory with one extension.
type ExtensionNote struct {
	Extension string `json:"extension" doc:"extension with its dot; empty: none"`
	Files     int64  `json:"files" doc:"number of files"`
	Bytes     int64  `json:"bytes" doc:"bytes of these files"`
}

// RowsNote describes the rows of a text.
type RowsNote struct {
	Format  string   `json:"format" enum:"jsonl,csv,tsv" doc:"format of the rows"`
	Type    string   `json:"type" doc:"Python type of the first row"`
	Keys    []string `json:"keys,omitempty" doc:"first keys of the first row"`
	Example string   `json:"example" doc:"Python expression that accesses a part"`
}

// SandboxReady names the sandbox of a node.
type SandboxReady struct {
	ID     string `json:"id" doc:"id of the sandbox; left out if the sandbox is a session's"`
	Inside string `json:"inside,omitempty" doc:"directory of the context, inside"`
}

// Progress is the state of a node between two events. It is sent only to watchers, is not stored, and has the number 0.
// A watcher that is slow gets the latest one.
type Progress struct {
	Call   string `json:"call,omitempty" doc:"id of the turn's model call in progress"`
	Text   string `json:"text,omitempty" doc:"end of the reply so far, without reasoning"`
	Output string `json:"output,omitempty" doc:"end of what the running cell has printed so far"`
	Bytes  int64  `json:"bytes,omitempty" doc:"bytes of the context of the run, without omitted files"`
	Read   int64  `json:"read,omitempty" doc:"bytes of it that have reached a model"`
}

// RunAnswer is the answer of a run, or its best answer so far.
type RunAnswer struct {
	Content string          `json:"content" doc:"the answer as text"`
	Value   json.RawMessage `json:"value,omitempty" doc:"the answer as JSON"`
	How     AnswerHow       `json:"how,omitempty" enum:"code,text,prose,json,plain" doc:"how the model gave it"`
}

// TurnEnded is what a turn added to the conversation.
type TurnEnded struct {
	Reply       string `json:"reply" doc:"reply of the model"`
	Finish      Finish `json:"finish,omitempty" doc:"why the reply ended"`
	Observation string `json:"observation,omitempty" doc:"what the model is shown next"`
}

// The purposes of model calls in a run.
const (
	CallTurn    = "turn"    // the root model, for the next step
	CallLast    = "last"    // the root model, for its best answer when turns are over
	CallPlain   = "plain"   // a question that is answered without an interpreter
	CallSub     = "sub"     // llm_query
	CallSummary = "summary" // compaction
)

// CallStarted begins a model call. Prompts may contain much of the context, so the event has only the beginning.
// RunPrompts has the messages.
type CallStarted struct {
	ID      string `json:"id" doc:"id of the call"`
	Call    string `json:"call" doc:"purpose of the call: turn, last, plain, sub or summary"`
	Model   string `json:"model" doc:"provider/model"`
	Key     string `json:"key" doc:"hash of the request"`
	Chars   int64  `json:"chars" doc:"characters of the prompt"`
	Tokens  int64  `json:"tokens" doc:"estimated tokens of the prompt"`
	Preview string `json:"preview,omitempty" doc:"beginning of the prompt"`
	Prompt  string `json:"prompt,omitempty" doc:"id of the stored prompt"`
}

// CallEnded ends a model call.
type CallEnded struct {
	ID     string        `json:"id" doc:"id of the call"`
	Call   string        `json:"call" doc:"purpose of the call"`
	Key    string        `json:"key" doc:"hash of the request"`
	Model  string        `json:"model" doc:"provider/model that answered"`
	Text   string        `json:"text" doc:"the reply"`
	Finish Finish        `json:"finish,omitempty" doc:"why the reply ended"`
	Usage  Usage         `json:"usage" doc:"tokens and cost"`
	Wall   time.Duration `json:"wall_ns" doc:"duration of the call"`
	Cached bool          `json:"cached,omitempty" doc:"answered from the cache"`
	Prompt string        `json:"prompt,omitempty" doc:"id of the stored prompt, if the call was answered from the cache; otherwise call_started has it"`
	Error  *EventError   `json:"error,omitempty" doc:"why the call failed"`

	By map[string]Usage `json:"by,omitempty" doc:"the same usage by model, if several models of a fallback list were called"`
}

// UsageByModel returns the usage of each model that was called.
func (e *CallEnded) UsageByModel() map[string]Usage {
	if len(e.By) > 0 {
		return e.By
	}
	return map[string]Usage{e.Model: e.Usage}
}

// EventError is an error in an event.
type EventError struct {
	Code    Code   `json:"code" doc:"stable code"`
	Message string `json:"message" doc:"what happened"`
}

// CellStarted begins a cell or command.
type CellStarted struct {
	Lang string `json:"lang" doc:"language of the code"`
	Code string `json:"code" doc:"the code"`
}

// Judged is the decision of the gate about code that it did not allow silently: it warned, refused, or a person granted
// it.
type Judged struct {
	Action     GateAction `json:"action" enum:"allow,warn,ask,deny" doc:"what the gate decided"`
	Reason     string     `json:"reason,omitempty" doc:"why"`
	Approval   string     `json:"approval,omitempty" doc:"id of the question to a person"`
	ApprovedBy string     `json:"approved_by,omitempty" doc:"person who granted this run"`
	Escalated  bool       `json:"escalated,omitempty" doc:"a person was asked"`
}

// Outcome is a verdict in an event: the same fields, but without the methods of Verdict, which would write the output
// twice.
type Outcome Verdict

// CellEnded is how a cell or command ended, as the model sees it. Output, result and error are cut to what the model is
// shown, and replace those of the verdict. All other fields of the verdict are unchanged.
type CellEnded struct {
	Outcome
	OK       bool              `json:"ok" doc:"it ended with exit code 0"`
	Error    string            `json:"error,omitempty" doc:"traceback, or why the code did not run"`
	Stdout   string            `json:"stdout,omitempty" doc:"stdout as the model sees it"`
	Stderr   string            `json:"stderr,omitempty" doc:"stderr as the model sees it"`
	Result   string            `json:"result,omitempty" doc:"value of the last expression"`
	Produced int64             `json:"produced" doc:"bytes of output"`
	Restored []string          `json:"restored,omitempty" doc:"names that were restored because the code had replaced them"`
	Vars     map[string]string `json:"vars,omitempty" doc:"variables and their types"`
}

// ChildStarted begins a child run; its events carry Node.
type ChildStarted struct {
	Node    string `json:"node" doc:"place in the tree"`
	Model   string `json:"model,omitempty" doc:"provider/model"`
	Key     string `json:"key" doc:"hash of the request"`
	Chars   int64  `json:"chars" doc:"characters of the prompt"`
	Preview string `json:"preview,omitempty" doc:"beginning of the prompt"`
	Prompt  string `json:"prompt,omitempty" doc:"id of the stored prompt: the question of the child"`
}

// ChildEnded ends a child run.
type ChildEnded struct {
	Node    string          `json:"node" doc:"place in the tree"`
	Key     string          `json:"key" doc:"hash of the request"`
	Answer  string          `json:"answer" doc:"the answer"`
	Value   json.RawMessage `json:"value,omitempty" doc:"the answer as JSON, if a schema was given, or of a candidate"`
	How     AnswerHow       `json:"how,omitempty" enum:"code,text,prose,json,plain" doc:"how the model gave the answer; left out if it is partial"`
	Partial bool            `json:"partial,omitempty" doc:"there is no answer, and code received the text so far, marked as partial"`
	Reason  RunReason       `json:"reason" enum:"answered,turns,tokens,cost,time,calls,cpu,errors,format,length,refused,cancelled,model,sandbox,context,internal" doc:"why it ended"`
	Error   *EventError     `json:"error,omitempty" doc:"why it failed"`
}

// ToolUsed is a call of a tool that is written in Go.
type ToolUsed struct {
	Name  string          `json:"name" doc:"name of the tool"`
	Args  json.RawMessage `json:"args,omitempty" doc:"arguments"`
	Value json.RawMessage `json:"value,omitempty" doc:"result"`
	Error string          `json:"error,omitempty" doc:"why it failed"`
	Code  Code            `json:"code,omitempty" doc:"code of the error, if it has one"`
}

// Compacted reports that a summary replaced turns.
type Compacted struct {
	Upto    int    `json:"upto_turn" doc:"last turn that the summary replaces"`
	Summary string `json:"summary" doc:"the summary"`
}

// SnapshotTaken names a snapshot that holds the state after a turn.
type SnapshotTaken struct {
	ID string `json:"id" doc:"id of the snapshot"`
}

// Resumed reports how an interrupted run was continued.
type Resumed struct {
	How    string     `json:"how" enum:"attached,restored,rebuilt" doc:"whether the sandbox was attached, restored from a snapshot, or rebuilt by running cells again"`
	Turn   int        `json:"turn" doc:"turn that it continues from"`
	Rerun  int        `json:"rerun" doc:"turns whose cells were run again"`
	Limits RunLimits  `json:"limits,omitzero" doc:"limits from now on"`
	Model  string     `json:"model,omitempty" doc:"model of the root from now on, as it was requested; only if it changed"`
	Tools  []ToolNote `json:"tools,omitempty" doc:"tools from now on; only if they changed"`
}

// Param is a parameter of a tool. A required parameter can also be passed by position.
type Param struct {
	Name     string `json:"name" doc:"name of the parameter"`
	Optional bool   `json:"optional,omitempty" doc:"it may be left out"`
}

// ToolNote describes a tool, as it is sent to the bridge and recorded with a run.
type ToolNote struct {
	Name   string  `json:"name" doc:"name of the tool"`
	Doc    string  `json:"doc,omitempty" doc:"one line about it"`
	Help   string  `json:"help,omitempty" doc:"full description"`
	Params []Param `json:"params,omitzero" doc:"parameters; left out if they are unknown"`
	More   bool    `json:"more,omitempty" doc:"it accepts further named arguments"`
	Source string  `json:"source,omitempty" doc:"MCP server that offers it"`
}
