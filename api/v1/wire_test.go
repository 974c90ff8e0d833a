package v1

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTextKeepsEveryByte(t *testing.T) {
	for name, s := range map[string]string{
		"nothing": "", "a text": "hé\n<&>\u2028", "no text": "\xff\x00", "half a character": "\xc3", "control characters": strings.Repeat("\x00", 100), "one of them": "a\x00b",
	} {
		b, err := json.Marshal(Text(s))
		if err != nil {
			t.Fatal(err)
		}
		var got Text
		if err := json.Unmarshal(b, &got); err != nil || string(got) != s {
			t.Errorf("%s: %s became %q, %v", name, b, got, err)
		}
	}
	for _, bad := range []string{`1`, `{}`, `{"base64":"!"}`, `[]`} {
		var got Text
		if json.Unmarshal([]byte(bad), &got) == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestMarkComesBack(t *testing.T) {
	m := Mark{Op: "c:1", Offsets: Offsets{5, 7}}
	if got, err := ParseMark(m.String()); err != nil || got != m {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "1:2", "1:2:", "-1:2:x", "a:b:c"} {
		if _, err := ParseMark(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestEventsAreReadOneByOne(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	r := NewEventReader(strings.NewReader(": hello\n\nid: 1\nevent: a\ndata: one\n\n:\n\nevent: b\r\ndata: two\r\ndata:three\r\n\r\ndata: " + long + "\n\nid: 4\ndata: half"))
	var got []StreamEvent
	for {
		e, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("incomplete event: %v", err)
			}
			break
		}
		got = append(got, e)
	}
	want := []StreamEvent{{ID: "1", Kind: "a", Data: []byte("one")}, {Kind: "b", Data: []byte("two\nthree")}, {Data: []byte(long)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %.200v", got)
	}
}

func TestOpenGoesThereAndBack(t *testing.T) {
	settings := Settings{
		Spec: &Spec{Shell: "dash"}, Backend: "b", Policy: Policy{Expires: NoLimit, Commands: 3}, From: "a@b",
		Vars: map[string]string{"a": "1"}, Gate: "warn", Role: "r",
	}
	for _, o := range []OpenOptions{{}, {Settings: settings, New: true}, {IfNew: settings}, {Existing: true}} {
		var in OpenRequest
		through(t, OpenRequest{OpenOptions: o}, &in)
		if got := in.OpenOptions; !reflect.DeepEqual(got, o) {
			t.Errorf("got %+v, want %+v", got, o)
		}
	}
}

func TestCellAndCommandGoThereAndBack(t *testing.T) {
	c := Cell{
		Code: "x\xff", Language: "python", Context: "c", Args: []string{"\xfe"},
		RunOptions: RunOptions{
			Env: map[string]string{"A": "1"}, User: "7:8", Timeout: NoLimit, KillGrace: time.Second, KillSurvivors: true,
			InlineBytes: 1, SpoolBytes: -1, ID: "i", Metadata: map[string]string{"m": "1"},
		},
	}
	var in CellRequest
	through(t, NewCellRequest(c), &in)
	if got := in.Cell(); !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v", got)
	}
	d := Command{Args: []string{"a", "\xff"}, Shell: "s\xff", Python: "p\xff", Dir: "/\xff", PTY: &Size{Rows: 1, Cols: 2}, RunOptions: RunOptions{Timeout: time.Minute, ID: "j"}}
	var cmd CommandRequest
	through(t, NewCommandRequest(d), &cmd)
	if got := cmd.Command(); !reflect.DeepEqual(got, d) {
		t.Errorf("got %+v", got)
	}
}

func through(t *testing.T, from, to any) {
	t.Helper()
	b, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}
