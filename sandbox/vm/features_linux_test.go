package vm

import (
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

func TestFeatures(t *testing.T) {
	b := testBackend(t)
	many, groups := 2, []string{"life", "attachments", "snapshots"} // each start of an emulated machine takes a processor
	if testneed.AllTests() {
		many, groups = 8, nil
	}
	without := map[string]string{
		"the CPU limit slows down": "it limits to a fraction of a processor, which this backend refuses: TestWhatAMachineCannotDo",
	}
	if b.Capabilities(t.Context()).Emulated {
		without["copies and snapshots contain 2 GB of files"] = "an emulated processor needs minutes for the bytes; the other test of copies has 40 MB"
	}
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) {
			r, err := b.load(sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(r.Process.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Leftovers:  func(_ *testing.T, ids []string) []string { return leftovers(b, ids) },
		Without:    without,
		EndUnknown: true, // KillGuest ends the monitor: only the end of the machine is known, not that of the guest
		Only:       groups,
		Many:       many,
		Scope:      sandboxtest.BackendFeatures,
		Serial:     true,
	})
}
