package docker

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// Podman's service is like a Docker engine, except for the differences in podman.go. The omitted tests of the feature
// suite are about the inside, where it makes no difference which engine started the guest.
func TestOnPodman(t *testing.T) {
	// Differences from a Docker engine: calls that Podman refuses or names differently, and the life of a container.
	tests := []string{
		"TestPodmanRunsItsOwnRuntimeAlone", "TestTheProfileHolds", "TestCodeCannotReachTheGuest", "TestSnapshotsOfRestoredSandboxes",
		"TestANewProgramAdoptsWhatRuns", "TestWhatHappensBehindOurBackIsNamed", "TestPauseAndResume", "TestMountsAndVolumes",
	}
	skip := []string{
		"TestFeatures/(commands|endings|output|files|cells)", "TestFeatures/life/(many|a_flood)", "TestFeatures/limits/the_CPU",
		"TestWhatHappensBehindOurBackIsNamed/(stopped|killed_for_memory)", // Podman reports these as a kill
	}
	if testneed.AllTests() {
		tests = append(tests, "TestFeatures", "TestTwoInstancesDoNotTouchEachOther", "TestManyBringOneGuestAtOnce", "TestCarriersOfDeadProgramsAreSwept",
			"TestWhatWorkedForOneProgramIsNotTriedByTheNext", "TestTheUserStaysWithSnapshotsAndAttachments", "TestTheHostConfigOfASpecNeedsConsent")
	}
	dockertest.Rerun(t, dockertest.Suite{Podman: true, Tests: tests, Skip: strings.Join(skip, "|")})
}

func TestPodmanRunsItsOwnRuntimeAlone(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Runtime = RuntimeAuto })
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !f.Podman {
		t.Skip("this engine is not Podman")
	}
	if c := b.Capabilities(t.Context()); c.Isolation != sandbox.IsolationContainer || !strings.Contains(strings.Join(c.Notes, "; "), "Podman ") {
		t.Errorf("%+v", c)
	}
	// Podman lists runsc even if it is not installed, and would not run it.
	for _, name := range []string{"runsc", "nonesuch"} {
		other := newBackend(t, func(o *Options) { o.Runtime = name })
		if _, err := sandbox.Open(t.Context(), other, sandbox.Spec{}); v1.CodeOf(err) != CodeRuntimeMissing || !strings.Contains(err.Error(), "containers.conf") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
