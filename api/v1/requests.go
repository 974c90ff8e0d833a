package v1

import "time"

// What happens to a cell or command when its caller disconnects.
const (
	OnDisconnectCancel = "cancel"
	OnDisconnectKeep   = "keep"
)

// RunFields are the fields that cells and commands have in common.
type RunFields struct {
	ID            string            `json:"id,omitempty" doc:"id of the operation; left out: the server chooses"`
	Env           map[string]string `json:"env,omitempty" doc:"environment variables for this cell or command only, added to those of the sandbox"`
	User          string            `json:"user,omitempty" doc:"uid, uid:gid or a name that the sandbox knows; left out: the sandbox's user"`
	Stdin         *Text             `json:"stdin,omitempty" doc:"input of the cell or command; left out: none"`
	KeepStdin     bool              `json:"keep_stdin,omitempty" doc:"keep the input open after stdin has been read; more can be sent with the input route of the operation"`
	Timeout       Duration          `json:"timeout,omitzero" doc:"timeout; left out: 30s, unless the server is configured otherwise (server.run_timeout), and unlimited with a terminal or in the background; none: unlimited"`
	KillGrace     Duration          `json:"kill_grace,omitzero" doc:"time between SIGTERM, or the interrupt of a cell, and SIGKILL; left out: 300ms for a command, 2s for a cell"`
	KillSurvivors bool              `json:"kill_survivors,omitempty" doc:"kill processes that it leaves running"`
	InlineBytes   int64             `json:"inline_bytes,omitempty" minimum:"0" maximum:"1048576" doc:"bytes of each stream that the verdict keeps; left out: 65536"`
	SpoolBytes    int64             `json:"spool_bytes,omitempty" doc:"bytes of each stream that are kept in a file in the sandbox, for the output of the operation; left out: 10485760; negative: none"`
	Metadata      map[string]string `json:"metadata,omitempty" doc:"returned in the verdict"`
	OnDisconnect  string            `json:"on_disconnect,omitempty" enum:"cancel,keep" doc:"what happens to it when the caller disconnects; left out: cancel; a terminal is cancelled after a delay, in which it can be attached again"`
}

// CellRequest is the request to run a Cell.
type CellRequest struct {
	Code     Text   `json:"code" doc:"code to run"`
	Language string `json:"language,omitempty" doc:"language of the code; left out: that of the context, or python"`
	Context  string `json:"context,omitempty" doc:"name of the interpreter; left out: default"`
	Args     []Text `json:"args,omitempty" doc:"sys.argv"`
	RunFields
}

// CommandRequest is the request to run a Command.
type CommandRequest struct {
	Args       []Text `json:"args,omitempty" doc:"program and arguments"`
	Shell      Text   `json:"shell,omitempty" doc:"script to run instead of args"`
	Python     Text   `json:"python,omitempty" doc:"Python program to run in a separate interpreter; args are then its file name and its arguments"`
	Dir        Text   `json:"dir,omitempty" doc:"working directory; left out: the sandbox's"`
	Background bool   `json:"background,omitempty" doc:"do not wait for the end: answer with the id as soon as the command runs"`
	PTY        *Size  `json:"pty,omitempty" doc:"run it in a terminal of this size; only over a WebSocket"`
	RunFields
}

// Started is the answer to a request for a command in the background.
type Started struct {
	ID string `json:"id" doc:"id of the operation"`
}

// OperationPage is one page of cells and commands.
type OperationPage struct {
	Operations []Operation `json:"operations" doc:"cells and commands, oldest first"`
	Next       string      `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// ContextPage is one page of live interpreters.
type ContextPage struct {
	Contexts []Context `json:"contexts" doc:"live interpreters"`
	Next     string    `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// SignalRequest requests a signal, by name or number.
type SignalRequest struct {
	Signal string `json:"signal" doc:"name or number of the signal: SIGTERM, TERM or 15"`
	Tree   bool   `json:"tree,omitempty" doc:"also signal every process that it started"`
}

// Followed is the output of an operation so far.
type Followed struct {
	Stdout  Text     `json:"stdout" doc:"stdout from the requested offset"`
	Stderr  Text     `json:"stderr" doc:"stderr from the requested offset"`
	Next    Offsets  `json:"next" doc:"offsets to continue at"`
	Skipped Offsets  `json:"skipped" doc:"bytes that are no longer kept"`
	Running bool     `json:"running" doc:"the operation has not ended"`
	Verdict *Verdict `json:"verdict,omitempty" doc:"how it ended; left out while it runs"`
}

// Offsets are absolute offsets in bytes.
type Offsets struct {
	Stdout int64 `json:"stdout" doc:"offset in stdout, in bytes"`
	Stderr int64 `json:"stderr" doc:"offset in stderr, in bytes"`
}

// options returns the options of a cell or command. Its streams are not part of them.
func (f RunFields) options() RunOptions {
	return RunOptions{
		ID:            f.ID,
		Env:           f.Env,
		User:          f.User,
		KeepStdin:     f.KeepStdin,
		Timeout:       time.Duration(f.Timeout),
		KillGrace:     time.Duration(f.KillGrace),
		KillSurvivors: f.KillSurvivors,
		InlineBytes:   f.InlineBytes,
		SpoolBytes:    f.SpoolBytes,
		Metadata:      f.Metadata,
	}
}

// runFields is the inverse of options.
func runFields(o RunOptions) RunFields {
	onDisconnect := ""
	if o.Detach {
		onDisconnect = OnDisconnectKeep
	}
	return RunFields{
		ID:            o.ID,
		Env:           o.Env,
		User:          o.User,
		KeepStdin:     o.KeepStdin,
		Timeout:       Duration(o.Timeout),
		KillGrace:     Duration(o.KillGrace),
		KillSurvivors: o.KillSurvivors,
		InlineBytes:   o.InlineBytes,
		SpoolBytes:    o.SpoolBytes,
		Metadata:      o.Metadata,
		OnDisconnect:  onDisconnect,
	}
}

// NewCellRequest returns the request to run a cell.
func NewCellRequest(c Cell) CellRequest {
	return CellRequest{
		Code:      Text(c.Code),
		Language:  c.Language,
		Context:   c.Context,
		Args:      Texts(c.Args),
		RunFields: runFields(c.RunOptions),
	}
}

// Cell returns the cell to run.
func (r CellRequest) Cell() Cell {
	return Cell{
		Code:       string(r.Code),
		Language:   r.Language,
		Context:    r.Context,
		Args:       Strings(r.Args),
		RunOptions: r.options(),
	}
}

// NewCommandRequest returns the request to run a command.
func NewCommandRequest(c Command) CommandRequest {
	return CommandRequest{
		Args:      Texts(c.Args),
		Shell:     Text(c.Shell),
		Python:    Text(c.Python),
		Dir:       Text(c.Dir),
		PTY:       c.PTY,
		RunFields: runFields(c.RunOptions),
	}
}

// Command returns the command to run.
func (r CommandRequest) Command() Command {
	return Command{
		Args:       Strings(r.Args),
		Shell:      string(r.Shell),
		Python:     string(r.Python),
		Dir:        string(r.Dir),
		PTY:        r.PTY,
		RunOptions: r.options(),
	}
}
