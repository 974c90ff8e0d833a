package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// Output is most of what crosses the wire, so its bytes are not copied. The hand-written reader has to know each of its fields.
func TestOutputIsReadInPlace(t *testing.T) {
	want := &Frame{Body: &Frame_Output{Output: &Output{Stream: 2, Offset: 7, Data: []byte("bytes"), Skipped: 3}}}
	b, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &Frame{}
	if !shareOutput(got, b) || !proto.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	data := got.GetOutput().Data
	if clear(b); string(data) == "bytes" {
		t.Error("the data were copied")
	}
	if b, err = proto.Marshal(&Frame{Body: &Frame_Display{Display: &Display{Bundle: []byte("{}")}}}); err != nil || shareOutput(&Frame{}, b) {
		t.Errorf("another message was taken for output, %v", err)
	}
}
