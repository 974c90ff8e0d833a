package rlm

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testfill"
	"github.com/recluse-dev/recluse/sandbox"
)

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func contains(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s lacks %q:\n%s", what, part, text)
	}
}

func TestTheEndOfACellHasTheFieldsOfAVerdict(t *testing.T) {
	v := &sandbox.Verdict{
		Ended:    v1.EndedExit,
		ExitCode: 1,
		Wall:     time.Second,
		Error:    &sandbox.CellError{Traceback: "E"},
		Result:   &sandbox.Bundle{Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"42"`)}},
	}
	testfill.Fill(v)
	v.Stdout, v.Stderr = sandbox.Output{Produced: 3, Head: []byte("out")}, sandbox.Output{Produced: 3, Head: []byte("err")}
	n := &node{run: &Run{limits: DefaultLimits()}}
	b, err := json.Marshal(n.describe(v, false))
	if err != nil {
		t.Fatal(err)
	}
	var written map[string]any
	if err := json.Unmarshal(b, &written); err != nil {
		t.Fatal(err)
	}
	for f := range reflect.TypeFor[sandbox.Verdict]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, there := written[name]; there == (name == "-" || name == "displays") {
			t.Errorf("%s: there %v, in %s", name, there, b)
		}
	}
	var back v1.CellEnded
	if err := json.Unmarshal(b, &back); err != nil || back.Stdout != "out" || back.Stderr != "err" || back.Result != "42" || back.Error != "E" || back.ExitCode != 1 || back.Wall != time.Second || back.Produced != 6 {
		t.Errorf("%+v %v", back, err)
	}
	// Old logs without the fields of the verdict can be read.
	if err := json.Unmarshal([]byte(`{"ended":"start","ok":false,"exit_code":0,"error":"no","produced":0,"wall_ns":5,"cpu_ns":0,"state_kept":true}`), &back); err != nil || back.Ended != v1.EndedStart || !back.StateKept || back.Wall != 5 {
		t.Errorf("%+v %v", back, err)
	}
}

func TestLimitsOfOldRunsAreRead(t *testing.T) {
	var old saved
	if err := json.Unmarshal([]byte(`{"query":"q","limits":{"tokens":7,"cost_usd":-1,"time_ns":300000000000,"calls":-1,"depth":2,"turns":30,"errors":8,"cell_cpu_ns":-1}}`), &old); err != nil {
		t.Fatal(err)
	}
	l := old.Limits.Over(DefaultLimits())
	if *l.Tokens != 7 || *l.Time != *DefaultLimits().Time || *l.CPU != -1 {
		t.Errorf("%+v", l)
	}
}
