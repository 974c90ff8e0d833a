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
	EventNetwork = "network" // NetworkEvent
	EventEnd     = "end"     // nothing more will come
)

// Chunk is a piece of output. Offset is where it begins in the whole stream.
type Chunk struct {
	Offset int64 `json:"offset" doc:"offset of the data in the stream"`
	Data   Text  `json:"data" doc:"output"`
}

// Skipped reports output that is no longer kept.
type Skipped struct {
	Stream int   `json:"stream" doc:"1 for stdout, 2 for stderr"`
	Bytes  int64 `json:"bytes" doc:"bytes that are no longer kept"`
}

// Mark is the id of an event in the stream of an operation. Sent as Last-Event-ID, it continues the stream after that
// event.
type Mark struct {
	Op string
	Offsets
}

// String formats the mark for ParseMark.
func (m Mark) String() string { return fmt.Sprintf("%d:%d:%s", m.Stdout, m.Stderr, m.Op) }

// ParseMark parses the result of String.
func ParseMark(s string) (Mark, error) {
	parts := strings.SplitN(s, ":", 3)
	if len(parts) == 3 && parts[2] != "" {
		o, err1 := strconv.ParseInt(parts[0], 10, 64)
		e, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err1 == nil && err2 == nil && o >= 0 && e >= 0 {
			return Mark{Op: parts[2], Offsets: Offsets{o, e}}, nil
		}
	}
	return Mark{}, &Error{Code: CodeInvalidRequest, Message: "invalid Last-Event-ID: not an id of this server"}
}

// The frames of a WebSocket. Each binary message begins with one of these bytes; the rest is data. Text messages are of
// type Control.
const (
	FrameStdin  byte = 0
	FrameStdout byte = 1
	FrameStderr byte = 2
)

// Attach requests the output and the input of an operation that an earlier connection started.
type Attach struct {
	ID     string `json:"id" doc:"id of the operation"`
	Stdout *int64 `json:"stdout,omitempty" minimum:"0" doc:"offset in stdout to start at; left out: the last 64 KiB"`
	Stderr *int64 `json:"stderr,omitempty" minimum:"0" doc:"offset in stderr to start at; left out: the last 64 KiB"`
}

// Attached reports where the output of an attached operation begins.
type Attached struct {
	ID string `json:"id" doc:"id of the operation"`
	Offsets
}

// Control is a text message of a WebSocket; exactly one field is set, except for Stdin. The first message of the caller
// is a cell, a command, or the operation to attach to.
type Control struct {
	Cell     *CellRequest    `json:"cell,omitempty" doc:"cell to run; only in the first message"`
	Command  *CommandRequest `json:"command,omitempty" doc:"command to run; only in the first message"`
	Attach   *Attach         `json:"attach,omitempty" doc:"operation to attach to; only in the first message"`
	Stdin    bool            `json:"stdin,omitempty" doc:"with a cell or command: input follows"`
	StdinEnd bool            `json:"stdin_end,omitempty" doc:"end of the input"`
	Resize   *Size           `json:"resize,omitempty" doc:"new size of the terminal"`
	Cancel   bool            `json:"cancel,omitempty" doc:"cancel it; the verdict follows"`

	Started  *Started  `json:"started,omitempty" doc:"the operation has started"`
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

// Decode decodes the event's data into v.
func (e StreamEvent) Decode(v any) error { return json.Unmarshal(e.Data, v) }

// EventReader reads server-sent events.
type EventReader struct{ r *bufio.Reader }

// NewEventReader returns a reader of the events in r.
func NewEventReader(r io.Reader) *EventReader { return &EventReader{bufio.NewReader(r)} }

// Next returns the next event and skips comments. It returns io.EOF only between events.
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
			return "", errors.New("event is larger than 64 MiB")
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
