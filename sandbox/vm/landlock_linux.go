package vm

import (
	"errors"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights of Landlock on files, by the version of its interface that knows them. A right that is not handled is not
// restricted, so all that a version knows are handled.
const (
	landlockRead = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockRun  = landlockRead | unix.LANDLOCK_ACCESS_FS_EXECUTE
	landlockV1   = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	landlockV2   = landlockV1 | unix.LANDLOCK_ACCESS_FS_REFER
	landlockV3   = landlockV2 | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// landlockOwn is what a monitor may do in its own directory.
	landlockOwn = landlockRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// restrict limits this thread, and the programs that it starts, to the files of the jail, and forbids TCP, abstract
// sockets and signals to other processes. A kernel without Landlock, or with an older one, enforces less: Landlock is
// the second wall where there is a jail, and the only one where there is none.
func (j *jail) restrict() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return nil // the kernel has none
	}
	rules := unix.LandlockRulesetAttr{Handled_access_fs: landlockV3}
	size := unsafe.Offsetof(rules.Handled_access_net)
	switch {
	case version < 2:
		rules.Handled_access_fs = landlockV1
	case version < 3:
		rules.Handled_access_fs = landlockV2
	case version >= 6:
		rules.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Offsetof(rules.Quiet_access_fs)
		fallthrough
	case version >= 4:
		rules.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size = max(size, unsafe.Offsetof(rules.Scoped))
	}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), size, 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(set))
	allow := func(path string, rights uint64) error {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not every system has all directories
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			rights &= unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
				unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
		}
		beneath := unix.LandlockPathBeneathAttr{Allowed_access: rights & rules.Handled_access_fs, Parent_fd: int32(fd)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH,
			uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
		return os.NewSyscallError("landlock_add_rule", errnoOrNil(errno))
	}
	rights := map[string]uint64{"/etc/ld.so.cache": landlockRead, j.programPath(): landlockRun}
	for _, dir := range systemDirs {
		rights[dir] = landlockRun
	}
	for _, dev := range append(j.devs, commonDevices...) {
		rights[dev] = landlockRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	}
	for name := range j.files {
		rights[j.path(name)] = landlockRead
	}
	own := jailDir
	if j.uid == 0 {
		own = j.dir
	}
	rights[own] = landlockOwn
	for path, r := range rights {
		if err := allow(path, r); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

func errnoOrNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
