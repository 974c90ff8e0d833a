//go:build linux

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/fifo"
)

// The parts of an ext4 file system that are not for files, in bytes.
const (
	inodeSize    = 256
	groupSize    = 128 << 20 // blocks that share bitmaps
	groupCost    = 16 << 10
	minJournal   = 4 << 20  // the smallest that mke2fs accepts
	maxJournal   = 16 << 20 // mke2fs writes it, so a new volume takes that much
	otherCost    = 1 << 20
	ownerInside  = v1.DefaultUID
	reservedIno  = 12 // inodes that ext4 itself uses
	mountOptions = "discard"
)

// allocated returns how many bytes a file takes on disk.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// CanLimit returns nil if this program can make volumes whose size is limited, and otherwise the reason.
func CanLimit() error {
	if os.Geteuid() != 0 {
		return errors.New("limiting a volume requires root")
	}
	if _, err := mke2fs(); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("no loop devices: %w", err)
	}
	return nil
}

func mke2fs() (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"} {
		path := filepath.Join(dir, "mke2fs")
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", errors.New("mke2fs is missing (package e2fsprogs)")
}

// imageSize returns the size of the file, and of the journal in it, for a file system in which so much can be stored.
func imageSize(size, files int64) (total, journal int64) {
	journal = min(max(size/64, minJournal), maxJournal) &^ (1<<20 - 1)
	total = size + files*inodeSize + journal + otherCost
	total += (total/groupSize + 1) * groupCost
	return (total + 1<<20 - 1) &^ (1<<20 - 1), journal
}

// makeImage makes the file with the file system.
func (v *Volume) makeImage(ctx context.Context) error {
	const op = "create volume"
	program, err := mke2fs()
	if err != nil {
		return &v1.Error{Code: v1.CodeNotSupported, Op: op, Message: err.Error(), Remedy: "install e2fsprogs"}
	}
	if err := v.checkSpace(); err != nil {
		return err
	}
	total, journal := imageSize(v.Size, v.Files)
	f, err := os.OpenFile(v.Image(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(total), f.Close())
	}
	if err != nil {
		return imageError("the file of the volume cannot be made", err)
	}
	cmd := exec.CommandContext(ctx, program, "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-e", "remount-ro",
		"-I", strconv.Itoa(inodeSize), "-N", strconv.FormatInt(v.Files+reservedIno, 10),
		"-O", "^resize_inode", "-J", fmt.Sprintf("size=%d", journal>>20),
		"-E", "assume_storage_prezeroed=1,nodiscard,lazy_itable_init=0,lazy_journal_init=1,root_owner="+
			fmt.Sprintf("%d:%d", ownerInside, ownerInside),
		v.Image())
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "cancelled", Err: ctx.Err()}
		}
		return imageError("the file system of the volume cannot be made",
			fmt.Errorf("mke2fs: %w: %.300s", err, strings.TrimSpace(string(out))))
	}
	failpoint("create.formatted")
	if err := v.finishImage(); err != nil {
		return imageError("the file system of the volume cannot be mounted", err)
	}
	if err := syncAll(v.Image()); err != nil {
		return imageError("the volume cannot be written to the disk", err)
	}
	return nil
}

// checkSpace refuses a volume that is larger than the free space, except one of the default size: most volumes are
// never full.
func (v *Volume) checkSpace() error {
	var st unix.Statfs_t
	if err := unix.Statfs(v.dir, &st); err != nil {
		return imageError("the free space cannot be read", err)
	}
	free := int64(st.Bavail) * st.Bsize
	if v.Size <= free || v.Size == v1.DefaultVolumeSize {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeDiskFull,
		Op:   "create volume",
		Message: fmt.Sprintf("the disk of the data directory has %s free, less than the volume of %s",
			v1.SizeText(free), v1.SizeText(v.Size)),
		Remedy: "choose a smaller size, or free disk space",
	}
}

func imageError(message string, err error) error {
	e := &v1.Error{Code: v1.CodeInternal, Op: "create volume", Message: message, Err: err}
	if errors.Is(err, unix.ENOSPC) {
		e.Code, e.Message, e.Remedy = v1.CodeDiskFull, "the disk of the data directory is full", "free disk space"
	}
	return e
}

// finishImage mounts the file system once, so that a volume that exists can be mounted, and prepares its root.
func (v *Volume) finishImage() error {
	d, err := AttachImage(v.Image())
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	root, err := mountDetached(d.Name())
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	fd := int(root.Fd())
	if err := unix.Unlinkat(fd, "lost+found", unix.AT_REMOVEDIR); err != nil {
		return err
	}
	if err := unix.Fchmodat(fd, ".", 0o777, 0); err != nil {
		return err
	}
	return unix.Syncfs(fd)
}

// mountDetached mounts a device without a mount point. The mount ends with the returned directory.
func mountDetached(device string) (*os.File, error) {
	fsfd, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen: %w", err)
	}
	defer func() { _ = unix.Close(fsfd) }()
	for _, o := range [][2]string{{"source", device}, {mountOptions, ""}} {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fsfd, o[0])
		} else {
			err = unix.FsconfigSetString(fsfd, o[0], o[1])
		}
		if err != nil {
			return nil, fmt.Errorf("mount option %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, fmt.Errorf("mount %s: %w", device, err)
	}
	mount, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", device, err)
	}
	defer func() { _ = unix.Close(mount) }()
	fd, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // mount is only a path
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// loopTries is how often a free loop device is looked for: another program may take it first.
const loopTries = 20

// AttachImage returns the loop device of an image, and attaches it to one first if there is none. Two devices of one
// image would be two file systems over the same blocks, so the caller holds the lock of the store, or is the only one
// that knows the image. The device is detached when the last mount and the last descriptor are gone.
func AttachImage(image string) (*os.File, error) {
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if d := attached(&st); d != nil {
		return d, nil
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		d, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd()), Size: 4096}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
		if err = unix.IoctlLoopConfigure(int(d.Fd()), &config); err == nil {
			return d, nil
		}
		_ = d.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach a loop device: %w", err)
		}
	}
	return nil, errors.New("no loop device is free")
}

// attached returns the loop device of a file, or nil if there is none.
func attached(st *unix.Stat_t) *os.File {
	names, _ := filepath.Glob("/sys/block/loop*/loop") // the pattern is valid
	for _, name := range names {
		d, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(name)), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		// While the device is open, it is not detached.
		info, err := unix.IoctlLoopGetStatus64(int(d.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev && info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
			return d
		}
		_ = d.Close()
	}
	return nil
}

// Device returns the loop device of the volume, which stays attached until it is closed and no sandbox uses it.
func (s *Store) Device(ctx context.Context, v *Volume) (*os.File, error) {
	lock, err := s.lock(ctx, "use volume")
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	d, err := AttachImage(v.Image())
	if err != nil {
		return nil, broken("use volume", "the file of volume "+v.Name+" cannot be attached to a loop device", err)
	}
	return d, nil
}

// HasGuest is Lives for sandboxes whose guest has pipes in the directory of the sandbox.
func HasGuest(l Lease) bool { return fifo.HasGuest(l.Dir) }
