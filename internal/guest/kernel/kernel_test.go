package kernel

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func FuzzFrames(f *testing.F) {
	f.Add(AppendFrame(nil, TypeOutput, []byte{1, 0, 0, 0, 1, 'x'}))
	f.Add([]byte{0, 0, 0, 0, 'E'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'D'})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			_, p, err := ReadFrame(r, nil, 1<<16)
			if err != nil {
				return
			}
			if h, b, err := Header(p); err == nil && len(h)+len(b)+4 != len(p) {
				t.Fatal("the sizes of header and body do not match the payload")
			}
		}
	})
}
