package mcp

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/schema"
	"github.com/recluse-dev/recluse/internal/testfill"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheSchemaOfLimitsFitsTheirJSON(t *testing.T) {
	schema, err := (&schema.Set{}).Of(reflect.TypeFor[v1.RunLimits]()).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var l v1.RunLimits
	for _, f := range l.Fields() {
		if err := f.Set("3"); err != nil {
			t.Fatal(err)
		}
	}
	for text, good := range map[string]bool{
		string(mustJSON(t, l)): true, `{}`: true, `{"tokens":-1,"time":"none"}`: true, `{"tokens":-2}`: false, `{"turns":0}`: false, `{"time":3}`: false, `{"max_tokens":3}`: false,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnOutcomeHasTheFieldsOfAVerdict(t *testing.T) {
	v := &sandbox.Verdict{
		Ended:  v1.EndedSignal,
		Signal: 15,
		Stdout: sandbox.Output{Produced: 3, Head: []byte("out")},
		Result: &sandbox.Bundle{Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"42"`)}},
	}
	testfill.Fill(v)
	o := outcomeOf("work", true, v)
	o.StateKept = &v.StateKept
	var written map[string]any
	if err := json.Unmarshal(mustJSON(t, o), &written); err != nil {
		t.Fatal(err)
	}
	for f := range reflect.TypeFor[sandbox.Verdict]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		_, there := written[name]
		if leftOut := name == "-" || name == "displays" || name == "metadata"; there == leftOut {
			t.Errorf("%s: there %v, in %v", name, there, written)
		}
	}
	if !strings.HasPrefix(written["stdout"].(string), "out") || written["result"] != "42" || written["signal"] != "terminated" {
		t.Errorf("%v", written)
	}
}
