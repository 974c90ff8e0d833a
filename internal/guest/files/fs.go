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

// Limits. Options and the arguments of the operations can change the default* ones.
const (
	defaultMaxEntries  = 1_000_000
	defaultMaxBytes    = 16 << 30
	defaultMaxWatches  = 4096
	defaultListEntries = 10_000

	maxName    = 255
	maxPath    = 4095
	maxLinks   = 40      // symbolic links in one path, as in Linux
	maxUps     = 255     // ".." in one path, including those in links: each one costs a walk from the root
	maxPseudo  = 4 << 20 // bytes read from a file of /proc or /sys, whose size is unknown
	chunk      = 128 << 10
	maxReports = 1000 // entries of a tar's Skipped and Changed that are listed; the others are only counted
)

// Options are the user and the limits of an FS.
type Options struct {
	UID, GID int // the user, with SwitchUser
	// SwitchUser runs every operation with the permissions of UID and GID. It requires CAP_SETUID and CAP_SETGID;
	// without them every operation fails with Kind Permission.
	SwitchUser bool
	// SetEffective sets the effective capabilities of the calling thread; ForRoot are those for uid 0. They are set if
	// this process itself does not run as uid 0, so that changing its ids does not change its capabilities.
	SetEffective func(caps uint64) error
	ForRoot      uint64

	MaxWatches int // directories of one Watch; 0: 4096
}

// FS runs file operations for one user. It holds no resources and is safe for concurrent use.
type FS struct {
	opts   Options
	user   ids
	resume func() error // restores the ids of the thread; replaced in tests
}

// New returns an FS.
func New(opts Options) *FS {
	if opts.MaxWatches <= 0 {
		opts.MaxWatches = defaultMaxWatches
	}
	f := &FS{opts: opts, user: ids{uid: opts.UID, gid: opts.GID}}
	own := ownIDs()
	f.resume = func() error { return f.restore(own) }
	return f
}

// Info describes one file.
type Info struct {
	Path       string // below the root, with a leading slash
	Size       int64
	Mode       fs.FileMode
	ModTime    time.Time
	UID, GID   int
	LinkTarget string // target of a symbolic link, as stored in the link
	Kind       string // file, dir, symlink, fifo, socket, device
}

// stat is the result of stat(2).
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

// wantRegular returns nil for a regular file, and otherwise an error that names the kind of file.
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

// openAt opens a single name and does not follow it if it is a link. In gVisor it does follow if flags contains
// O_DIRECTORY: see openPathAt.
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

// openPathAt opens a directory with O_PATH, which requires no read permission. It does not set O_DIRECTORY, because
// gVisor then follows links in spite of O_NOFOLLOW. Instead it checks the type of the opened file. Opening a FIFO or
// device with O_PATH neither blocks nor has an effect on it.
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

// openDirAt opens a directory for reading its entries.
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

// openRegularAt opens a regular file. It refuses all other types, and never blocks. The type is checked before the
// open, because opening alone wakes the writer of a FIFO or moves a device, and again after it, because the file may
// have been swapped.
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

// pseudo reports whether file is on a file system that generates content when it is read, and whether that is /proc.
func pseudo(file *os.File) (generated, proc bool) {
	var sfs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(file.Fd()), &sfs) }); err != nil {
		return false, false
	}
	switch uint32(sfs.Type) {
	case unix.PROC_SUPER_MAGIC:
		return true, true
	case unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
		return true, false
	}
	return false, false
}

// refuseOwn returns an error for files of this process in /proc (mem, environ, fd, …). The kernel allows a process to
// read its own files whatever its ids are, so the user switch does not prevent it.
func refuseOwn(file *os.File) error {
	if _, proc := pseudo(file); !proc {
		return nil
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	if err != nil {
		return errOwnProcess // the path is unknown: refuse
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

// copyN copies at most n bytes and checks ctx between chunks. The end of r is not an error.
func copyN(ctx context.Context, w io.Writer, r io.Reader, n int64) (int64, error) {
	buf := make([]byte, min(max(n, 1), chunk))
	// Hide all methods but Write: os.File.ReadFrom would read in chunks of its own size.
	return io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(untilDone{ctx, r}, n), buf)
}

// untilDone reads until ctx ends.
type untilDone struct {
	ctx context.Context //nolint:containedctx // the ctx of the call that copies
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
