package docker

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// TestMemoryIsRefusedWithItsReason holds for every runtime: an engine that can write memory to disk can read it back
// only into the same container.
func TestMemoryIsRefusedWithItsReason(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b := newBackend(t, withRuntime(runtime))
			if c := b.Capabilities(t.Context()); c.Snapshots != sandbox.SnapshotsFiles || !strings.Contains(strings.Join(c.Notes, "\n"), noMemory) {
				t.Errorf("capabilities: %s, %q", c.Snapshots, c.Notes)
			}
			copies, err := open(t, b, sandbox.Spec{}).Fork(t.Context(), 1)
			if len(copies) > 0 || v1.CodeOf(err) != v1.CodeNotSupported || !strings.Contains(err.Error(), noMemory) {
				t.Errorf("a fork: %v, %v", copies, err)
			}
			_, _, err = backend.Select(t.Context(), []sandbox.Backend{b}, backend.Requirements{Order: []string{Name}, Snapshots: sandbox.SnapshotsMemory})
			if v1.CodeOf(err) != v1.CodeNoBackend || !strings.Contains(err.Error(), "snapshots") {
				t.Errorf("a snapshot that must contain memory: %v", err)
			}
			if snaps, err := b.Snapshots(t.Context()); err != nil || len(snaps) > 0 {
				t.Errorf("left behind: %v, %v", snaps, err)
			}
		})
	}
}
