package e2b

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// thisOne is the test of the smaller tier.
const thisOne = "TestMainMethods uses the same server and SDKs"

func TestMainMethods(t *testing.T) {
	t.Parallel()
	sdk := sdks(t, packages)
	serve(t).node(sdk, "main.mjs")
}

// scripts runs scripts on a server of their own.
func scripts(t *testing.T, names ...string) {
	t.Helper()
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	s := serve(t)
	for _, name := range names {
		s.node(sdk, name)
	}
}

func TestLivesOfSandboxes(t *testing.T) { scripts(t, "life.mjs") }

func TestInsideOfASandbox(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	var charts []string
	if exec.Command("/usr/bin/python3", "-c", "import matplotlib, pandas").Run() == nil {
		charts = []string{"CHARTS=1"}
	}
	serve(t).node(sdk, "inside.mjs", charts...)
}

func TestMetricsMetadataLanguagesAndPausesWithoutMemory(t *testing.T) { scripts(t, "more.mjs") }

func TestOtherMethods(t *testing.T) { scripts(t, "methods.mjs") }

func TestOldestVersion(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, floor)
	s := serve(t)
	s.node(sdk, "floor.mjs")
	s.node(sdk, "floorcode.mjs")
}

func TestFirstLinesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	text, err := os.ReadFile("../../docs/E2B.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "node -e \"")
	code, _, ok := strings.Cut(rest, "\"\n")
	if !ok {
		t.Fatal("docs/E2B.md has no program")
	}
	s := serve(t)
	if out := s.eval(sdk, code); !strings.Contains(out, "uid=1000") {
		t.Errorf("%q", out)
	}
	if out, err := s.Run("session", "list"); err != nil || strings.Count(out, "\n") != 2 {
		t.Errorf("%v %s", err, out)
	}
}

func TestLargeFiles(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	serve(t, "RECLUSE_LIMITS_MEMORY=1g").node(sdk, "large.mjs")
}

func TestManySandboxesAtOnce(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	serve(t, "RECLUSE_LIMITS_MEMORY=128m", "RECLUSE_QUOTA_CPUS=50").node(sdk, "many.mjs")
}

func TestAFullServer(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	serve(t, "RECLUSE_SERVER_RATE=2", "RECLUSE_SERVER_BURST=20", "RECLUSE_QUOTA_SESSIONS=1").node(sdk, "full.mjs")
}

// TestAHundredCopies is not parallel: the copies need the whole machine.
func TestAHundredCopies(t *testing.T) {
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	serve(t, "RECLUSE_LIMITS_MEMORY=64m", "RECLUSE_QUOTA_CPUS=101").node(sdk, "forks.mjs")
}

func TestAKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	sdk := sdks(t, packages)
	s := serve(t)
	key := s.vars["E2B_API_KEY"]
	kill := func() {
		err := s.Stop(syscall.SIGKILL)
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.runUntil(sdk, []string{"killed.mjs"}, nil, "kill it", kill)
	if s.Exports["E2B_API_KEY"] != key {
		t.Errorf("another key: %q", s.Exports["E2B_API_KEY"])
	}
}
