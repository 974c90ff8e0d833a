//go:build linux

package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits that hold unless Options say otherwise.
const (
	defaultMaxEntries  = 1_000_000
	defaultMaxBytes    = 16 << 30
	defaultMaxWatches  = 4096
	defaultListEntries = 10_000

	maxName    = 255
	maxPath    = 4095
	maxLinks   = 40      // symbolic links in one path, as in Linux
	maxUps     = 255     // ".." in one path, links included: each one costs a walk from the root
	maxPseudo  = 4 << 20 // read from a file of /proc or /sys, which do not tell their size
	chunk      = 128 << 10
	maxReports = 1000 // entries of a tar's Skipped and Changed that are named; the rest is counted
)

// Options say for whom an FS works and where it stops.
type Options struct {
	UID, GID int // the user, with SwitchUser
	// SwitchUser makes every operation with the permissions of UID and GID. It needs CAP_SETUID and CAP_SETGID;
	// without them every operation fails with Kind Permission.
	SwitchUser bool

	MaxWatches int // directories of one Watch; 0: 4096
}

// FS does file operations for one user. It holds no resources and is safe for concurrent use.
type FS struct {
	opts   Options
	user   ids
	resume func() error // gives the thread its ids back; replaced in tests
}

// New returns an FS.
func New(opts Options) *FS {
	if opts.MaxWatches <= 0 {
		opts.MaxWatches = defaultMaxWatches
	}
	f := &FS{opts: opts, user: ids{uid: opts.UID, gid: opts.GID}}
	f.resume = ownIDs().resume
	return f
}

// Info describes one file.
type Info struct {
	Path       string // below the root, with a leading slash
	Size       int64
	Mode       fs.FileMode
	ModTime    time.Time
	UID, GID   int
	LinkTarget string // of a symbolic link, as it is written there
	Kind       string // file, dir, symlink, fifo, socket, device
}

// stat is what the kernel says of a file.
type stat = unix.Stat_t

func newInfo(p string, st *stat) Info {
	mode := fs.FileMode(st.Mode & 0o777)
	kind := "device"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		kind = "file"
	case unix.S_IFDIR:
		kind, mode = "dir", mode|fs.ModeDir
	case unix.S_IFLNK:
		kind, mode = "symlink", mode|fs.ModeSymlink
	case unix.S_IFIFO:
		kind, mode = "fifo", mode|fs.ModeNamedPipe
	case unix.S_IFSOCK:
		kind, mode = "socket", mode|fs.ModeSocket
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	default:
		mode |= fs.ModeDevice
	}
	if st.Mode&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if st.Mode&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if st.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return Info{
		Path:    p,
		Size:    st.Size,
		Mode:    mode,
		ModTime: time.Unix(st.Mtim.Unix()),
		UID:     int(st.Uid),
		GID:     int(st.Gid),
		Kind:    kind,
	}
}

func isDir(st *stat) bool     { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isRegular(st *stat) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }
func isLink(st *stat) bool    { return st.Mode&unix.S_IFMT == unix.S_IFLNK }

// wantRegular returns nil for a regular file and otherwise the reason against it.
func wantRegular(st *stat) error {
	switch {
	case isRegular(st):
		return nil
	case isDir(st):
		return unix.EISDIR
	case isLink(st):
		return unix.ELOOP
	}
	return errNotRegular
}

// The *at calls below retry on EINTR, which Go's preemption signals cause on slow file systems.

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func lstatAt(dir *os.File, name string) (*stat, error) {
	st := new(stat)
	return st, retry(func() error { return unix.Fstatat(int(dir.Fd()), name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

func fstat(file *os.File) (*stat, error) {
	st := new(stat)
	return st, retry(func() error { return unix.Fstat(int(file.Fd()), st) })
}

func readlinkAt(dir *os.File, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// openAt opens name, a single one, and never follows it. In gVisor that fails if flags hold O_DIRECTORY: see openPathAt.
func openAt(dir *os.File, name string, flags int, perm uint32) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openPathAt opens a directory with O_PATH, which takes no read permission. It does not say O_DIRECTORY, for with that
// gVisor follows links in spite of O_NOFOLLOW, but looks at what it has opened; O_PATH neither blocks nor acts on a FIFO or device.
func openPathAt(dir *os.File, name string) (*os.File, error) {
	sub, err := openAt(dir, name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	st, err := fstat(sub)
	if err == nil && !isDir(st) {
		err = unix.ENOTDIR
	}
	if err != nil {
		_ = sub.Close()
		return nil, err
	}
	return sub, nil
}

// openDirAt opens a directory for reading its names.
func openDirAt(dir *os.File, name string) (*os.File, error) {
	at, err := openPathAt(dir, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }()
	sub, err := openAt(at, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := refuseOwn(sub); err != nil {
		_ = sub.Close()
		return nil, err
	}
	return sub, nil
}

// openRegularAt opens a regular file and refuses all else, without ever blocking: the file is looked at before it is
// opened, because opening alone wakes a FIFO's writer or moves a device, and again after, because it may have been swapped.
func openRegularAt(dir *os.File, name string, flags int) (*os.File, *stat, error) {
	st, err := lstatAt(dir, name)
	if err != nil {
		return nil, nil, err
	}
	if err := wantRegular(st); err != nil {
		return nil, nil, err
	}
	file, err := openAt(dir, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if st, err = fstat(file); err == nil {
		err = wantRegular(st)
	}
	if err == nil {
		err = refuseOwn(file)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, st, nil
}

// pseudo tells whether file is of a file system that makes its content up when it is read.
func pseudo(file *os.File) (yes, proc bool) {
	var sfs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(file.Fd()), &sfs) }); err != nil {
		return false, false
	}
	switch uint32(sfs.Type) {
	case unix.PROC_SUPER_MAGIC:
		return true, true
	case unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
		return true, false
	}
	return false, false
}

// refuseOwn refuses what belongs to this very process in /proc (mem, environ, fd, …). The kernel lets a process look at
// itself whatever its ids are, so the user switch alone would not do.
func refuseOwn(file *os.File) error {
	if _, proc := pseudo(file); !proc {
		return nil
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	if err != nil {
		return errOwnProcess // can't tell: refuse
	}
	for _, part := range strings.Split(real, "/") {
		if pid, err := strconv.Atoi(part); err != nil || pid <= 0 {
			continue
		}
		if _, err := os.Lstat("/proc/self/task/" + part); err == nil {
			return errOwnProcess
		}
	}
	return nil
}

// copyN copies at most n bytes and checks ctx between chunks. It ends without error at the end of r.
func copyN(ctx context.Context, w io.Writer, r io.Reader, n int64) (int64, error) {
	buf := make([]byte, min(max(n, 1), chunk))
	// Only a Writer: a File would read by itself, in pieces of its own size.
	return io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(untilDone{ctx, r}, n), buf)
}

// untilDone reads until ctx ends.
type untilDone struct {
	ctx context.Context //nolint:containedctx // that of the call which copies
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
