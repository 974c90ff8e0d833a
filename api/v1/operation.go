package v1

import (
	"errors"
	"io"
	"time"
)

// ErrInputLeft is returned by a Stdin reader that ends while the operation's input stays open. Input sends more data,
// or ends the input.
var ErrInputLeft = errors.New("the input is left open")

// Cell is one piece of code to run in a live interpreter, where state stays.
type Cell struct {
	Code string // at most MaxCode
	// Language is the language of the code. Empty: the language of the context, which is Python unless its first cell
	// chose another one. Only Python is supported so far; any other language fails with CodeInvalidRequest.
	Language string
	// Context names the interpreter; empty: "default". Cells of one context run one after the other.
	Context string
	Args    []string     // sys.argv
	Display func(Bundle) // called with each value that the cell displays while it runs

	// RunOptions apply with these differences:
	//   - Without Stdin, input() raises EOFError.
	//   - Env is set in os.environ while the cell runs. Changes that the code itself makes there stay.
	//   - KillGrace is the time between an interrupt and the SIGKILL of the interpreter, which loses the state. Its
	//     default is DefaultInterruptGrace.
	//   - While the cell runs, os.environ contains the trace of ctx as TRACEPARENT.
	//   - User is the user of the interpreter. The first cell of a context sets it, also for interpreters that replace
	//     a lost one. A later cell that names another user fails with CodeInvalidRequest.
	RunOptions
}

// Command is one command to run in a sandbox.
type Command struct {
	// Args is the program and its arguments. Shell is a script for bash, or sh, and replaces Args.
	Args  []string
	Shell string
	// Python, if not empty, is a program that runs in a separate interpreter. Args are then its file name and its
	// arguments.
	Python string
	Dir    string // empty: the sandbox's, or the home directory of User; a relative path starts in the sandbox's

	// PTY runs the command in a terminal of this size. Its stderr is then part of stdout, and it has no timeout by
	// default.
	PTY *Size
	// Resize changes the terminal's size.
	Resize <-chan Size

	// RunOptions apply as they are described there. The environment contains the trace of ctx as TRACEPARENT.
	RunOptions
}

// RunOptions are what a Cell and a Command have in common.
type RunOptions struct {
	ID  string            // id of the operation; empty: a generated one
	Env map[string]string // added to the sandbox's
	// User is the user that the process runs as, in the form of Spec.User; a name is looked up in the sandbox. Empty:
	// the sandbox's user. Another user has the same limits, except that the limit of processes applies to each user.
	// Root is CodeInvalidRequest. Where the guest cannot switch users, as in containers on runc and without isolation,
	// another user is CodeNotSupported.
	User string

	// Stdin is the input; nil: none. A blocked Read may still be pending when the call returns, so two calls must not
	// share a reader.
	Stdin io.Reader
	// KeepStdin keeps the input open without Stdin, after a Stdin that ends with ErrInputLeft, and when the connection
	// of this program is lost. Input sends more data, or ends the input. The input of a terminal always stays open like
	// this.
	KeepStdin bool
	Stdout    io.Writer // nil: output is only kept in the verdict
	Stderr    io.Writer

	Timeout   time.Duration // 0: DefaultTimeout; NoLimit: none
	KillGrace time.Duration // between SIGTERM and SIGKILL; 0: DefaultKillGrace
	// KillSurvivors kills processes that the operation leaves running.
	KillSurvivors bool
	// Detach keeps the operation running when the connection of this program is lost.
	Detach bool

	InlineBytes int64 // kept in the verdict per stream; 0: DefaultInlineBytes, at most 1 MiB
	SpoolBytes  int64 // kept in a file per stream; 0: DefaultSpoolBytes, negative: none

	// Metadata is returned in the verdict, with the trace of ctx added.
	Metadata map[string]string
}

// Size is the size of a terminal.
type Size struct {
	Rows int `json:"rows" doc:"lines of the terminal"`
	Cols int `json:"cols" doc:"columns of the terminal"`
}

