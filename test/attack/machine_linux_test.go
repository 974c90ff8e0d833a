package attack

import (
	"context"
	"os"
	"testing"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/vmtest"
	"github.com/recluse-dev/recluse/sandbox/vm"
)

// onMachines are the attacks that run in virtual machines: those on the boundary, on secrets, on limits and on the
// network. The others are on the guest, which is the same program everywhere, and take long where each instruction is
// translated. These do not hold or make no sense there:
//   - TestHostHardwareIsInvisible, TestTheRootIsOfOneSandbox: a machine has hardware and a root of its own; the second
//     changes more files than an emulated processor can within its limit of time;
//   - TestMountRequests: all mounts are refused (TestWhatAMachineCannotDo in sandbox/vm);
//   - TestAsRoot and what it repeats: code cannot become root.
var onMachines = []string{
	"TestPrivilegedCalls", "TestIdentityInside", "TestSetuidPrograms", "TestKillAll", "TestHostFilesAreInvisible", "TestHostProcessesAreInvisible", "TestRuntimeSockets",
	"TestUserNamespaceGivesNothing", "TestGuestProgramIsUnreachable", "TestGuestsSocket", "TestTerminalInjection", "TestNoNetwork", "TestNeighboursDoNotMeet", "TestTokenIsUnreadable",
	"TestHostEnvironmentStaysOutside", "TestSpecEnvironmentIsPrivate", "TestResidue", "TestNoCoreDumps", "TestForks", "TestForksInheritNoTies", "TestMemoryBombInTheInterpreter",
	"TestFileDescriptors", "TestEgress", "TestProcessBombs", "TestTimeouts",
}

// onMachinesFirst are those of them that make test runs.
var onMachinesFirst = []string{"TestPrivilegedCalls", "TestIdentityInside", "TestNoNetwork", "TestTokenIsUnreadable"}

// TestOnMachines runs attacks in virtual machines, which QEMU emulates.
func TestOnMachines(t *testing.T) {
	need(t)
	dockertest.Rerun(t, dockertest.Suite{Backend: vm.Name, Tests: onMachines, Differ: onMachinesFirst, Serial: true})
}

// onMachine reports whether the attacked sandboxes are virtual machines.
func onMachine() bool { return os.Getenv(dockertest.BackendVariable) == vm.Name }

func prepareMachines() error {
	guest, err := testbin.Guest()
	if err != nil {
		return err
	}
	options := vm.Options{
		Monitor: vm.MonitorQEMU, Accelerator: vm.AcceleratorEmulation, AllowEmulation: true, Guest: guest.Path, Network: outside.options(),
	}
	shared, err := vmtest.Prepare(func(ctx context.Context, data, root string) error {
		options.DataDir, options.CacheDir = data, data
		b, err := vm.New(options)
		if err != nil {
			return err
		}
		defer b.Close()
		_, err = b.Setup(ctx, vm.SetupOptions{RootFS: root})
		return err
	})
	if err == nil {
		err = vmtest.Share(shared, dataDir)
	}
	if err != nil {
		return err
	}
	options.DataDir, options.CacheDir = dataDir, dataDir
	b, err := vm.New(options)
	if err != nil {
		return err
	}
	backend = b
	return nil
}
