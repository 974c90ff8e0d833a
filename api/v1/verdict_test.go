package v1

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestVerdictStatus(t *testing.T) {
	for _, c := range []struct {
		v      Verdict
		status int
		ok     bool
		text   string
	}{
		{Verdict{Ended: EndedExit}, 0, true, "exit status 0"},
		{Verdict{Ended: EndedExit, ExitCode: 3}, 3, false, "exit status 3"},
		{Verdict{Ended: EndedSignal, ExitCode: -1, Signal: syscall.SIGSEGV}, 139, false, "SIGSEGV"},
		{Verdict{Ended: EndedKilled, ExitCode: -1, Signal: syscall.SIGTERM}, 143, false, "on request by SIGTERM"},
		{Verdict{Ended: EndedTimeout, ExitCode: -1, Signal: syscall.SIGKILL, Wall: 2 * time.Second}, 124, false, "2s"},
		{Verdict{Ended: EndedCancelled, ExitCode: -1}, 130, false, "cancelled"},
		{Verdict{Ended: EndedMemory, ExitCode: -1, Signal: syscall.SIGKILL}, 137, false, "memory"},
		{Verdict{Ended: EndedStart, ExitCode: 127, StartError: "nope: not found"}, 127, false, "nope: not found"},
		{Verdict{Ended: EndedStart, ExitCode: 126}, 126, false, "did not start"},
	} {
		if c.v.Status() != c.status || c.v.OK() != c.ok || !strings.Contains(c.v.String(), c.text) {
			t.Errorf("%s: status %d, ok %v, %q; want %d, %v, %q", c.v.Ended, c.v.Status(), c.v.OK(), c.v.String(), c.status, c.ok, c.text)
		}
	}
}

func TestVerdictAsJSON(t *testing.T) {
	v := &Verdict{
		ID: "c1", Ended: EndedSignal, ExitCode: -1, Signal: syscall.SIGKILL, Wall: time.Second, StateKept: true,
		Stdout:    Output{Produced: 10, Head: []byte("ab"), Tail: []byte("\xffz"), File: "/f", InFile: 10},
		Survivors: []Process{{PID: 7, Command: "sleep", Killed: true}}, SurvivorsTotal: 1, Metadata: map[string]string{"k": "v"},
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	out, _ := got["stdout"].(map[string]any)
	for what, is := range map[string]bool{
		"the signal by name":     got["signal"] == "SIGKILL",
		"the shell's status":     got["status"] == 137.0,
		"what ended it":          got["ended"] == "signal",
		"the wall time":          got["wall_ns"] == 1e9,
		"that state is kept":     got["state_kept"] == true,
		"metadata":               got["metadata"].(map[string]any)["k"] == "v",
		"bytes produced":         out["produced"] == 10.0,
		"bytes kept":             out["kept"] == 4.0,
		"bytes cut":              out["cut"] == 6.0,
		"the file":               out["file"] == "/f",
		"valid text":             strings.Contains(out["text"].(string), "\ufffdz"),
		"the survivor":           strings.Contains(string(b), `"survivors":[{"pid":7,"command":"sleep","killed":true}]`),
		"no error where is none": got["error"] == nil,
	} {
		if !is {
			t.Errorf("%s is missing or wrong in %s", what, b)
		}
	}
}

func TestOutput(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Output
		want string
	}{
		{"nothing", Output{}, ""},
		{"all of it", Output{Produced: 3, Head: []byte("abc")}, "abc"},
		{"head and tail that meet", Output{Produced: 4, Head: []byte("ab"), Tail: []byte("cd")}, "abcd"},
		{"a cut with a file", Output{Produced: 10, Head: []byte("a"), Tail: []byte("z"), File: "/f", InFile: 9}, "a\n[… 8 of 10 bytes cut; first 9 bytes in /f …]\nz"},
		{"a cut without one", Output{Produced: 10, Head: []byte("a"), Tail: []byte("z")}, "a\n[… 8 of 10 bytes cut; not kept …]\nz"},
	} {
		if got := c.o.String(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestBundle(t *testing.T) {
	var none *Bundle
	if none.Text() != "" {
		t.Error("no bundle has a text")
	}
	b := &Bundle{Data: map[string]json.RawMessage{"text/plain": []byte(`"a\n"`), "application/json": []byte(`{"x":1}`)}}
	if b.Text() != "a\n" || b.Format("application/json") != "" || b.Format("text/html") != "" {
		t.Errorf("%q, %q", b.Text(), b.Format("application/json"))
	}
}

func TestFormatsThatMustBeTextsAre(t *testing.T) {
	var b Bundle
	raw := `{"data":{"text/plain":{"a":[1]},"text/html":null,"image/png":"AA==","application/json":{"a":1},"application/x-mine":[1]}}`
	if err := json.Unmarshal([]byte(raw), &b); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(b.Data)
	want := `{"application/json":{"a":1},"application/x-mine":[1],"image/png":"AA==","text/plain":"{\"a\":[1]}"}`
	if err != nil || string(got) != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
	}
}
