//go:build linux

package agent

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

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

// prepareDir makes a directory, or gives an existing one to its owner. What is mounted there stays as it is.
func prepareDir(d launch.Dir) error {
	var top unix.Stat_t
	err := unix.Lstat(d.Path, &top)
	if errors.Is(err, unix.ENOENT) {
		if d.Optional {
			return nil
		}
		if err = os.MkdirAll(d.Path, 0o755); err == nil {
			err = unix.Lstat(d.Path, &top)
		}
	}
	if err == nil && d.Mode != "" {
		var mode uint64
		if mode, err = strconv.ParseUint(d.Mode, 8, 32); err == nil {
			err = unix.Chmod(d.Path, uint32(mode)) // not os.Chmod, which has another sticky bit
		}
	}
	if err == nil {
		err = os.Lchown(d.Path, d.UID, d.GID)
	}
	if err == nil && d.Deep > 0 {
		chownDirs(d, top.Dev)
	}
	if err != nil && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("prepare %s: %w", d.Path, err)
	}
	return nil
}

// chownDirs changes the owner of the directories below d that are on the device and that programs install into. Each
// one becomes part of the writable layer: it counts as a file, stays in memory and makes the start slower (1,700 of
// them took 100 ms and 5 MB). So others, such as those of a toolchain, stay as they are, and the number is limited. The
// nearest ones come first: new packages appear there. Errors are ignored: a directory that an ordinary user of the
// host may not read cannot be changed inside either, and gVisor has several errors for that.
func chownDirs(d launch.Dir, device uint64) {
	left := d.Deep
	for queue := []string{""}; len(queue) > 0; queue = queue[1:] {
		entries, _ := os.ReadDir(filepath.Join(d.Path, queue[0]))
		for _, e := range entries {
			next := filepath.Join(queue[0], e.Name())
			path := filepath.Join(d.Path, next)
			var st unix.Stat_t
			if !e.IsDir() || !launch.InstallsInto(next) || unix.Lstat(path, &st) != nil || st.Dev != device {
				continue
			}
			if left == 0 {
				return
			}
			left--
			if os.Lchown(path, d.UID, d.GID) == nil {
				queue = append(queue, next)
			}
		}
	}
}

func configFromEnv() (launch.Config, []byte, error) {
	var c launch.Config
	raw := os.Getenv(launch.ConfigEnv)
	if raw == "" {
		return c, nil, fmt.Errorf("%s is not set: only recluse starts this program, inside a sandbox", launch.ConfigEnv)
	}
	os.Unsetenv(launch.ConfigEnv)
	c, token, err := parseConfig([]byte(raw))
	if err != nil {
		return c, nil, fmt.Errorf("read %s: %w", launch.ConfigEnv, err)
	}
	return c, token, nil
}

func parseConfig(raw []byte) (c launch.Config, token []byte, err error) {
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, nil, err
	}
	token, err = hex.DecodeString(c.Token)
	if err != nil || len(token) == 0 {
		return c, nil, errors.New("missing or invalid token")
	}
	return c, token, nil
}
