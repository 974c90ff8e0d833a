// Package launch is what a backend starts the guest with: its configuration, and the first arguments of its binary. It is apart from
// the guest, so that host programs do not link that.
package launch

// ConfigEnv is the environment variable in which a backend passes the guest its Config.
const ConfigEnv = "RECLUSE_GUEST_CONFIG"

// BridgeArg is the first argument that turns the guest's binary into a bridge to a guest, whose socket is the second; PackArg makes it
// write an archive of the directories that follow.
const (
	BridgeArg = "bridge"
	PackArg   = "pack"
)

// Config is what a backend starts the guest with. Snapshots keep it; what differs between copies comes with every attachment
// (wire.Identity).
type Config struct {
	Token string `json:"token"` // hex
	// UID and GID of everything that is run; -1: the guest's own.
	UID   int      `json:"uid"`
	GID   int      `json:"gid"`
	Home  string   `json:"home"`
	Dir   string   `json:"dir"`   // where commands start
	State string   `json:"state"` // the guest's own directory, for spooled output and FIFOs
	Env   []string `json:"env,omitempty"`
	// Limits; zero: not enforced by the guest.
	Processes int   `json:"processes,omitempty"`
	OpenFiles int   `json:"open_files,omitempty"`
	Memory    int64 `json:"memory,omitempty"`
	CPUs      int   `json:"cpus,omitempty"` // what nproc and thread counts should show
	// Tmpfs are file systems in memory that the guest mounts itself, because that is the only way to limit the number of their files:
	// each costs memory that no size counts.
	Tmpfs []Tmpfs `json:"tmpfs,omitempty"`
	// Socket is the abstract address, beginning with an @, to which bridges connect; empty: the stream is on descriptors 0 and 1.
	Socket string `json:"socket,omitempty"`
	// Peer is the user that a bridge runs as, which nothing else in the sandbox does.
	Peer int `json:"peer,omitempty"`
	// Unpack is an archive with which the sandbox's directories are filled before anything runs.
	Unpack string `json:"unpack,omitempty"`
	// Threads is how many guest and nannies have from the start, where the limit of processes counts them, too: a Go program that needs
	// a thread and gets none dies.
	Threads int `json:"threads,omitempty"`
	// OOMScore is the oom_score_adj of everything that is run, where the host's kernel chooses what to kill for memory.
	OOMScore int `json:"oom_score,omitempty"`
	// Filter takes system calls away from everything that is run, also where that is the guest's own user.
	Filter bool `json:"filter,omitempty"`
}

// Tmpfs is one file system in memory.
type Tmpfs struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Inodes int64  `json:"inodes"`
	Mode   string `json:"mode"` // octal
	UID    int    `json:"uid"`
	GID    int    `json:"gid,omitempty"` // 0: the user's own, of the same number
}
