package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// Most of the traffic is Output, so its bytes are not copied. The hand-written decoder must know all its fields.
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
		t.Error("the data was copied")
	}
	if b, err = proto.Marshal(&Frame{Body: &Frame_Display{Display: &Display{Bundle: []byte("{}")}}}); err != nil || shareOutput(&Frame{}, b) {
		t.Errorf("another message was decoded as output: %v", err)
	}
}
