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
	many := 2 // each emulated machine takes a processor while it starts
	if testneed.AllTests() {
		many = 8
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
		Leftovers: func(_ *testing.T, ids []string) []string { return leftovers(b, ids) },
		Without: map[string]string{
			"the CPU limit slows down": "it limits to a fraction of a processor, which this backend refuses: TestWhatAMachineCannotDo",
		},
		Many:   many,
		Scope:  sandboxtest.BackendFeatures,
		Serial: true,
	})
}
