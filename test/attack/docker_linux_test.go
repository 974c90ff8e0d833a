package attack

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// onContainers are the attacks that a container has to stand as well, though its kernel is the host's. Not among them: those whose
// outcome is a matter of gVisor's kernel (which calls fail, what /proc and /sys show), those about templates and forks, and the bombs for
// memory that belongs to no process, which the cgroup holds down without naming anybody.
var onContainers = []string{
	"TestContainedCalls", "TestSetuidPrograms", "TestKillAll", "TestHostProcessesAreInvisible", "TestRuntimeSockets", "TestUserNamespaceGivesNothing", "TestGuestProgramIsUnreachable",
	"TestTerminalInjection", "TestReadsThatMustNotHang", "TestNames", "TestSymlinkSwap", "TestLinksAndOwners", "TestHostileTars", "TestDownloadOfAGrowingFile", "TestMountRequests",
	"TestNoNetwork", "TestNeighboursDoNotMeet", "TestMemoryBombInTheInterpreter", "TestFilesInMemory", "TestProcessBombs", "TestProcessBombWhileOthersWork", "TestFileDescriptors", "TestFloods",
	"TestBytesThatAreNotText", "TestSpecEnvironmentIsPrivate", "TestResidue", "TestNoCoreDumps", "TestTimeouts", "TestCellTimeouts", "TestInterpreterTurnsHostile", "TestStdinThatIsNeverRead",
	"TestTimeoutRacesExit", "TestCancelOfAFlood",
}

// TestOnDocker tries them in containers of a Docker engine.
func TestOnDocker(t *testing.T) {
	need(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dockertest.Rerun(t, dockertest.Suite{
		Runsc: engine.Path,
		Prepare: func(ctx context.Context, host string) error {
			b, err := docker.New(docker.Options{Host: host, Dir: t.TempDir(), GuestPath: guest.Path})
			if err != nil {
				return err
			}
			defer b.Close()
			return b.ImportHost(ctx, dockertest.Image)
		},
		Tests: onContainers,
	})
}

func prepareDocker() error {
	_, guest, err := testbin.Programs()
	if err != nil {
		return err
	}
	b, err := docker.New(docker.Options{
		Host: os.Getenv(dockertest.Variable), Image: dockertest.Image, Pull: docker.PullNever, Runtime: os.Getenv(dockertest.RuntimeVariable), Dir: dataDir, GuestPath: guest.Path,
	})
	if err != nil {
		return err
	}
	backend = b
	return nil
}

// TestContainedCalls tries the calls with which one gets out of a container. The kernel is the host's, so each has to be refused by the
// container's walls: capabilities, the filter of system calls, what is mounted.
func TestContainedCalls(t *testing.T) {
	if !dockertest.Chosen() {
		t.Skip("TestOnDocker runs this")
	}
	// Guest and code are the same user: code can send signals to the guest, which survives them all (TestKillAll), end its own interpreter's
	// nanny, and take resources away from its own sandbox's guest. It is its own machine that it harms.
	own := []string{"kill of the guest", "stop of the guest", "kill of the nanny", "priority of the guest", "limits of the guest", "limits of the nanny"}
	tryCalls(t, shared(t), func(name string) bool { return !slices.Contains(own, name) })
}
