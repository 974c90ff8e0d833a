//go:build linux

package operation

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func TestAListTellsNoLongMetadata(t *testing.T) {
	long := strings.Repeat("x", listedMetadata)
	got := brief(&wire.Verdict{Metadata: map[string]string{"a": "1", "long": long, "z": "2"}}).Metadata
	if want := map[string]string{"a": "1", "z": "2"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestAListedVerdictLacksNothingButWhatIsLarge(t *testing.T) {
	kept := &wire.Kept{Produced: 7, Head: []byte("head"), Tail: []byte("tail"), File: "f", FileBytes: 3}
	v := &wire.Verdict{
		Id: "i", Ending: wire.Ending_ENDING_EXIT, ExitCode: 1, Signal: 2, Stdout: kept, Stderr: kept, WallNs: 3, StateLostBefore: true,
		CellError: &wire.CellError{Name: "E", Value: strings.Repeat("v", 2<<10), Traceback: "t", Line: 4}, Displays: [][]byte{{1}}, HasResult: true,
		Survivors: []*wire.Process{{Pid: 5, Command: strings.Repeat("c", 1<<10), Killed: true}}, SurvivorsTotal: 9,
	}
	before := proto.CloneOf(v)
	b := brief(v)
	if !proto.Equal(v, before) {
		t.Error("the verdict itself has changed")
	}
	fields := v.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		large := f.Name() == "displays" || f.Name() == "has_result"
		if v.ProtoReflect().Has(f) && b.ProtoReflect().Has(f) == large {
			t.Errorf("%s is listed: %t", f.Name(), !large)
		}
	}
	if b.Stdout.Head != nil || b.Stdout.Produced != 7 || b.Stderr.File != "f" || b.CellError.Traceback != "" || b.CellError.Line != 4 || !b.Survivors[0].Killed {
		t.Errorf("%v", b)
	}
	if n := proto.Size(b); n > 2<<10 {
		t.Errorf("%d bytes", n)
	}
}
