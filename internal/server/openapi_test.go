package server

import (
	"encoding/json"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testfill"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheSchemaOfAVerdictIsWhatIsWritten(t *testing.T) {
	var v sandbox.Verdict
	testfill.Fill(&v)
	v.Signal = syscall.SIGTERM
	written := map[string]json.RawMessage{}
	b, err := json.Marshal(&v)
	if err == nil {
		err = json.Unmarshal(b, &written)
	}
	if err != nil {
		t.Fatal(err)
	}
	var stdout map[string]json.RawMessage
	if err := json.Unmarshal(written["stdout"], &stdout); err != nil {
		t.Fatal(err)
	}
	raw, err := Document("1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]map[string]json.RawMessage{"Verdict": written, "Output": stdout} {
		if got, want := slices.Sorted(maps.Keys(doc.Components.Schemas[name].Properties)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("%s has %v, and is written with %v", name, got, want)
		}
	}
}
