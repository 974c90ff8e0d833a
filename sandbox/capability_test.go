package sandbox

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestIsolationHasOneSpelling(t *testing.T) {
	for level, word := range map[Isolation]string{
		IsolationNone: "none", IsolationContainer: "container", IsolationKernel: "kernel", IsolationVM: "vm",
	} {
		text, err := json.Marshal(level)
		if err != nil || string(text) != `"`+word+`"` || level.String() != word {
			t.Errorf("%d is written as %s, %v, and shown as %s", level, text, err, level)
		}
		got := Isolation(-1)
		if err := json.Unmarshal(text, &got); err != nil || got != level {
			t.Errorf("%s is read as %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "KERNEL", "user-space kernel", "unknown"} {
		got := IsolationVM
		err := got.UnmarshalText([]byte(text))
		if v1.CodeOf(err) != v1.CodeInvalidRequest || !strings.Contains(err.Error(), "none, container, kernel, vm") || got != IsolationVM {
			t.Errorf("%q is read as %s, %v", text, got, err)
		}
	}
	if got := Isolation(9).String(); got != "unknown" {
		t.Errorf("an unknown level is shown as %s", got)
	}
}
