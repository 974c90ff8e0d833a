package docker

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// Podman's service is an engine like another, but for what stands in podman.go. What is left out of the feature suite happens inside, where it makes no
// difference who started the guest.
func TestOnPodman(t *testing.T) {
	// What differs from Docker's engine: what Podman refuses or names otherwise, and the life of a container.
	tests := []string{
		"TestFeatures", "TestPodmanRunsItsOwnRuntimeAlone", "TestTheProfileHolds", "TestCodeCannotReachTheGuest", "TestSnapshotsOfRestoredSandboxes",
		"TestANewProgramAdoptsWhatRuns", "TestWhatHappensBehindOurBackIsNamed", "TestPauseAndResume", "TestMountsAndVolumes",
	}
	skip := []string{
		"TestFeatures/(commands|endings|output|files|cells)", "TestFeatures/life/(many|a_flood)", "TestFeatures/limits/the_CPU",
		"TestWhatHappensBehindOurBackIsNamed/(stopped|killed_for_memory)", // which Podman takes for a kill
	}
	if testneed.AllTests() {
		tests = append(tests, "TestTwoInstancesDoNotTouchEachOther", "TestManyBringOneGuestAtOnce", "TestCarriersOfDeadProgramsAreSwept",
			"TestWhatWorkedForOneProgramIsNotTriedByTheNext", "TestTheUserStaysWithSnapshotsAndAttachments", "TestTheHostConfigOfASpecNeedsConsent")
	} else {
		skip = append(skip, "TestFeatures/limits")
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
		t.Skip("this engine is Docker's")
	}
	if c := b.Capabilities(t.Context()); c.Isolation != sandbox.IsolationContainer || !strings.Contains(strings.Join(c.Notes, "; "), "Podman ") {
		t.Errorf("%+v", c)
	}
	// It lists runsc whether it is there or not, and would not run it.
	for _, name := range []string{"runsc", "nonesuch"} {
		other := newBackend(t, func(o *Options) { o.Runtime = name })
		if _, err := sandbox.Open(t.Context(), other, sandbox.Spec{}); v1.CodeOf(err) != CodeRuntimeMissing || !strings.Contains(err.Error(), "containers.conf") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
