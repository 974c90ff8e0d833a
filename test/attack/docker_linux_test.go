package attack

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// notOnContainers are the tests that do not run in containers, with the reason. All others do, so a new attack is
// included by default.
var notOnContainers = map[string]string{
	"TestForks":                    "snapshots of containers hold files alone, so that nothing runs in two copies",
	"TestForksInheritNoTies":       "the same",
	"TestTheRootIsOfOneSandbox":    "the root of a container is read-only",
	"TestEveryHazardNamesItsTests": "reads a page and attacks nothing",
	"TestOnMachines":               "it starts the others in machines",
}

// differ are the attacks on mechanisms that differ between runtimes, by runtime. The other attacks are on the guest,
// which is the same program everywhere: make test runs those on gVisor only, make test-all everywhere.
var differ = map[string][]string{
	"runc": {
		"TestPrivilegedCalls", "TestIdentityInside", "TestSetuidPrograms", "TestKillAll", "TestHostFilesAreInvisible", "TestHostProcessesAreInvisible", "TestHostHardwareIsInvisible",
		"TestRuntimeSockets", "TestUserNamespaceGivesNothing", "TestGuestProgramIsUnreachable", "TestGuestsSocket", "TestMountRequests", "TestNoNetwork", "TestNeighboursDoNotMeet",
		"TestProcessBombs", "TestForkBombThatDetaches", "TestMemoryBombs", "TestMemoryBombInTheInterpreter", "TestFilesInMemory", "TestFileDescriptors",
		"TestHostEnvironmentStaysOutside", "TestTokenIsUnreadable", "TestNoCoreDumps", "TestEgress",
	},
	"runsc": {
		"TestPrivilegedCalls", "TestIdentityInside", "TestHostFilesAreInvisible", "TestRuntimeSockets", "TestGuestsSocket", "TestNoNetwork", "TestMemoryBombInTheInterpreter",
		"TestHostEnvironmentStaysOutside", "TestTokenIsUnreadable", "TestEgress",
	},
}

// TestOnDocker runs the attacks in containers of a Docker engine: on the host's own kernel, and on gVisor as the
// engine's runtime, where the results are the same as with our own gVisor.
func TestOnDocker(t *testing.T) {
	need(t)
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
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			dockertest.Rerun(t, dockertest.Suite{Runtime: runtime, Left: notOnContainers, Differ: differ[runtime]})
		})
	}
}

func prepareDocker() error {
	_, guest, err := testbin.Programs()
	if err != nil {
		return err
	}
	b, err := docker.New(docker.Options{
		Host: os.Getenv(dockertest.Variable), Image: dockertest.Image, Pull: docker.PullNever, Runtime: os.Getenv(dockertest.RuntimeVariable), Dir: dataDir, GuestPath: guest.Path,
		Egress: outside.options(),
	})
	if err != nil {
		return err
	}
	backend = b
	return nil
}

// containerToken reads the token from the guest's configuration in the Docker engine.
func containerToken(t *testing.T, sb *sandbox.Sandbox) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", "-H", os.Getenv(dockertest.Variable), "inspect", "--format", "{{json .Config.Env}}", "recluse-"+sb.ID()).Output()
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	if err := json.Unmarshal(out, &env); err != nil {
		t.Fatal(err)
	}
	for _, kv := range env {
		text, ok := strings.CutPrefix(kv, launch.ConfigEnv+"=")
		if !ok {
			continue
		}
		var c launch.Config
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		return c.Token
	}
	return ""
}
