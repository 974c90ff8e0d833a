package sandbox

import (
	"reflect"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func TestVerdictTakesEveryFieldOfTheGuest(t *testing.T) {
	w := &wire.Verdict{
		Id: "i", Ending: wire.Ending_ENDING_SIGNAL, ExitCode: -1, Signal: 9, Stdout: &wire.Kept{Produced: 1}, Stderr: &wire.Kept{Produced: 1},
		WallNs: 1, CpuNs: 1, PeakMemory: 1, Survivors: []*wire.Process{{Pid: 1}}, StateKept: true, CellError: &wire.CellError{Name: "e"},
		StartError: "s", Metadata: map[string]string{"a": "b"}, Displays: [][]byte{[]byte("{}"), []byte("{}")}, HasResult: true, StartedUnixNs: 1,
		DisplaysDropped: 1, SurvivorsTotal: 1, MemoryKills: 1, StateLostBefore: true,
	}
	fields := w.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !w.ProtoReflect().Has(f) {
			t.Errorf("this test does not set %s", f.Name())
		}
	}
	v := reflect.ValueOf(*verdict(w))
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not converted", v.Type().Field(i).Name)
		}
	}
}
