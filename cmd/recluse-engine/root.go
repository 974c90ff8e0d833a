//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rootFile is the file beside config.json of a bundle with the parts of the root file system. A bundle without it has
// its whole root in one directory.
const rootFile = "root.json"

// volumesFile is the file beside config.json of a bundle with the volumes.
const volumesFile = "volumes.json"

// part is a directory of the host that appears inside the root file system.
type part struct {
	Source string `json:"source"` // on the host
	Target string `json:"target"` // on the host: a directory in the root directory
}

// composeRoot mounts the parts of the root file system, read-only, before gVisor opens the root. As mounts of their own
// they would be separate file systems inside, each with an overlay and a disk limit of its own. The caller has started
// this program in a new mount namespace, so that the mounts end with the sandbox.
func composeRoot() error {
	if !slices.Contains(os.Args, "run") && !slices.Contains(os.Args, "restore") {
		return nil
	}
	dir := bundleOf(os.Args)
	if dir == "" {
		return nil
	}
	var parts []part
	var volumes []volume
	if err := errors.Join(readFile(dir, rootFile, &parts), readFile(dir, volumesFile, &volumes)); err != nil {
		return err
	}
	if parts == nil && volumes == nil {
		return nil
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if of, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err == nil && own == of {
		return errors.New("a root of several parts needs a mount namespace of its own")
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("separate the mounts: %w", err)
	}
	for _, p := range parts {
		if err := mountPart(p); err != nil {
			return fmt.Errorf("mount %s: %w", p.Source, err)
		}
	}
	for _, v := range volumes {
		if err := v.mount(); err != nil {
			return fmt.Errorf("mount volume %s: %w", v.Target, err)
		}
	}
	return nil
}

// readFile decodes a file of the bundle into v, if it exists.
func readFile(dir, name string, v any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// volume is a device with an ext4 file system that appears inside. The mount point is a directory of the host, which
// the sandbox binds.
type volume struct {
	Device   string `json:"device,omitempty"` // empty: the directory itself has the files
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// mount mounts the volume. Only the mount is read-only, not the file system: other sandboxes have the same one, and may
// write to it.
func (v volume) mount() error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if v.Device != "" {
		if err := unix.Mount(v.Device, v.Target, "ext4", flags, "discard"); err != nil {
			return err
		}
	} else if err := unix.Mount(v.Target, v.Target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags |= unix.MS_REMOUNT | unix.MS_BIND
	if v.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", v.Target, "", flags, "")
}

// mountPart makes the mount read-only with everything below it. The remount by gVisor reaches only the root itself.
func mountPart(p part) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, p.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, p.Target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// bundleOf returns the bundle directory on a command line, or "".
func bundleOf(args []string) string {
	dir := ""
	for _, a := range args {
		if d, ok := strings.CutPrefix(a, "--bundle="); ok {
			dir = d
		}
	}
	return dir
}
