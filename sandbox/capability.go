package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Isolation is what is between the code and the host. A higher value is a stronger
// isolation, so levels can be compared.
type Isolation int

// The levels of isolation.
const (
	IsolationNone      Isolation = iota // a plain process of the host
	IsolationContainer                  // namespaces and seccomp over the host's kernel
	IsolationKernel                     // a kernel in user space handles the system calls
	IsolationVM                         // a virtual machine
)

var isolationNames = []string{"none", "container", "kernel", "vm"}

// String returns the name that flags, config, JSON and reports use.
func (i Isolation) String() string {
	if i < 0 || int(i) >= len(isolationNames) {
		return "unknown"
	}
	return isolationNames[i]
}

// MarshalText implements encoding.TextMarshaler.
func (i Isolation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *Isolation) UnmarshalText(text []byte) error {
	n := slices.Index(isolationNames, string(text))
	if n < 0 {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "read isolation",
			Message: fmt.Sprintf("unknown isolation %q", text),
			Remedy:  "use one of " + strings.Join(isolationNames, ", "),
		}
	}
	*i = Isolation(n)
	return nil
}

// Snapshots is how much of a sandbox a snapshot contains.
type Snapshots string

// What a snapshot can contain.
const (
	SnapshotsNone   Snapshots = "none"
	SnapshotsFiles  Snapshots = "files"
	SnapshotsMemory Snapshots = "memory" // files, processes and their memory
)

// Egress is what a backend can do about the network policy of a sandbox.
type Egress string

// What a backend can do about a network policy.
const (
	// EgressNone: there is no network, so every other policy is refused.
	EgressNone Egress = "none"
	// EgressAllPorts: names and addresses work on every port.
	EgressAllPorts Egress = "all-ports"
	// EgressListedPorts: names work on the ports that the policy lists, at most MaxListedPorts; addresses work through
	// the proxies inside only.
	EgressListedPorts Egress = "listed-ports"
	// EgressUnfiltered: code has the network of the host or of the Docker engine; only the policy all is possible.
	EgressUnfiltered Egress = "unfiltered"
)

// Capabilities is what a backend can do on this machine, for this user. A request for what
// is false here is rejected. The exception is a limit that a backend enforces only in part,
// without the host's help: then Notes has a note about it. Nothing is silently ignored.
type Capabilities struct {
	Isolation     Isolation     `json:"isolation"`
	Emulated      bool          `json:"emulated,omitempty"` // an emulated machine, which is only chosen by its name
	Snapshots     Snapshots     `json:"snapshots"`
	Egress        Egress        `json:"egress"` // how a network policy is enforced
	MemoryLimit   bool          `json:"memory_limit"`
	CPULimit      bool          `json:"cpu_limit"`
	ProcessLimit  bool          `json:"process_limit"`
	DiskLimit     bool          `json:"disk_limit"`
	WritableRoot  bool          `json:"writable_root"` // code can change the root file system, and its files are on disk
	Root          bool          `json:"root"`          // code can become root inside, if the spec allows it
	OpenFileLimit bool          `json:"open_file_limit"`
	Images        bool          `json:"images"`
	Mounts        bool          `json:"mounts"`
	Shares        bool          `json:"shares"` // files of the host can be shown in a running sandbox, see Sharer
	Python        bool          `json:"python"` // in the default root file system
	Bash          bool          `json:"bash"`
	Files         bool          `json:"files"`
	PTY           bool          `json:"pty"`
	MaxLifetime   time.Duration `json:"max_lifetime_ns"` // 0: none
	ColdStart     time.Duration `json:"cold_start_ns"`   // expected time to make a sandbox without a template or pool
	Notes         []string      `json:"notes,omitempty"` // why something above is false
}

// Health is the result of a real probe of a backend.
type Health struct {
	OK      bool          `json:"ok"`
	Reason  string        `json:"reason,omitempty"` // why OK is false, or a remark
	Remedy  string        `json:"remedy,omitempty"`
	Version string        `json:"version,omitempty"`
	Took    time.Duration `json:"took_ns"`
}
