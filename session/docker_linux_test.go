package session

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// notOnContainers are the tests that TestOnDocker skips.
var notOnContainers = left(map[string][]string{
	"a snapshot of a container holds no memory, so its session cannot be hibernated": {
		"TestABusySessionIsNotHibernated", "TestAChangedHostFileBehindASleeper", "TestAHibernatedSessionSurvivesARestart", "TestAHibernatedSessionWakesWithItsState",
		"TestASleeperIsFoundOnceItsBackendTellsItsSnapshots", "TestASleeperWhoseImageHasGoneIsLost", "TestAnImageStaysWhileSomethingNeedsIt",
		"TestBackgroundCommandsSleepAndWakeWithTheSession", "TestCallsRaceTheReaper", "TestIdleSessionsHibernate",
		"TestASleeperFindsWhatItDidNotNote", "TestLookingDoesNotWakeASleeper",
		"TestASessionHibernatesAtItsExpiry", "TestAConnectionKeepsItsSessionInUse", "TestAWaitForAPortDoesNotKeepASessionAwake",
	},
	"the network of containers is tested in package docker": {
		"TestANetworkPolicyChangesWhileTheSessionLives", "TestThePolicyOfASessionIsNotThatOfItsSnapshots",
		"TestAFloodOfLookupsIsSummedUp", "TestAFloodOfFailedLookupsMakesFewEntries",
		"TestSessionsOfAKeyShareTheirNetworkQuota", "TestTheConnectionRateOfATenant",
		"TestMaximaAndDefaultsOfKeyAndTenant", "TestAConnectionSucceedsOnceItIsApproved", "TestAskNeedsApprovals",
	},
	"a snapshot of a container holds no memory, so its session cannot be forked": {
		"TestForksAreLiveCopies", "TestForksAreMadeAtOnce", "TestACopyTellsOfThePreviousSessionOfItsName",
	},
	"it is about the local backend": {"TestABackendWithoutSnapshots"},
	"it needs neither sandbox nor manager": {
		"TestASleeperKeepsLittle", "TestTheTableInTheDocumentIsTheOneInTheCode", "TestTrees", "TestWhoseASandboxIs",
		"TestTheTableOfAttachmentsInTheDocumentIsTheOneInTheCode", "TestEveryChangeOfAnAttachmentIsInTheTable",
		"TestAFloodOfDenialsMakesFewEntries", "TestTheNetworkLogKeepsTheLatestEntries",
		"TestWhatHappensDuringAReservationIsKept", "TestCallsWaitOnlyForWhatChangesByItself", "TestSomethingMayRunUntilItIsKnown",
	},
})

// onContainers are the tests in which the creation, attachment, snapshot, pause, end or loss of a container differs
// from other tests. The other tests do nothing more with containers: they test the manager, which is the same on every
// backend.
var onContainers = []string{
	"TestStateStaysBetweenCallsAndManagers", "TestAPoolServesSessions", "TestWhatRunsIsNotReaped",
	"TestSnapshotsAreRestoredIntoTheSameSessionOrANewOne", "TestPauseAndResume", "TestEndIsHeardByEverythingThatRuns",
	"TestAKillAtAnyMomentLosesNothing", "TestWhatComesLateFromAKilledManagerGoes", "TestWhatIsNotOursIsLeftAlone",
	"TestALostSandboxIsRestoredAndTheCallerTold", "TestASandboxLostWhileNobodyLooked", "TestASessionWithoutASnapshotIsLostAtOnce",
	"TestASandboxThatHangsIsReplaced",
	"TestDockerSessionsSleepNotAndEndWhenIdle", "TestDockerSnapshotsHoldFiles", "TestDockerTwoManagersOnOneEngine", "TestDockerSessionsWhoseContainerWasTaken",
	"TestDockerSessionsWhoseContainerWasRenamed",
}

// onRunsc are the tests of onContainers in which gVisor as the engine's runtime may behave differently from the default
// runtime.
var onRunsc = []string{
	"TestStateStaysBetweenCallsAndManagers", "TestPauseAndResume", "TestALostSandboxIsRestoredAndTheCallerTold", "TestDockerSnapshotsHoldFiles",
}

// left returns the reasons by test. reasons has the tests by reason.
func left(reasons map[string][]string) map[string]string {
	out := map[string]string{}
	for reason, tests := range reasons {
		for _, name := range tests {
			out[name] = reason
		}
	}
	return out
}

// TestOnDocker runs the tests of the package on containers, with the engine's default runtime and with gVisor. New
// tests are included automatically.
func TestOnDocker(t *testing.T) {
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dockertest.Share(t, dockertest.Suite{
		Runsc: engine.Path,
		Prepare: func(ctx context.Context, host string) error {
			b, err := docker.New(docker.Options{Host: host, Dir: t.TempDir(), GuestPath: guest.Path})
			if err != nil {
				return err
			}
			defer b.Close()
			return b.ImportHost(ctx, dockertest.Image)
		},
	})
	t.Run("runc", func(t *testing.T) { dockertest.Rerun(t, dockertest.Suite{Left: notOnContainers, Differ: onContainers}) })
	t.Run("runsc", func(t *testing.T) {
		dockertest.Rerun(t, dockertest.Suite{Runtime: "runsc", Tests: onContainers, Differ: onRunsc})
	})
}

