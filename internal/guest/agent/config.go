//go:build linux

package agent

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// mount mounts a tmpfs.
func mount(t launch.Tmpfs) error {
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%s,uid=%d,gid=%d",
		t.Size, t.Inodes, t.Mode, t.UID, cmp.Or(t.GID, t.UID))
	if err := unix.Mount("tmpfs", t.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount %s: %w", t.Path, err)
	}
	return nil
}

func configFromEnv() (launch.Config, []byte, error) {
	var c launch.Config
	raw := os.Getenv(launch.ConfigEnv)
	if raw == "" {
		return c, nil, fmt.Errorf("%s is not set: only recluse starts this program, inside a sandbox", launch.ConfigEnv)
	}
	os.Unsetenv(launch.ConfigEnv)
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return c, nil, fmt.Errorf("read %s: %w", launch.ConfigEnv, err)
	}
	token, err := hex.DecodeString(c.Token)
	if err != nil || len(token) == 0 {
		return c, nil, fmt.Errorf("read %s: missing or invalid token", launch.ConfigEnv)
	}
	return c, token, nil
}
