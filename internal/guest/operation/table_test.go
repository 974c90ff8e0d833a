//go:build linux

package operation

import (
	"fmt"
	"testing"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// many adds operations that have ended; left reports whether their survivors are alive.
func many(t *testing.T, ops *Table, name string, n int, left func() bool) {
	t.Helper()
	for i := range n {
		o, bad := ops.Add(Request{ID: fmt.Sprintf("%s%d", name, i), Kind: "command", Spool: -1})
		if bad != nil {
			t.Fatal(bad)
		}
		o.SetSurvivors(left)
		o.Finish(&wire.Verdict{})
	}
}

func TestOperationsThatLeftSomethingBehindAreRemembered(t *testing.T) {
	ops := NewTable(t.TempDir())
	remembered := func(id string, want bool) {
		t.Helper()
		if _, bad := ops.Get(id); (bad == nil) != want {
			t.Errorf("%s is kept: %t", id, !want)
		}
	}
	lives := true
	running, bad := ops.Add(Request{ID: "running", Kind: "command", Spool: -1})
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
	running.Finish(&wire.Verdict{})
}

func TestNotMoreThanSoManyOperationsAreRemembered(t *testing.T) {
	ops := NewTable(t.TempDir())
	many(t, ops, "left", keepSurvivors+2*keepFinished, func() bool { return true })
	if n, most := len(ops.All()), keepSurvivors+keepFinished+1; n > most { // the last one is added before it has ended
		t.Errorf("%d operations are kept, want at most %d", n, most)
	}
	if _, bad := ops.Get("left0"); bad == nil {
		t.Error("the oldest operation is kept, and younger ones are not")
	}
}
