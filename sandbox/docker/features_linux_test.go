package docker

import (
	"context"
	"strconv"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// killGuest kills the first process of a container directly, not through the Docker engine.
func killGuest(t *testing.T, b *Backend, id string) {
	t.Helper()
	r, _, err := b.find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(docker(t, "inspect", "--format", "{{.State.Pid}}", r.Container))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func features(t *testing.T, b *Backend, scope sandboxtest.Scope) {
	without := map[string]string{}
	if !dockertest.Owned() {
		without["the machine's memory is the limit"] = "an engine that is not the tests' own may have gVisor's own runsc, which shows what the engine allows"
	}
	t.Cleanup(func() { // tests of the suite continue after Run has returned
		all, err := b.List(context.Background())
		if err != nil || len(all) > 0 {
			t.Errorf("left behind: %+v, %v", all, err)
		}
	})
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) { killGuest(t, b, sb.ID()) },
		Leftovers: leftovers,
		Without:   without,
		Scope:     scope,
	})
}

func TestFeatures(t *testing.T) { features(t, newBackend(t, nil), sandboxtest.BackendFeatures) }

func TestFeaturesOnGVisor(t *testing.T) {
	features(t, newBackend(t, func(o *Options) { o.Runtime = "runsc" }), sandboxtest.MachineFeatures)
}

// TestFeaturesOnDisk runs the features of files and snapshots with a writable root.
func TestFeaturesOnDisk(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.UnlimitedDisk = true })
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		Leftovers: leftovers,
		Scope:     sandboxtest.MachineFeatures,
		Only:      []string{"disk", "snapshots", "files", "volumes"},
	})
}
