// Package vm runs sandboxes in virtual machines. The guest is the first process of a small Linux of its own.
//
// A machine has a kernel, an initramfs with our guest and the modules that it needs, a read-only disk with the root
// file system, a small disk with the guest's configuration, and one serial port: the stream. It has no network card.
// Setup prepares kernel and root file system once; both are then shared by all machines.
//
// A program for virtual machines (a monitor) runs each machine. Where this program is root, the monitor has its own
// user without capabilities, and its own empty file system and network. Files of a sandbox are in a directory, and the
// monitor outlives this program, so that any process can take over a sandbox that another one started.
package vm

import (
	"slices"

	"github.com/recluse-dev/recluse/sandbox"
)

// Name is the name of this backend.
const Name = "vm"

// The monitors, by the names of the configuration.
const (
	MonitorAuto            = "auto" // the first of Monitors that is installed
	MonitorQEMU            = "qemu"
	MonitorFirecracker     = "firecracker"
	MonitorCloudHypervisor = "cloud-hypervisor"
)

// Monitors are the monitors in the order of preference: first the one that the tests run.
var Monitors = []string{MonitorQEMU, MonitorFirecracker, MonitorCloudHypervisor}

// ByMonitor returns the names of backends with the name of this backend instead of those of monitors, which are its
// short forms, and the monitor that they name.
func ByMonitor(backends []string) (names []string, monitor string) {
	for _, n := range backends {
		if slices.Contains(Monitors, n) {
			if monitor == "" {
				monitor = n
			}
			n = Name
		}
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names, monitor
}

// What runs the processors of a machine.
const (
	AcceleratorAuto      = "auto" // KVM, or emulation if there is no KVM and emulation is allowed
	AcceleratorKVM       = "kvm"
	AcceleratorEmulation = "emulation"
)

// The types of machine that QEMU makes.
const (
	MachineAuto    = "auto"    // MachineQ35: some boots of an emulated microvm hang
	MachineMicroVM = "microvm" // few devices: it boots faster
	MachineQ35     = "q35"     // a PC
)

// Options configures the backend.
type Options struct {
	// DataDir is the directory of sandboxes, snapshots and images. Empty: the data directory of the user.
	DataDir string
	// CacheDir is the directory of programs and container images. Empty: the cache directory of the user.
	CacheDir string
	// Guest is the path of recluse-guest. Empty: the bundled one.
	Guest string
	// Monitor is the monitor to use; empty: MonitorAuto.
	Monitor string
	// Programs are the paths of monitors, by their names. A monitor that is missing is looked up on PATH.
	Programs map[string]string
	// AllowEmulation allows machines without KVM. Emulation is slow, and no security boundary by its makers' statement:
	// its isolation is reported as that of a container.
	AllowEmulation bool
	// Accelerator is one of the constants; empty: AcceleratorAuto.
	Accelerator string
	// Machine is one of the constants, for QEMU; empty: MachineAuto.
	Machine string
	// NoTemplates boots every sandbox instead of restoring it from a warm template.
	NoTemplates bool
	// Network is the operator's part of the network of sandboxes.
	Network sandbox.NetworkOptions
	// Progress receives the progress of long work, such as building a root file system. It may be nil.
	Progress func(what string, done, total int64)
}

// SetupOptions are the options of Setup.
type SetupOptions struct {
	// Kernel is a kernel image, and Modules the directory of its modules, such as /lib/modules/VERSION. Empty: a kernel
	// in /boot, or that of a Debian package.
	Kernel, Modules string
	// RootFS is a directory with a system that becomes the default root file system. Empty: this host's /usr.
	RootFS string
	// Packages are Debian packages from which a new system is made, instead of RootFS.
	Packages []string
	// Report receives one line for each step.
	Report func(line string)
}

// Prepared is the result of Setup.
type Prepared struct {
	Kernel        string `json:"kernel"`  // release, such as 6.1.0-56-cloud-amd64
	Origin        string `json:"origin"`  // where the kernel comes from
	Network       bool   `json:"network"` // whether the kernel can redirect connections
	Vsock         bool   `json:"vsock"`   // whether it fits Firecracker and Cloud Hypervisor, too
	KernelID      string `json:"kernel_id"`
	Root          string `json:"root"`    // file name of the default root file system
	RootOf        string `json:"root_of"` // what it was made from
	Python        bool   `json:"python"`  // in the default root file system
	PythonVersion string `json:"python_version,omitempty"`
	Bash          bool   `json:"bash"`
	// Packages are packages of the default root file system: of Debian those asked for, and those of Python.
	Packages []Package `json:"packages,omitempty"`
}

// Package is a package in a root file system.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

var _ sandbox.Backend = (*Backend)(nil)
