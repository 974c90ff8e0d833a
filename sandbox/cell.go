package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// DefaultInterruptGrace is how long an interrupted cell has before its interpreter is killed.
const DefaultInterruptGrace = 2 * time.Second

// MaxCode is how long the code of one cell may be, in bytes.
const MaxCode = wire.MaxCode

// Cell is one piece of Python to run in a live interpreter, where state stays.
type Cell struct {
	Code string // at most MaxCode
	// Context names the interpreter; empty: "default". Cells of one context run one after the other.
	Context string
	Stdin   io.Reader // nil: input() raises EOFError
	Stdout  io.Writer // nil: only what the verdict keeps
	Stderr  io.Writer
	Display func(Bundle) // hears what the cell shows while it runs

	Timeout time.Duration // 0: DefaultTimeout
	// KillGrace is how long the cell has after an interrupt before its interpreter is killed, and with it
	// the state; 0: DefaultInterruptGrace.
	KillGrace     time.Duration
	KillSurvivors bool
	Detach        bool

	Args []string          // sys.argv
	Env  map[string]string // set in os.environ for this cell and later ones

	InlineBytes, SpoolBytes int64
	ID                      string
	// Metadata comes back in the verdict. The trace of ctx is added to it; while the cell runs, os.environ has it as TRACEPARENT.
	Metadata map[string]string
}

// Cell runs code to its end. A failure of the code is in the verdict; err is not nil
// only when the machinery failed. When ctx ends the cell is interrupted.
func (s *Sandbox) Cell(ctx context.Context, c Cell) (*Verdict, error) {
	l, err := common(c.Timeout, c.KillGrace, DefaultInterruptGrace, c.InlineBytes, c.SpoolBytes)
	if err != nil {
		return nil, err
	}
	if len(c.Code) > MaxCode {
		return nil, &Error{Code: CodeTooLarge, Op: "run cell", Message: fmt.Sprintf("code of %d bytes; at most %d MiB are taken", len(c.Code), MaxCode>>20), Remedy: "write it to a file and import that"}
	}
	c.Metadata = traced(ctx, c.Metadata)
	if err := checkRequest("run cell", c.Args, c.Env, c.Metadata, c.Context, c.ID); err != nil {
		return nil, err
	}
	req := &wire.Cell{
		Id: c.ID, Context: c.Context, Code: []byte(c.Code), Stdin: c.Stdin != nil, TimeoutNs: l.timeout, GraceNs: l.grace,
		Stream: c.Stdout != nil || c.Stderr != nil || c.Display != nil, Detach: c.Detach, InlineBytes: l.inline, SpoolBytes: l.spool,
		Metadata: c.Metadata, Env: c.Env, KillSurvivors: c.KillSurvivors,
	}
	if req.Id == "" {
		req.Id = s.newID("x")
	}
	for _, a := range c.Args {
		req.Argv = append(req.Argv, []byte(a))
	}
	conv := conversation{
		op: "run cell", id: req.Id, req: &wire.Request{Call: &wire.Request_Cell{Cell: req}},
		stdin: c.Stdin, stdout: c.Stdout, stderr: c.Stderr, display: c.Display, grace: time.Duration(l.grace), input: req.Stdin,
	}
	if len(c.Code) > wire.MaxInlineCode {
		rest := req.Code
		req.Code, req.CodeFollows = nil, true
		conv.more = func(st *wire.Stream) error {
			for len(rest) > 0 {
				n := min(len(rest), wire.Chunk)
				if err := st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: rest[:n]}}); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		}
	}
	return s.converse(ctx, conv)
}

// Context is one live interpreter of a sandbox.
type Context struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	Python string `json:"python"`
	Busy   bool   `json:"busy"`
}

// Contexts lists the live interpreters.
func (s *Sandbox) Contexts(ctx context.Context) ([]Context, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{}}})
	if err != nil {
		return nil, s.explain("list contexts", err)
	}
	var out []Context
	for _, c := range f.GetContexts().GetContexts() {
		out = append(out, Context{Name: c.Name, PID: int(c.Pid), Python: c.Python, Busy: c.Busy})
	}
	return out, nil
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Sandbox) CloseContext(ctx context.Context, name string) error {
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{Close: name}}})
	return s.explain("close context", err)
}

var endings = map[wire.Ending]Ending{
	wire.Ending_ENDING_EXIT: EndedExit, wire.Ending_ENDING_SIGNAL: EndedSignal, wire.Ending_ENDING_TIMEOUT: EndedTimeout,
	wire.Ending_ENDING_CANCELLED: EndedCancelled, wire.Ending_ENDING_MEMORY: EndedMemory, wire.Ending_ENDING_START: EndedStart,
	wire.Ending_ENDING_KILLED: EndedKilled,
}

func verdict(w *wire.Verdict) *Verdict {
	v := &Verdict{
		ID: w.Id, Ended: endings[w.Ending], ExitCode: int(w.ExitCode), Signal: syscall.Signal(w.Signal),
		Stdout: output(w.Stdout), Stderr: output(w.Stderr), Started: time.Unix(0, w.StartedUnixNs),
		Wall: time.Duration(w.WallNs), CPU: time.Duration(w.CpuNs), PeakMemory: w.PeakMemory, MemoryKills: int(w.MemoryKills),
		SurvivorsTotal: int(w.SurvivorsTotal), StateKept: w.StateKept, StateLostBefore: w.StateLostBefore, StartError: w.StartError,
		DisplaysDropped: int(w.DisplaysDropped), Metadata: w.Metadata,
	}
	for _, p := range w.Survivors {
		v.Survivors = append(v.Survivors, Process{PID: int(p.Pid), Command: p.Command, Killed: p.Killed})
	}
	if e := w.CellError; e != nil {
		v.Error = &CellError{Name: e.Name, Value: e.Value, Traceback: e.Traceback, Line: int(e.Line)}
	}
	for i, raw := range w.Displays {
		b, err := decodeBundle(raw)
		if err != nil {
			v.DisplaysDropped++
			continue
		}
		if w.HasResult && i == len(w.Displays)-1 {
			v.Result = &b
		} else {
			v.Displays = append(v.Displays, b)
		}
	}
	return v
}

func output(k *wire.Kept) Output {
	return Output{Produced: k.GetProduced(), Head: k.GetHead(), Tail: k.GetTail(), File: k.GetFile(), InFile: k.GetFileBytes()}
}

func decodeBundle(raw []byte) (Bundle, error) {
	var b Bundle
	err := json.Unmarshal(raw, &b)
	return b, err
}
