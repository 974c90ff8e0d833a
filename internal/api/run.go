package api

import (
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// What becomes of a cell or command whose caller goes away.
const (
	OnDisconnectCancel = "cancel"
	OnDisconnectKeep   = "keep"
)

// Run is what cells and commands have in common.
type Run struct {
	ID            string            `json:"id,omitempty" doc:"names the operation; left out: chosen for you"`
	Env           map[string]string `json:"env,omitempty"`
	User          string            `json:"user,omitempty" doc:"uid, uid:gid or a name that the sandbox knows; left out: the sandbox's user"`
	Stdin         *Text             `json:"stdin,omitempty" doc:"left out: none"`
	Timeout       v1.Duration       `json:"timeout,omitzero"`
	KillGrace     v1.Duration       `json:"kill_grace,omitzero"`
	KillSurvivors bool              `json:"kill_survivors,omitempty" doc:"end what it leaves running"`
	InlineBytes   int64             `json:"inline_bytes,omitempty" minimum:"0" maximum:"1048576"`
	SpoolBytes    int64             `json:"spool_bytes,omitempty" doc:"negative: none"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	OnDisconnect  string            `json:"on_disconnect,omitempty" enum:"cancel,keep" doc:"its fate when the caller goes away; left out: cancel"`
}

// Cell is sandbox.Cell on the way.
type Cell struct {
	Code     Text   `json:"code"`
	Language string `json:"language,omitempty" doc:"left out: that of the context, or python"`
	Context  string `json:"context,omitempty"`
	Args     []Text `json:"args,omitempty"`
	Run
}

// Command is sandbox.Command on the way.
type Command struct {
	Args       []Text `json:"args,omitempty" doc:"the program and its arguments"`
	Shell      Text   `json:"shell,omitempty" doc:"instead of args, a script"`
	Dir        Text   `json:"dir,omitempty"`
	Background bool   `json:"background,omitempty" doc:"answer with its id as soon as it runs"`
	PTY        *Size  `json:"pty,omitempty" doc:"only over a WebSocket"`
	Run
}

// Size is a terminal's.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// Started is the answer to a command in the background.
type Started struct {
	ID string `json:"id"`
}

// Operations is the list of cells and commands.
type Operations struct {
	Operations []sandbox.Operation `json:"operations"`
	Next       string              `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Contexts is the list of live interpreters.
type Contexts struct {
	Contexts []sandbox.Context `json:"contexts"`
	Next     string            `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Signal asks for a signal, by name or number.
type Signal struct {
	Signal string `json:"signal" doc:"SIGTERM, TERM or 15"`
	Tree   bool   `json:"tree,omitempty" doc:"also to everything it started"`
}

// Followed is an operation's output so far, for whoever does not wait.
type Followed struct {
	Stdout  Text             `json:"stdout"`
	Stderr  Text             `json:"stderr"`
	Next    Offsets          `json:"next" doc:"where to go on"`
	Skipped Offsets          `json:"skipped" doc:"bytes that are no longer kept"`
	Running bool             `json:"running"`
	Verdict *sandbox.Verdict `json:"verdict,omitempty"`
}

// Offsets are absolute, in bytes.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// options returns what the sandbox is given. The streams travel apart.
func (r Run) options() sandbox.RunOptions {
	return sandbox.RunOptions{
		ID: r.ID, Env: r.Env, User: r.User, Timeout: time.Duration(r.Timeout), KillGrace: time.Duration(r.KillGrace), KillSurvivors: r.KillSurvivors,
		InlineBytes: r.InlineBytes, SpoolBytes: r.SpoolBytes, Metadata: r.Metadata,
	}
}

// runOf is the inverse of options.
func runOf(o sandbox.RunOptions) Run {
	return Run{
		ID: o.ID, Env: o.Env, User: o.User, Timeout: v1.Duration(o.Timeout), KillGrace: v1.Duration(o.KillGrace), KillSurvivors: o.KillSurvivors,
		InlineBytes: o.InlineBytes, SpoolBytes: o.SpoolBytes, Metadata: o.Metadata, OnDisconnect: fate(o.Detach),
	}
}

// Sandbox returns the cell to run.
func (c Cell) Sandbox() sandbox.Cell {
	return sandbox.Cell{Code: string(c.Code), Language: c.Language, Context: c.Context, Args: Strings(c.Args), RunOptions: c.options()}
}

// CellOf returns a cell as it is sent. Its streams travel apart.
func CellOf(c sandbox.Cell) Cell {
	return Cell{Code: Text(c.Code), Language: c.Language, Context: c.Context, Args: Texts(c.Args), Run: runOf(c.RunOptions)}
}

// Sandbox returns the command to run.
func (c Command) Sandbox() sandbox.Command {
	out := sandbox.Command{Args: Strings(c.Args), Shell: string(c.Shell), Dir: string(c.Dir), RunOptions: c.options()}
	if c.PTY != nil {
		out.PTY = &sandbox.Size{Rows: c.PTY.Rows, Cols: c.PTY.Cols}
	}
	return out
}

// CommandOf returns a command as it is sent. Its streams travel apart.
func CommandOf(c sandbox.Command) Command {
	out := Command{Args: Texts(c.Args), Shell: Text(c.Shell), Dir: Text(c.Dir), Run: runOf(c.RunOptions)}
	if c.PTY != nil {
		out.PTY = &Size{Rows: c.PTY.Rows, Cols: c.PTY.Cols}
	}
	return out
}

func fate(detach bool) string {
	if detach {
		return OnDisconnectKeep
	}
	return OnDisconnectCancel
}
