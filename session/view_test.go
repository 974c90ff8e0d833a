package session

import (
	"fmt"
	"slices"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestASleeperKeepsLittle(t *testing.T) {
	var ops []sandbox.Operation
	for i := range 3 * endedKept {
		ops = append(ops, sandbox.Operation{ID: fmt.Sprint(i), Running: i%3 == 0})
	}
	got := recentOperations(slices.Clone(ops))
	running := slices.DeleteFunc(slices.Clone(got), func(o sandbox.Operation) bool { return !o.Running })
	if len(running) != endedKept || len(got) != 2*endedKept || got[len(got)-1].ID != ops[len(ops)-1].ID {
		t.Errorf("%d running of %d kept operations, the last is %s", len(running), len(got), got[len(got)-1].ID)
	}
}
