package v1

import (
	"encoding/json"
	"fmt"
	"syscall"
	"time"
)

// Ending is what ended a cell or command.
type Ending string

// The ways to end.
const (
	EndedExit      Ending = "exit"      // by itself; ExitCode says how
	EndedSignal    Ending = "signal"    // by a signal that the caller did not ask for
	EndedTimeout   Ending = "timeout"   // its time was up
	EndedCancelled Ending = "cancelled" // its caller cancelled it
	EndedMemory    Ending = "memory"    // it reached the memory limit
	EndedKilled    Ending = "killed"    // by a signal the caller asked for
	EndedStart     Ending = "start"     // it never ran: not found (127) or not executable (126)
)

// Verdict is everything that is known about how a cell or command ended.
type Verdict struct {
	ID    string `json:"id"`
	Ended Ending `json:"ended" enum:"exit,signal,timeout,cancelled,memory,killed,start"`
	// ExitCode is the process's own with EndedExit and EndedStart, else -1. For a cell
	// it is 0, 1 after an exception, or what the code gave to exit.
	ExitCode int            `json:"exit_code"`
	Signal   syscall.Signal `json:"-"`
	Stdout   Output         `json:"stdout"`
	Stderr   Output         `json:"stderr"`
	Started  time.Time      `json:"started"`
	Wall     time.Duration  `json:"wall_ns"`
	// CPU is what the sandbox's kernel counted for it and the children it waited for. gVisor counts by ticks, also
	// while a CPU limit holds the process back.
	CPU time.Duration `json:"cpu_ns"`
	// PeakMemory is the largest resident set seen of one process. For a cell it is
	// the interpreter's since it started.
	PeakMemory int64 `json:"peak_memory"`
	// MemoryKills counts processes of it that were killed for memory, its main one or not. Where the host's kernel kills, as in containers on runc, and
	// several operations run at once, only the main one's end tells whose they were.
	MemoryKills int `json:"memory_kills,omitempty"`
	// Survivors are processes the cell or command left alive; those with Killed set
	// were ended by us. At most 64 are listed, SurvivorsTotal counts them all.
	Survivors      []Process `json:"survivors,omitempty"`
	SurvivorsTotal int       `json:"survivors_total,omitempty"`
	// StateKept reports, for a cell, that the interpreter and its variables live on.
	StateKept bool `json:"state_kept"`
	// StateLostBefore reports that the interpreter had died since the cell before, so that this one began without its variables.
	StateLostBefore bool `json:"state_lost_before,omitempty"`
	// Error is the exception of a cell, nil for none.
	Error *CellError `json:"error,omitempty"`
	// StartError is why a command never ran.
	StartError string `json:"start_error,omitempty"`
	// Displays are what a cell showed, in order; Result is the value of its last expression.
	Displays        []Bundle          `json:"displays,omitempty"`
	DisplaysDropped int               `json:"displays_dropped,omitempty"`
	Result          *Bundle           `json:"result,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
}

// OK reports a natural end with exit code 0.
func (v *Verdict) OK() bool { return v.Ended == EndedExit && v.ExitCode == 0 }

// Status is the exit status a shell would report: the command's own, 124 for a timeout, 128 and the signal's number for a signal, 130
// for a cancel.
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

// String returns in one line what ended it.
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
	Produced int64  `json:"produced"`             // bytes written by the code
	Head     []byte `json:"-"`                    // the first bytes
	Tail     []byte `json:"-"`                    // the last bytes, empty when Head holds everything
	File     string `json:"file,omitempty"`       // the output in the sandbox, when there was more than was kept here
	InFile   int64  `json:"file_bytes,omitempty"` // bytes of it
}

// Kept is the number of bytes in Head and Tail.
func (o Output) Kept() int64 { return int64(len(o.Head) + len(o.Tail)) }

// Cut is the number of bytes missing between Head and Tail.
func (o Output) Cut() int64 { return o.Produced - o.Kept() }

// String returns what was kept, with a line that says what is missing and where it is.
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
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Killed  bool   `json:"killed"`
}

// CellError is an exception that left a cell.
type CellError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
	Line      int    `json:"line,omitempty"` // in the cell, 0 when unknown
}

// Bundle is one shown value in several formats, by MIME type. Binary formats are base64.
type Bundle struct {
	Data     map[string]json.RawMessage `json:"data"`
	Metadata json.RawMessage            `json:"metadata,omitempty"`
}

// Text returns the text/plain format, or "".
func (b *Bundle) Text() string { return b.Format("text/plain") }

// Format returns a format that is a string, or "".
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
