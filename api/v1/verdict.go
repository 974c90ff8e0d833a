package v1

import (
	"encoding/json"
	"fmt"
	"syscall"
	"time"
)

// Ending is how a cell or command ended.
type Ending string

// The ways in which a cell or command can end.
const (
	EndedExit      Ending = "exit"      // it exited by itself, with ExitCode
	EndedSignal    Ending = "signal"    // by a signal that the caller did not request
	EndedTimeout   Ending = "timeout"   // it reached its timeout
	EndedCancelled Ending = "cancelled" // its caller cancelled it
	EndedMemory    Ending = "memory"    // it reached the memory limit
	EndedKilled    Ending = "killed"    // by a signal that the caller requested
	EndedStart     Ending = "start"     // it never ran: not found (127) or not executable (126)
)

// Verdict is everything that is known about how a cell or command ended.
type Verdict struct {
	ID              string            `json:"id" doc:"id of the cell or command"`
	Ended           Ending            `json:"ended" enum:"exit,signal,timeout,cancelled,memory,killed,start" doc:"what ended it"`
	ExitCode        int               `json:"exit_code" doc:"exit code of the process, or -1 if it did not exit; of a cell 0, 1 after an exception, or the code given to exit"`
	Signal          syscall.Signal    `json:"-"`
	Stdout          Output            `json:"stdout" doc:"stdout"`
	Stderr          Output            `json:"stderr" doc:"stderr"`
	Started         time.Time         `json:"started" doc:"when it started"`
	Wall            time.Duration     `json:"wall_ns" doc:"how long it took"`
	CPU             time.Duration     `json:"cpu_ns" doc:"CPU time of it and of the children it waited for; gVisor counts ticks, also while a CPU limit throttles the process"`
	PeakMemory      int64             `json:"peak_memory" doc:"largest resident set of one process, in bytes; for a cell that of the interpreter since its start"`
	MemoryKills     int               `json:"memory_kills,omitempty" doc:"number of its processes that were OOM-killed; where the host's kernel kills and several operations run at once, only its main process is counted reliably"`
	Survivors       []Process         `json:"survivors,omitempty" doc:"processes that it left running; recluse killed those marked as killed; at most 64 are listed"`
	SurvivorsTotal  int               `json:"survivors_total,omitempty" doc:"number of processes it left running"`
	StateKept       bool              `json:"state_kept" doc:"the interpreter and its variables are still there"`
	StateLostBefore bool              `json:"state_lost_before,omitempty" doc:"the interpreter had died since the previous cell, so this one started without its variables"`
	Error           *CellError        `json:"error,omitempty" doc:"exception of a cell"`
	StartError      string            `json:"start_error,omitempty" doc:"why a command could not be started"`
	Displays        []Bundle          `json:"displays,omitempty" doc:"values that a cell displayed, in order"`
	DisplaysDropped int               `json:"displays_dropped,omitempty" doc:"displayed values that were too many or too large to keep"`
	Result          *Bundle           `json:"result,omitempty" doc:"value of the last expression of a cell"`
	Network         []NetworkUse      `json:"network,omitempty" doc:"destinations on the network that it used or was denied; at most 64 are listed"`
	Metadata        map[string]string `json:"metadata,omitempty" doc:"metadata of the request, with the trace added"`
}

// OK reports whether the operation exited by itself with exit code 0.
func (v *Verdict) OK() bool { return v.Ended == EndedExit && v.ExitCode == 0 }

// Status returns the exit status that a shell would report: that of the command, 124 for a timeout, 128 plus the signal
// number for a signal, 130 for a cancellation.
func (v *Verdict) Status() int {
	switch v.Ended {
	case EndedTimeout:
		return 124
	case EndedCancelled:
		return 130
	case EndedMemory:
		return 128 + int(syscall.SIGKILL)
	case EndedSignal, EndedKilled:
		return 128 + int(v.Signal)
	default:
		return v.ExitCode
	}
}

// String describes in one line how the operation ended.
func (v *Verdict) String() string {
	switch v.Ended {
	case EndedTimeout:
		return fmt.Sprintf("timed out after %s", v.Wall.Round(time.Millisecond))
	case EndedCancelled:
		return "cancelled"
	case EndedMemory:
		return "killed: out of memory"
	case EndedKilled:
		return "killed on request by " + signalName(v.Signal)
	case EndedSignal:
		return "ended by " + signalName(v.Signal)
	case EndedStart:
		return "did not start: " + v.StartError
	case EndedExit:
	}
	return fmt.Sprintf("exit status %d", v.ExitCode)
}

// Output is one stream of a cell or command.
type Output struct {
	Produced int64  `json:"produced" doc:"bytes that were written"`
	Head     []byte `json:"-"` // first bytes
	Tail     []byte `json:"-"` // last bytes; empty if Head holds everything
	File     string `json:"file,omitempty" doc:"file in the sandbox that holds more of the output"`
	InFile   int64  `json:"file_bytes,omitempty" doc:"bytes in that file"`
}

// Kept returns the number of bytes in Head and Tail.
func (o Output) Kept() int64 { return int64(len(o.Head) + len(o.Tail)) }

// Cut returns the number of bytes that are missing between Head and Tail.
func (o Output) Cut() int64 { return o.Produced - o.Kept() }

// String returns the kept output, with a line that says how much is missing and where to find it.
func (o Output) String() string {
	if o.Cut() <= 0 {
		return string(o.Head) + string(o.Tail)
	}
	where := "not kept"
	if o.File != "" {
		where = fmt.Sprintf("first %d bytes in %s", o.InFile, o.File)
	}
	return fmt.Sprintf("%s\n[… %d of %d bytes cut; %s …]\n%s", o.Head, o.Cut(), o.Produced, where, o.Tail)
}

// Process is one process inside a sandbox.
type Process struct {
	PID     int    `json:"pid" doc:"process id, inside the sandbox"`
	Command string `json:"command" doc:"command line"`
	Killed  bool   `json:"killed" doc:"recluse killed it"`
}

// CellError is an exception that a cell did not catch.
type CellError struct {
	Name      string `json:"name" doc:"class of the exception"`
	Value     string `json:"value" doc:"text of the exception"`
	Traceback string `json:"traceback" doc:"traceback"`
	Line      int    `json:"line,omitempty" doc:"line of the cell; 0: unknown"`
}

// Bundle is one displayed value in several formats.
type Bundle struct {
	Data     Formats                    `json:"data" doc:"the value in each format"`
	Metadata map[string]json.RawMessage `json:"metadata,omitempty" doc:"metadata of the formats, by MIME type"`
}

// Text returns the text/plain format, or "".
func (b *Bundle) Text() string { return b.Format("text/plain") }

// Format returns the format mime if it is a string, or "".
func (b *Bundle) Format(mime string) string {
	if b == nil {
		return ""
	}
	var s string
	if json.Unmarshal(b.Data[mime], &s) != nil {
		return ""
	}
	return s
}
