package v1

import (
	"encoding/json"
	"fmt"
	"reflect"
	"syscall"
	"unicode/utf8"
)

// verdictJSON is the JSON form of a Verdict.
type verdictJSON struct {
	*plainVerdict
	Signal string `json:"signal,omitempty" doc:"name of the signal that ended it"`
	Number int    `json:"signal_number,omitempty" doc:"number of that signal"`
	Status int    `json:"status" doc:"exit status that a shell would report"`
}

type plainVerdict Verdict

// JSONType returns the type whose fields describe the JSON of a verdict.
func (Verdict) JSONType() reflect.Type { return reflect.TypeFor[verdictJSON]() }

// MarshalJSON adds the name and number of the signal and the status of a shell. Nothing is lost: UnmarshalJSON returns
// an equal verdict.
func (v *Verdict) MarshalJSON() ([]byte, error) {
	out := verdictJSON{plainVerdict: (*plainVerdict)(v), Status: v.Status()}
	if v.Signal != 0 {
		out.Signal, out.Number = signalName(v.Signal), int(v.Signal)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the result of MarshalJSON. It uses the number of the signal, not its name: names differ between
// systems.
func (v *Verdict) UnmarshalJSON(b []byte) error {
	in := verdictJSON{plainVerdict: (*plainVerdict)(v)}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	v.Signal = syscall.Signal(in.Number)
	return nil
}

// outputJSON is the JSON form of an Output. The text contains head and tail; they have fields of their own only if the
// text cannot represent them.
type outputJSON struct {
	Text      string `json:"text" doc:"output that was kept, invalid UTF-8 replaced, with a line where something was cut"`
	Kept      int64  `json:"kept" doc:"bytes that were kept"`
	Cut       int64  `json:"cut" doc:"bytes that were not kept"`
	TailBytes int    `json:"tail_bytes,omitempty" doc:"bytes at the end of the text that are the tail"`
	Head      []byte `json:"head_base64,omitempty" doc:"first bytes; only if the text replaces invalid UTF-8"`
	Tail      []byte `json:"tail_base64,omitempty" doc:"last bytes; only if the text replaces invalid UTF-8"`
	plainOutput
}

type plainOutput Output

// JSONType returns the type whose fields describe the JSON of an output.
func (Output) JSONType() reflect.Type { return reflect.TypeFor[outputJSON]() }

// noOutput is the JSON of an empty output. Most verdicts have one or two of them, and decoding one by reflection takes
// 1.5 µs.
const noOutput = `{"text":"","kept":0,"cut":0,"produced":0}`

// MarshalJSON writes the kept output as text, with invalid UTF-8 replaced, and the true counts. If bytes were replaced,
// the original bytes follow in base64.
func (o Output) MarshalJSON() ([]byte, error) {
	if o.Produced == 0 && o.Kept() == 0 && o.File == "" && o.InFile == 0 {
		return []byte(noOutput), nil
	}
	out := outputJSON{
		Text:        o.String(),
		Kept:        o.Kept(),
		Cut:         o.Cut(),
		TailBytes:   len(o.Tail),
		plainOutput: plainOutput(o),
	}
	if !utf8.Valid(o.Head) || !utf8.Valid(o.Tail) {
		out.Head, out.Tail = o.Head, o.Tail
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the result of MarshalJSON.
func (o *Output) UnmarshalJSON(b []byte) error {
	if string(b) == noOutput {
		*o = Output{}
		return nil
	}
	var in outputJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*o = Output(in.plainOutput)
	if in.Head != nil || in.Tail != nil {
		o.Head, o.Tail = in.Head, in.Tail
		return nil
	}
	tail := in.TailBytes
	head := int(in.Kept) - tail
	if head < 0 || tail < 0 || head+tail > len(in.Text) {
		return fmt.Errorf("output text of %d bytes is shorter than its count of %d bytes", len(in.Text), in.Kept)
	}
	if head > 0 {
		o.Head = []byte(in.Text[:head])
	}
	if tail > 0 {
		o.Tail = []byte(in.Text[len(in.Text)-tail:])
	}
	return nil
}