// Operation is a cell or command that the sandbox remembers, or a process that an ended cell or command left running. A
// process has no output and no verdict; Signal and Cancel accept its id.
type Operation struct {
	ID      string    `json:"id" doc:"id of the cell or command, or of the process"`
	Kind    string    `json:"kind" enum:"cell,command,process" doc:"kind of operation; process: a process that an ended cell or command left running"`
	Command string    `json:"command" doc:"beginning of the code or command"`
	Context string    `json:"context,omitempty" doc:"interpreter of a cell"`
	Running bool      `json:"running" doc:"it has not ended"`
	PID     int       `json:"pid,omitempty" doc:"main process, inside the sandbox"`
	Input   bool      `json:"input,omitempty" doc:"it accepts input"`
	PTY     bool      `json:"pty,omitempty" doc:"it has a terminal"`
	Stdout  int64     `json:"stdout" doc:"bytes of stdout so far"`
	Stderr  int64     `json:"stderr" doc:"bytes of stderr so far"`
	Started time.Time `json:"started" doc:"when it started"`
	Verdict *Verdict  `json:"verdict,omitempty" doc:"how it ended; left out while it runs"`
}

// OperationProcess is the kind of a process that an ended cell or command left running.
const OperationProcess = "process"

// FollowOptions are the options of Follow.
type FollowOptions struct {
	StdoutOffset, StderrOffset int64 // absolute offsets to start at, in bytes
	Stdout, Stderr             io.Writer
	// NoWait makes Follow return what is there now. If the operation still runs there is no verdict: Follow then
	// returns nil and no error.
	NoWait bool
	// Skipped is called for bytes that are no longer kept.
	Skipped func(stream int, bytes int64)
}

// SignalOptions are the options of Signal.
type SignalOptions struct {
	// Tree signals every process that the operation started, not only its main process and the group of that process.
	Tree bool
}

// Input is sent to a running operation: bytes for its stdin, the end of its stdin, or a new size of its terminal.
type Input struct {
	Data Text  `json:"data,omitempty" doc:"bytes for stdin"`
	End  bool  `json:"end,omitempty" doc:"end of the input; on a terminal this is Ctrl-D"`
	Size *Size `json:"size,omitempty" doc:"new size of the terminal"`
}

// Context is one live interpreter of a sandbox.
type Context struct {
	Name     string `json:"name" doc:"name of the interpreter"`
	PID      int    `json:"pid" doc:"its process, inside the sandbox"`
	Language string `json:"language" doc:"its language"`
	Version  string `json:"version" doc:"version of the language"`
	Busy     bool   `json:"busy" doc:"a cell runs in it"`
}

// Guest describes the inside of a sandbox.
type Guest struct {
	Version string        `json:"version" doc:"version of recluse inside"`
	Kernel  string        `json:"kernel" doc:"version of the kernel inside"`
	Python  string        `json:"python,omitempty" doc:"path of Python; left out if there is none"`
	Shell   string        `json:"shell,omitempty" doc:"path of the shell; left out if there is none"`
	UID     int           `json:"uid" doc:"user that code runs as"`
	Home    string        `json:"home" doc:"home directory"`
	CPUs    int           `json:"cpus" doc:"processors that code sees"`
	Memory  int64         `json:"memory" doc:"memory that code sees, in bytes"`
	Uptime  time.Duration `json:"uptime_ns" doc:"time since the sandbox started"`

	MemoryUsed   int64         `json:"memory_used" doc:"memory in use, in bytes, with files that are kept in memory"`
	MemoryCached int64         `json:"memory_cached" doc:"memory of files, in bytes, as the kernel reports it"`
	CPUTime      time.Duration `json:"cpu_time_ns" doc:"processor time of all processes since the sandbox started"`
	Disk         int64         `json:"disk" doc:"size of the file system of the home directory, in bytes"`
	DiskUsed     int64         `json:"disk_used" doc:"bytes in use there"`
}

// Incident is something that others did to a sandbox, without recluse, and that the sandbox survived. What ends a
// sandbox is not an incident: calls then fail with an error.
type Incident struct {
	Code    Code              `json:"code" doc:"kind of incident"`
	Message string            `json:"message" doc:"what happened"`
	Time    time.Time         `json:"time" doc:"when it was noticed"`
	Attrs   map[string]string `json:"attrs,omitempty" doc:"details, such as the old and the new name"`
}
