package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// jail is what a monitor may reach: only what it needs, read-only, except for its own directory, which is its working
// directory.
type jail struct {
	dir     string            // on the host: the monitor's own directory
	program string            // on the host: the monitor
	files   map[string]string // paths on the host of read-only files and directories, by their names in jailFiles
	devs    []string          // devices, besides null and urandom
	uid     int
}

const (
	jailDir     = "/machine" // shows jail.dir
	jailFiles   = "/files"
	jailProgram = "/monitor" // contains jail.program, unless it is below /usr
)

// systemDirs are the directories with the libraries and data of monitors.
var systemDirs = []string{"/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32"}

// programPath returns the path of the program for the monitor.
func (j *jail) programPath() string {
	if j.uid == 0 || strings.HasPrefix(j.program, "/usr/") {
		return j.program
	}
	return filepath.Join(jailProgram, filepath.Base(j.program))
}

// uids of monitors: the first, and how many there are. They are far above those of people and of user namespaces.
const firstUID, countUID = 0x70000000, 1 << 24

// start starts a monitor that outlives this program. If this program is root, the monitor gets a file system, a user
// and an empty network of its own; otherwise it runs as this user. In both cases Landlock, where the kernel has it,
// limits what it can reach.
func (j *jail) start(cmd *exec.Cmd) error {
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if j.uid == 0 {
		cmd.Dir = j.dir
		return onOwnThread(func() error {
			if err := j.restrict(); err != nil {
				return err
			}
			return cmd.Start()
		})
	}
	cmd.Dir = jailDir
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(j.uid), Gid: uint32(j.uid), Groups: []uint32{}}
	return onOwnThread(func() error {
		// The thread gets its own mount namespace, which the monitor inherits.
		if err := j.enter(); err != nil {
			return err
		}
		if err := j.restrict(); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// onOwnThread calls f on a thread that ends afterwards. The runtime ends the thread of a goroutine that ends while it
// is locked to it, except for the main thread, whose namespaces are moreover what others see as those of the program.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			done <- onOwnThread(f) // which cannot be on this thread
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// path returns the path of a read-only file for the monitor.
func (j *jail) path(name string) string {
	if j.uid == 0 {
		return j.files[name]
	}
	return filepath.Join(jailFiles, name)
}

// enter makes the jail the root of this thread.
func (j *jail) enter() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace of the monitor: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The directory of the machine is only a mount point here: the new root is built over it in this namespace.
	own, err := unix.Open(j.dir, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	root := j.dir
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("root of the monitor: %w", err)
	}
	if err := j.fill(root, fmt.Sprintf("/proc/self/fd/%d", own)); err != nil {
		return err
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("root of the monitor: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// fill makes the files of the jail below root. own is the monitor's own directory.
func (j *jail) fill(root, own string) error {
	const readOnly = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	for _, dir := range systemDirs {
		info, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(dir)
			if err != nil {
				return err
			}
			if err := os.Symlink(to, root+dir); err != nil {
				return err
			}
		default:
			if err := bindDir(dir, root+dir, readOnly); err != nil {
				return err
			}
		}
	}
	if err := bindDir(own, root+jailDir, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	files := map[string]string{"/etc/ld.so.cache": "/etc/ld.so.cache"}
	for name, path := range j.files {
		files[filepath.Join(jailFiles, name)] = path
	}
	for _, dev := range commonDevices {
		if err := bindFile(dev, root+dev, unix.MS_NOSUID|unix.MS_NOEXEC); err != nil {
			return err
		}
	}
	for _, dev := range j.devs {
		if err := j.makeDevice(dev, root+dev); err != nil {
			return err
		}
	}
	if program := j.programPath(); filepath.Dir(program) == jailProgram {
		if err := bindFile(j.program, root+program, readOnly); err != nil {
			return err
		}
	}
	for target, path := range files {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir():
			err = bindDir(path, root+target, readOnly|unix.MS_NOEXEC)
		case err == nil:
			err = bindFile(path, root+target, readOnly|unix.MS_NOEXEC)
		}
		if err != nil && !(path == target && errors.Is(err, fs.ErrNotExist)) { // not every system has the cache
			return err
		}
	}
	return nil
}

// commonDevices are the devices that every monitor may use.
var commonDevices = []string{"/dev/null", "/dev/urandom"}

// makeDevice makes a device of the host that belongs to the monitor's user. The host's own file usually belongs to a
// group that this user is not in.
func (j *jail) makeDevice(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(to, unix.S_IFCHR|0o600, int(st.Rdev)); err != nil {
		return &fs.PathError{Op: "mknod", Path: from, Err: err}
	}
	return os.Chown(to, j.uid, j.uid)
}

func bindDir(from, to string, flags uintptr) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return bind(from, to, flags)
}

func bindFile(from, to string, flags uintptr) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(to, nil, 0o644); err != nil {
		return err
	}
	return bind(from, to, flags)
}

// bind shows from at to, without mounts below it. The kernel applies the flags only to an existing mount.
func bind(from, to string, flags uintptr) error {
	err := unix.Mount(from, to, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
	}
	if err != nil {
		return fmt.Errorf("show %s to the monitor: %w", from, err)
	}
	return nil
}
