//go:build linux

package agent

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ConfigEnv is the environment variable in which a backend hands the guest its Config.
const ConfigEnv = "RECLUSE_GUEST_CONFIG"

// Config is what a backend tells the guest at its birth. It stays through snapshots;
// what differs between copies comes with every attachment (wire.Identity).
type Config struct {
	Token string `json:"token"` // hex
	// UID and GID of everything that is run; -1: the guest's own.
	UID    int      `json:"uid"`
	GID    int      `json:"gid"`
	Home   string   `json:"home"`
	Dir    string   `json:"dir"`   // where commands start
	State  string   `json:"state"` // the guest's own directory, for spooled output and FIFOs
	Root   string   `json:"root"`  // what file operations are confined to; "" or "/": the whole sandbox
	Python string   `json:"python,omitempty"`
	Env    []string `json:"env,omitempty"`
	// Limits; zero: not ours to keep.
	Processes int   `json:"processes,omitempty"`
	OpenFiles int   `json:"open_files,omitempty"`
	Memory    int64 `json:"memory,omitempty"`
	CPUs      int   `json:"cpus,omitempty"` // what nproc and thread counts should show
	// Tmpfs are file systems in memory that the guest mounts itself, because only so can
	// the number of their files be limited: each costs memory that no size counts.
	Tmpfs []Tmpfs `json:"tmpfs,omitempty"`
}

// Tmpfs is one file system in memory.
type Tmpfs struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Inodes int64  `json:"inodes"`
	Mode   string `json:"mode"` // octal
	UID    int    `json:"uid"`
}

func (t Tmpfs) mount() error {
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d", t.Size, t.Inodes, t.Mode, t.UID, t.UID)
	if err := unix.Mount("tmpfs", t.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount %s: %w", t.Path, err)
	}
	return nil
}

func configFromEnv() (Config, []byte, error) {
	var c Config
	raw := os.Getenv(ConfigEnv)
	if raw == "" {
		return c, nil, fmt.Errorf("%s is not set: this program is started by recluse inside a sandbox", ConfigEnv)
	}
	os.Unsetenv(ConfigEnv)
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return c, nil, fmt.Errorf("read %s: %w", ConfigEnv, err)
	}
	token, err := hex.DecodeString(c.Token)
	if err != nil || len(token) == 0 {
		return c, nil, fmt.Errorf("read %s: no token", ConfigEnv)
	}
	return c, token, nil
}
