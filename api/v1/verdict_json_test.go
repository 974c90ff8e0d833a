package v1

import (
	"encoding/json"
	"reflect"
	"syscall"
	"testing"
	"time"
)

func TestVerdictSurvivesJSON(t *testing.T) {
	for name, v := range map[string]*Verdict{
		"a plain end":         {ID: "x1", Ended: EndedExit, Stdout: Output{Produced: 3, Head: []byte("a\n\x00")}, StateKept: true},
		"a cut in the middle": {Ended: EndedExit, Stdout: Output{Produced: 99, Head: []byte("head"), Tail: []byte("tail"), File: "/f", InFile: 50}},
		"a tail alone":        {Ended: EndedExit, Stderr: Output{Produced: 9, Tail: []byte("end")}},
		"head and tail whole": {Ended: EndedExit, Stderr: Output{Produced: 4, Head: []byte("ab"), Tail: []byte("cd")}},
		"bytes that are no text": {
			Ended: EndedExit, Stdout: Output{Produced: 7, Head: []byte("\xff\xfe"), Tail: []byte("é")}, Stderr: Output{Produced: 1, Head: []byte("\xc3")},
		},
		"a replacement character that was really written": {Ended: EndedExit, Stdout: Output{Produced: 3, Head: []byte("\ufffd")}},
		"a signal": {Ended: EndedSignal, ExitCode: -1, Signal: syscall.SIGKILL, Wall: time.Second, CPU: 3, PeakMemory: 5, MemoryKills: 1},
		"everything of a cell": {
			Ended: EndedExit, ExitCode: 1, Error: &CellError{Name: "ValueError", Value: "no", Traceback: "t", Line: 2},
			Displays: []Bundle{{Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"1"`)}}},
			Result:   &Bundle{Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"42"`)}, Metadata: map[string]json.RawMessage{"a": json.RawMessage("1")}},
			Metadata: map[string]string{"k": "v"}, Survivors: []Process{{PID: 7, Command: "sleep"}}, SurvivorsTotal: 1, StateLostBefore: true,
			Started: time.Unix(1700000000, 123456789).UTC(), DisplaysDropped: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var got Verdict
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(&got, v) {
				t.Errorf("%s\ngot  %+v\nwant %+v", b, &got, v)
			}
		})
	}
}

func TestOutputThatContradictsItselfIsRefused(t *testing.T) {
	for _, s := range []string{`{"text":"ab","kept":9}`, `{"text":"ab","kept":1,"tail_bytes":2}`, `{"text":"ab","kept":-1}`, `{"text":"ab","kept":2,"tail_bytes":-1}`} {
		var o Output
		if json.Unmarshal([]byte(s), &o) == nil {
			t.Errorf("%s was accepted as %+v", s, o)
		}
	}
}

func TestNoOutputIsWrittenAsItsTypeSays(t *testing.T) {
	want, err := json.Marshal(outputJSON{})
	if err != nil || string(want) != noOutput {
		t.Errorf("got %s, want %s, %v", noOutput, want, err)
	}
	if got, err := json.Marshal(Output{}); err != nil || string(got) != noOutput {
		t.Errorf("got %s, want %s, %v", got, noOutput, err)
	}
}
