package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// DefaultInterruptGrace is how long an interrupted cell has before its interpreter is killed.
const DefaultInterruptGrace = 2 * time.Second

// MaxCode is how long the code of one cell may be, in bytes.
const MaxCode = wire.MaxCode

// Cell is one piece of code to run in a live interpreter, where state stays.
type Cell struct {
	Code string // at most MaxCode
	// Language is that of the code; empty: that of the context, which is Python unless its first cell chose another. Python is the only
	// one so far; any other is CodeInvalidRequest.
	Language string
	// Context names the interpreter; empty: "default". Cells of one context run one after the other.
	Context string
	Args    []string     // sys.argv
	Display func(Bundle) // called with each value that the cell displays while it runs

	// RunOptions apply with these differences. Without Stdin, input() raises EOFError. Env is set in os.environ for this cell and
	// later ones. KillGrace is how long the cell has after an interrupt before its interpreter is killed, which loses the state;
	// its default is DefaultInterruptGrace. While the cell runs, os.environ has the trace of ctx as TRACEPARENT. User is the
	// interpreter's: the first cell of a context decides it, also for interpreters that replace a lost one; a later cell that names another
	// user fails with CodeInvalidRequest.
	RunOptions
}

// Cell runs code to its end. A failure of the code is in the verdict; err is not nil
// only when the machinery failed. When ctx ends the cell is interrupted.
func (s *Sandbox) Cell(ctx context.Context, c Cell) (*Verdict, error) {
	if len(c.Code) > MaxCode {
		return nil, &Error{Code: CodeTooLarge, Op: "run cell", Message: fmt.Sprintf("code of %d bytes; at most %d MiB are taken", len(c.Code), MaxCode>>20), Remedy: "write it to a file and import that"}
	}
	c.Metadata = traced(ctx, c.Metadata)
	if err := checkRequest("run cell", c.Args, c.Env, c.Metadata, c.Context, c.Language, c.ID); err != nil {
		return nil, err
	}
	opts, err := s.wireOptions(c.RunOptions, "x", DefaultInterruptGrace)
	if err != nil {
		return nil, err
	}
	opts.Stream = opts.Stream || c.Display != nil
	req := &wire.Cell{Options: opts, Context: c.Context, Language: c.Language, Code: []byte(c.Code), Argv: byteSlices(c.Args)}
	conv := conversation{
		RunOptions: c.RunOptions, op: "run cell", opts: opts, req: &wire.Request{Call: &wire.Request_Cell{Cell: req}}, display: c.Display, input: opts.Stdin,
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
	Name     string `json:"name"`
	PID      int    `json:"pid"`
	Language string `json:"language"`
	Version  string `json:"version"` // of the interpreter
	Busy     bool   `json:"busy"`
}

// Contexts lists the live interpreters.
func (s *Sandbox) Contexts(ctx context.Context) ([]Context, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{}}})
	if err != nil {
		return nil, s.explain("list contexts", err)
	}
	var out []Context
	for _, c := range f.GetContexts().GetContexts() {
		out = append(out, Context{Name: c.Name, PID: int(c.Pid), Language: c.Language, Version: c.Version, Busy: c.Busy})
	}
	return out, nil
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Sandbox) CloseContext(ctx context.Context, name string) error {
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{Close: name}}})
	return s.explain("close context", err)
}
