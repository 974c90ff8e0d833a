package v1

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The events of a running cell or command, as server-sent events and as text messages of a WebSocket.
const (
	EventStarted = "started" // Started
	EventStdout  = "stdout"  // Chunk
	EventStderr  = "stderr"  // Chunk
	EventSkipped = "skipped" // Skipped
	EventDisplay = "display" // sandbox.Bundle
	EventVerdict = "verdict" // sandbox.Verdict, the last
	EventProblem = "problem" // Problem, the last
	EventChange  = "change"  // FileEvent
	EventSession = "event"   // session.Event
	EventEnd     = "end"     // nothing more will come
)

// Chunk is a piece of output. Offset is where it begins in the whole stream.
type Chunk struct {
	Offset int64 `json:"offset" doc:"offset of the data in the stream"`
	Data   Text  `json:"data" doc:"output"`
}

// Skipped tells of output that is no longer kept.
type Skipped struct {
	Stream int   `json:"stream" doc:"1 for stdout, 2 for stderr"`
	Bytes  int64 `json:"bytes" doc:"bytes that are no longer kept"`
}

// Mark is the id of an event of an operation's stream: what to give as Last-Event-ID to go on behind it.
type Mark struct {
	Op string
	Offsets
}

// String writes a mark.
func (m Mark) String() string { return fmt.Sprintf("%d:%d:%s", m.Stdout, m.Stderr, m.Op) }

// ParseMark reads what String wrote.
func ParseMark(s string) (Mark, error) {
	parts := strings.SplitN(s, ":", 3)
	if len(parts) == 3 && parts[2] != "" {
		o, err1 := strconv.ParseInt(parts[0], 10, 64)
		e, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err1 == nil && err2 == nil && o >= 0 && e >= 0 {
			return Mark{Op: parts[2], Offsets: Offsets{o, e}}, nil
		}
	}
	return Mark{}, &Error{Code: CodeInvalidRequest, Message: "Last-Event-ID is not one that this server gave"}
}

// The frames of a WebSocket. Each binary message begins with one of these bytes; the rest is data. Text messages are Control.
const (
	FrameStdin  byte = 0
	FrameStdout byte = 1
	FrameStderr byte = 2
)

// Attach asks for the output and the input of an operation that an earlier connection began.
type Attach struct {
	ID     string `json:"id" doc:"id of the operation"`
	Stdout *int64 `json:"stdout,omitempty" minimum:"0" doc:"offset in stdout to begin at; left out: the last 64 KiB"`
	Stderr *int64 `json:"stderr,omitempty" minimum:"0" doc:"offset in stderr to begin at; left out: the last 64 KiB"`
}

// Attached says where the output of an attached operation begins.
type Attached struct {
	ID string `json:"id" doc:"id of the operation"`
	Offsets
}

// Control is a text message of a WebSocket; one field is set. The caller's first is a cell, a command or the id of one that runs.
type Control struct {
	Cell     *CellRequest    `json:"cell,omitempty" doc:"cell to run; only in the first message"`
	Command  *CommandRequest `json:"command,omitempty" doc:"command to run; only in the first message"`
	Attach   *Attach         `json:"attach,omitempty" doc:"operation to go on with; only in the first message"`
	Stdin    bool            `json:"stdin,omitempty" doc:"with a cell or command: input will follow"`
	StdinEnd bool            `json:"stdin_end,omitempty" doc:"there is no more input"`
	Resize   *Size           `json:"resize,omitempty" doc:"new size of the terminal"`
	Cancel   bool            `json:"cancel,omitempty" doc:"end it; the verdict follows"`

	Started  *Started  `json:"started,omitempty" doc:"the operation has begun"`
	Attached *Attached `json:"attached,omitempty" doc:"the operation was found"`
	Skipped  *Skipped  `json:"skipped,omitempty" doc:"output that is no longer kept"`
	Display  *Bundle   `json:"display,omitempty" doc:"value that the code displays"`
	Verdict  *Verdict  `json:"verdict,omitempty" doc:"how it ended; the last message"`
	Problem  *Problem  `json:"problem,omitempty" doc:"why it failed; the last message"`
}

// maxEvent bounds one event: a display may hold an image.
const maxEvent = 64 << 20

// StreamEvent is one server-sent event.
type StreamEvent struct {
	ID, Kind string
	Data     []byte
}

// Decode reads its data.
func (e StreamEvent) Decode(v any) error { return json.Unmarshal(e.Data, v) }

// EventReader reads server-sent events.
type EventReader struct{ r *bufio.Reader }

// NewEventReader reads from r.
func NewEventReader(r io.Reader) *EventReader { return &EventReader{bufio.NewReader(r)} }

// Next gives the next event; comments are passed over. io.EOF comes only between events.
func (r *EventReader) Next() (StreamEvent, error) {
	var e StreamEvent
	some := false
	for {
		line, err := r.line()
		if err != nil {
			if some && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return StreamEvent{}, err
		}
		if line == "" {
			if some {
				return e, nil
			}
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			e.ID, some = value, true
		case "event":
			e.Kind, some = value, true
		case "data":
			if len(e.Data) > 0 {
				e.Data = append(e.Data, '\n')
			}
			e.Data, some = append(e.Data, value...), true
		}
	}
}

func (r *EventReader) line() (string, error) {
	var b []byte
	for {
		part, err := r.r.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > maxEvent {
			return "", errors.New("an event is larger than 64 MiB")
		}
		if err == nil {
			return strings.TrimRight(string(b), "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if len(b) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}
