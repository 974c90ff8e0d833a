package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// The writable layer of a machine is a file system on a sparse file in the directory of its monitor. Snapshots contain
// a copy of it, which shares its blocks if the host's file system can.

// diskFile is the disk in the directory of a monitor, and in a saved state.
const diskFile = launch.DataDisk

// diskTool makes the file system of a disk.
const diskTool = "mke2fs"

// findDiskTool returns the path of diskTool, which is not on the PATH of every user.
func findDiskTool() (string, error) {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + diskTool); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", diskTool, exec.ErrNotFound)
}

// makeDisk makes an empty disk. It has no journal, because it does not outlive a crash of its machine.
func makeDisk(ctx context.Context, path string, size, files int64) error {
	tool, err := findDiskTool()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	_, err = output(ctx, "/", tool, "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N", fmt.Sprint(files),
		"-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", path)
	return err
}

// copyDisk copies a disk into a new file: by sharing its blocks, or else without its holes.
func copyDisk(from *os.File, to string) (err error) {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("the disk is not a regular file")
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if unix.IoctlFileClone(int(out.Fd()), int(from.Fd())) == nil {
		return nil
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // only a hole is left
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(from, data, at-data)); err != nil {
			return err
		}
	}
}

// saveDisk copies the disk of a paused machine into the directory of a saved state. The monitor may have replaced it.
func (m *hardware) saveDisk(to string) error {
	if m.disk == "" {
		return nil
	}
	fd, err := openIn(m.dir, diskFile, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), diskFile)
	defer f.Close()
	return copyDisk(f, to)
}
