//go:build linux

package agent

import (
	"fmt"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// many adds operations that have ended; left says of each whether something lives that it has left behind.
func many(t *testing.T, ops *table, name string, n int, left func() bool) {
	t.Helper()
	for i := range n {
		o, bad := ops.add(newOp{id: fmt.Sprintf("%s%d", name, i), kind: "command", spool: -1})
		if bad != nil {
			t.Fatal(bad)
		}
		o.mu.Lock()
		o.left = left
		o.mu.Unlock()
		o.finish(&wire.Verdict{})
	}
}

func TestOperationsThatLeftSomethingBehindAreRemembered(t *testing.T) {
	ops := &table{dir: t.TempDir(), ops: map[string]*op{}}
	remembered := func(id string, want bool) {
		t.Helper()
		if _, bad := ops.get(id); (bad == nil) != want {
			t.Errorf("%s is remembered: %t", id, !want)
		}
	}
	lives := true
	running, bad := ops.add(newOp{id: "running", kind: "command", spool: -1})
	if bad != nil {
		t.Fatal(bad)
	}
	many(t, ops, "left", 1, func() bool { return lives })
	many(t, ops, "gone", 1, func() bool { return false })
	many(t, ops, "other", keepFinished+2, nil)
	remembered("running", true)
	remembered("left0", true)
	remembered("gone0", false)
	remembered("other0", false)
	remembered(fmt.Sprintf("other%d", keepFinished+1), true)
	lives = false
	many(t, ops, "next", 1, nil)
	remembered("left0", false)
	running.finish(&wire.Verdict{})
}

func TestNotMoreThanSoManyOperationsAreRemembered(t *testing.T) {
	ops := &table{dir: t.TempDir(), ops: map[string]*op{}}
	many(t, ops, "left", keepLeft+2*keepFinished, func() bool { return true })
	if n, most := len(ops.all()), keepLeft+keepFinished+1; n > most { // the last one was added before it had ended
		t.Errorf("%d operations are remembered, and %d may be", n, most)
	}
	if _, bad := ops.get("left0"); bad == nil {
		t.Error("the oldest is remembered, and younger ones are not")
	}
}