var dockerBackends struct {
	sync.Mutex
	all []*docker.Backend // guarded by Mutex
}

// newDockerBackend returns a backend whose instance depends on the directory. Programs with the same directory have the
// same instance.
func newDockerBackend(dir, guest string) (sandbox.Backend, error) {
	b, err := docker.New(docker.Options{
		Host: os.Getenv(dockertest.Variable), Image: dockertest.Image, Pull: docker.PullNever, Runtime: os.Getenv(dockertest.RuntimeVariable),
		Dir: filepath.Join(dir, "docker"), Instance: filepath.Base(dir), GuestPath: guest,
	})
	if err != nil {
		return nil, err
	}
	dockerBackends.Lock()
	defer dockerBackends.Unlock()
	dockerBackends.all = append(dockerBackends.all, b)
	return b, nil
}

func closeDockerBackends() {
	dockerBackends.Lock()
	defer dockerBackends.Unlock()
	for _, b := range dockerBackends.all {
		_ = b.Close() // goleak reports what it leaves
	}
	dockerBackends.all = nil
}

// dockerBench is a bench on containers.
func dockerBench(t *testing.T, o Options) *bench {
	t.Helper()
	if !dockertest.Chosen() {
		t.Skip("TestOnDocker runs this")
	}
	return newBench(t, o)
}

func TestDockerSessionsSleepNotAndEndWhenIdle(t *testing.T) {
	k := dockerBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	wantCode(t, "hibernate", s.Hibernate(t.Context()), v1.CodeNotSupported)
	want(t, "x + 1 after that", py(t, s, "x + 1"), "42")
	_, err := s.Fork(t.Context(), 1, nil)
	wantCode(t, "fork", err, v1.CodeNotSupported)
	idle, _, err := k.m.Open(t.Context(), Key{Name: "idle"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	kept, _, err := k.m.Open(t.Context(), Key{Name: "kept"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond), OnIdle: v1.IdleKeep}}})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitState(idle, v1.StateExpired)
	if i := idle.Info(); i.Policy.OnIdle != v1.IdleEnd || !strings.Contains(i.Reason, "idle for") {
		t.Errorf("on_idle is %s, and the reason %q", i.Policy.OnIdle, i.Reason)
	}
	short, _, err := k.m.Open(t.Context(), Key{Name: "short"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.Duration(50 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitState(short, v1.StateExpired)
	await(t, "their containers are gone", func() bool { return k.sandboxes() == 2 })
	want(t, "1 + 1 in the one that is kept", py(t, kept, "1 + 1"), "2")
}

func TestDockerSnapshotsHoldFiles(t *testing.T) {
	k := dockerBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 1; open('f', 'w').write('one')")
	snap := save(t, s, "one")
	if snap.Memory || snap.Size == 0 {
		t.Errorf("snapshot %+v", snap)
	}
	py(t, s, "open('f', 'w').write('two')")
	other, _, err := k.m.Open(t.Context(), Key{Name: "other"}, OpenOptions{Settings: Settings{From: "work@one"}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the file in a new session", py(t, other, "open('f').read()"), "'one'")
	want(t, "x there", py(t, other, "'x' in globals()"), "False")
	if err := s.Restore(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	want(t, "the file in the old one", py(t, s, "open('f').read()"), "'one'")
	k.restart()
	want(t, "the file after a restart", py(t, k.get("work"), "open('f').read()"), "'one'")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
	await(t, "no image is left", func() bool { return k.images() == 0 })
}

func TestDockerTwoManagersOnOneEngine(t *testing.T) {
	a, b := dockerBench(t, quick()), dockerBench(t, quick())
	x, y := a.open("work"), b.open("work")
	py(t, x, "who = 'a'")
	py(t, y, "who = 'b'")
	a.restart()
	if _, err := a.m.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.restart()
	want(t, "who", py(t, a.get("work"), "who"), "'a'")
	want(t, "who", py(t, b.get("work"), "who"), "'b'")
	if err := a.get("work").End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	await(t, "its container is gone", func() bool { return a.sandboxes() == 0 })
	want(t, "who", py(t, b.get("work"), "who"), "'b'")
}

func TestDockerSessionsWhoseContainerWasTaken(t *testing.T) {
	k := dockerBench(t, quick())
	s := k.open("work")
	py(t, s, "open('f', 'w').write('saved')")
	save(t, s, "one")
	py(t, s, "open('f', 'w').write('later')")
	id := s.Info().Sandbox
	if err := k.b.Stop(t.Context(), id); err != nil { // like docker rm -f while the manager is attached
		t.Fatal(err)
	}
	await(t, "it is noticed", func() bool { return s.Info().Sandbox != id || s.Info().State == v1.StateLost })
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: "open('f').read()"})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the file", v.Result.Text(), "'saved'")
	if v.Metadata[MetaStateFrom] == "" {
		t.Error("the older state was not reported")
	}
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}
