package backendkit

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestOptionsAreDecodedStrictly(t *testing.T) {
	type options struct {
		A int `json:"a"`
	}
	for text, bad := range map[string]string{
		`{"a": 7}`:         "",
		`{}`:               "",
		`{"b": 7}`:         `unknown field "b"`,
		`{"A": 7}`:         `unknown field "A"`,
		`{"a": 7, "a": 8}`: `duplicate field "a"`,
		`{"a": "7"}`:       "options of the x backend",
		`{} {}`:            "after top-level value",
		`{} x`:             "after top-level value",
		`[`:                "options of the x backend",
	} {
		var got options
		err := DecodeOptions(sandbox.Spec{Options: map[string]json.RawMessage{"x": []byte(text)}}, "x", &got)
		if bad == "" {
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
		} else if v1.CodeOf(err) != v1.CodeInvalidSpec || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v, want %q", text, err, bad)
		}
	}
	got := options{A: 1}
	if err := DecodeOptions(sandbox.Spec{}, "x", &got); err != nil || got.A != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatPlainProcessesCannotHaveIsRefused(t *testing.T) {
	plain := sandbox.Spec{Env: map[string]string{"A": "1"}, Limits: sandbox.Limits{}.WithDefaults().InMemory()}
	if err := RefusePlain("x", plain, "remove it"); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*sandbox.Spec){
		"let code become root":                func(s *sandbox.Spec) { s.Sudo = true },
		"run code as another user":            func(s *sandbox.Spec) { s.User = "33" },
		"use an image":                        func(s *sandbox.Spec) { s.Image = "i" },
		"make the root file system read-only": func(s *sandbox.Spec) { s.ReadOnly = true },
		"limit disk":                          func(s *sandbox.Spec) { s.Limits.Disk *= 2 },
		"use options of a spec":               func(s *sandbox.Spec) { s.Options = map[string]json.RawMessage{"x": []byte("{}")} },
	} {
		s := plain
		change(&s)
		if err := RefusePlain("x", s, "remove it"); v1.CodeOf(err) != v1.CodeNotSupported || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
