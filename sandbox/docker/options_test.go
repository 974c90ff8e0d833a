package docker

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheOptionsOfASpecAreReadStrictly(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		bad        string // part of the error
	}{
		{"none", ``, ""},
		{"empty", `{}`, ""},
		{"all", `{"host_config": {"CpuShares": 7}, "oom_score_adj": 1000}`, ""},
		{"a score that protects", `{"oom_score_adj": -1}`, "oom_score_adj"},
		{"a score beyond all", `{"oom_score_adj": 1001}`, "oom_score_adj"},
		{"a misspelt field", `{"oom_score": 7}`, "oom_score"},
		{"a list", `[]`, "options of the docker backend"},
		{"two values", `{} {}`, "options of the docker backend"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := sandbox.Spec{Options: map[string]json.RawMessage{Name: []byte(tt.text)}}
			_, err := specOptions(spec)
			switch {
			case tt.bad == "" && err != nil:
				t.Error(err)
			case tt.bad != "" && (v1.CodeOf(err) != v1.CodeInvalidSpec || !strings.Contains(err.Error(), tt.bad)):
				t.Errorf("error %v lacks %q", err, tt.bad)
			}
		})
	}
	for _, text := range []string{`{"CpuShare": 7}`, `{"CpuShares": "7"}`, `{} {}`} {
		if _, err := (Options{HostConfig: []byte(text)}).hostConfig(); v1.CodeOf(err) != v1.CodeInvalidSpec {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSpecOptionsApply(t *testing.T) {
	var spec sandbox.Spec
	if err := (SpecOptions{}).Apply(&spec); err != nil || spec.Options != nil {
		t.Errorf("%v, %v", spec.Options, err)
	}
	score := 7
	if err := (SpecOptions{OOMScoreAdj: &score, HostConfig: []byte(`{"CpuShares": 7}`)}).Apply(&spec); err != nil {
		t.Fatal(err)
	}
	if got, want := string(spec.Options[Name]), `{"host_config":{"CpuShares":7},"oom_score_adj":7}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := (SpecOptions{HostConfig: []byte(`{`)}).Apply(&spec); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("%v", err)
	}
}
