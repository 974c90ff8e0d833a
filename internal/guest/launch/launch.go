// Package launch defines how a backend starts the guest: its configuration, and the first arguments of its binary. It
// is separate from the guest, so that host programs do not link the guest.
package launch

import (
	"slices"
	"strings"
)

// ConfigEnv is the environment variable in which a backend passes the guest its Config.
const ConfigEnv = "RECLUSE_GUEST_CONFIG"

// BridgeArg is the first argument that makes the guest's binary a bridge to a guest, whose socket is the second
// argument. PackArg makes it write an archive of the directories that follow.
const (
	BridgeArg = "bridge"
	PackArg   = "pack"
)

// RemoteArg is the only argument of the guest's binary as a process that a service runs for us. Its input begins with
// its Config as one line of JSON, and package carrier follows.
const RemoteArg = "remote"

// BootArg is the only argument of the guest's binary as the first process of a virtual machine; see package boot.
const BootArg = "boot"

// What a virtual machine consists of, by the names that host and guest know.
const (
	RootDisk   = "root"   // ID of the disk with the root file system
	ConfigDisk = "config" // ID of the disk with Boot as JSON, followed by zeros
	DataDisk   = "disk"   // ID of the disk with the writable layer
	StreamPort = "recluse.stream"
	// ModuleList is a file in the initramfs: names of files beside it, one in each line.
	ModuleList = "/modules/list"
	// VsockPort is the port of the guest where the stream is a vsock.
	VsockPort = 1024
	// BootFailed begins the line on the console that reports why the machine could not boot.
	BootFailed = "recluse-guest: boot:"
)

// Boot is the configuration of a virtual machine.
type Boot struct {
	Guest Config `json:"guest"`
	// Disk means that the layer over the root file system is on DataDisk. Otherwise it is in memory, where LayerSize and
	// LayerFiles bound it.
	Disk       bool  `json:"disk,omitempty"`
	LayerSize  int64 `json:"layer_size"`
	LayerFiles int64 `json:"layer_files"`
}

// CertificatesName is the file in Config.State with the certificates of authorities that the image and the host trust.
const CertificatesName = "ca-certificates.crt"

// Config is the configuration of the guest, set by the backend. Snapshots contain it; values that differ between copies
// are sent at every attachment (wire.Identity).
type Config struct {
	Token string `json:"token"` // hex
	// UID and GID of everything the guest runs; -1: those of the guest.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Root means that code may become root: UID is 0, a request names root, or code calls sudo.
	Root  bool     `json:"root,omitempty"`
	Home  string   `json:"home"`
	Dir   string   `json:"dir"`   // working directory of commands
	State string   `json:"state"` // the guest's own directory, for spooled output and FIFOs
	Env   []string `json:"env,omitempty"`
	// Limits; zero: the guest does not enforce them.
	Processes int   `json:"processes,omitempty"`
	OpenFiles int   `json:"open_files,omitempty"`
	Memory    int64 `json:"memory,omitempty"`
	CPUs      int   `json:"cpus,omitempty"` // value for nproc and thread counts
	// Tmpfs are file systems in memory that the guest mounts itself, because only then their number of files can be
	// limited: each file costs memory that the size does not include.
	Tmpfs []Tmpfs `json:"tmpfs,omitempty"`
	// Disk means that the root file system is writable and its files are on disk, as gVisor keeps them.
	Disk bool `json:"disk,omitempty"`
	// Dirs are directories to make, or to give to their owner if they exist.
	Dirs []Dir `json:"dirs,omitempty"`
	// Socket is the abstract address, beginning with @, to which bridges connect; empty: the stream is on descriptors 0
	// and 1.
	Socket string `json:"socket,omitempty"`
	// Peer is the user that bridges run as. Nothing else in the sandbox runs as this user.
	Peer int `json:"peer,omitempty"`
	// Unpack is an archive that is unpacked into the sandbox before anything runs.
	Unpack string `json:"unpack,omitempty"`
	// Threads is the number of threads that guest and nannies create at their start, where the limit of processes also
	// counts their threads: a Go program that cannot create a thread dies.
	Threads int `json:"threads,omitempty"`
	// OOMScore is the oom_score_adj of everything the guest runs, where the host's kernel chooses which process to
	// OOM-kill.
	OOMScore int `json:"oom_score,omitempty"`
	// Filter installs the system call filter for everything the guest runs, even if it runs as the guest's own user.
	Filter bool `json:"filter,omitempty"`
	// Machine means that the guest is the first process of a virtual machine. It then sets clock and random numbers for
	// each identity. Descriptors 0 and 1 are a serial port, from which a read returns 0 bytes while no host is attached.
	Machine bool `json:"machine,omitempty"`
	// Vsock means that descriptor 0 is instead a vsock that listens for hosts.
	Vsock bool `json:"vsock,omitempty"`
	// Network makes the guest answer DNS queries, and forward connections once the host switches that on.
	Network bool `json:"network,omitempty"`
}

// Dir is one directory, or a file that exists, on the root file system.
type Dir struct {
	Path string `json:"path"`
	Mode string `json:"mode,omitempty"` // octal; empty: as it is, 0755 if it is new
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	// Optional means that it is not made if it is missing.
	Optional bool `json:"optional,omitempty"`
	// Deep is how many directories below at most get the owner, too: those that programs install into.
	Deep int `json:"deep,omitempty"`
}

// packageDirs are names of directories in which programs install packages. Upgrading a package removes what was there,
// so all directories below get the owner.
var packageDirs = []string{"site-packages", "dist-packages", "node_modules", "site-library", "man"}

// chownDepth is the number of levels below Dir.Path whose directories get the owner in any case, such as lib/pkgconfig.
const chownDepth = 2

// InstallsInto reports whether programs install into a directory, whose path is relative to Dir.Path, so that it gets
// the owner.
func InstallsInto(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts) <= chownDepth || slices.ContainsFunc(parts[:chownDepth+1], func(name string) bool {
		return slices.Contains(packageDirs, name)
	})
}

// Tmpfs is one file system in memory.
type Tmpfs struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Inodes int64  `json:"inodes"`
	Mode   string `json:"mode"` // octal
	UID    int    `json:"uid"`
	GID    int    `json:"gid,omitempty"` // 0: equal to UID
}
