package procgroup

import (
	"io"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestATailKeepsTheLastBytes(t *testing.T) {
	tail := &Tail{Max: 8}
	for _, tt := range []struct{ more, want string }{
		{"", ""},
		{" one\n", "one"},
		{"two", "one\ntwo"},
		{"and \xff\n", "woand \uFFFD"},
		{"far more than there is place for", "lace for"},
	} {
		if n, err := io.WriteString(tail, tt.more); n != len(tt.more) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if got := tail.String(); got != tt.want {
			t.Errorf("after %q the tail is %q, want %q", tt.more, got, tt.want)
		}
	}
}
