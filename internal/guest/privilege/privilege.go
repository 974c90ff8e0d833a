//go:build linux

// Package privilege keeps the guest apart from code that is root in the same sandbox.
//
// Root may signal, trace and limit every process of uid 0, and with CAP_SETUID of every other uid. In gVisor not even
// the first process is exempt. So in a sandbox in which code may become root, code runs in user namespaces that lack
// one uid, and the guest has that uid (UID). Code cannot become it, and its capabilities do not apply to processes and
// files that belong to it: neither signals, ptrace, limits nor CAP_DAC_OVERRIDE. The guest itself stays in the first
// user namespace and keeps its capabilities.
//
// Each nanny is the first process of such a namespace. It also has UID, which is unmapped there, so code can neither
// stop nor kill it. It starts code with at most the capabilities of ForCode.
//
// RLIMIT_NPROC does not bound root, which has 2³¹ uids to choose from. A cgroup does (Cage).
package privilege

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe" // for the pointers that capset takes

	"golang.org/x/sys/unix"
)

// UID is the uid and gid of the guest and its nannies. A spec cannot name it: it is larger than the largest valid id.
const UID = math.MaxInt32

// ForCode are the capabilities that root inside has: those of Docker's default set that mean something in a user
// namespace. CAP_KILL would apply to nannies, which are in the same namespace; root may still kill its own processes.
// CAP_MKNOD, CAP_NET_RAW, CAP_SETFCAP and CAP_AUDIT_WRITE have no effect there.
const ForCode uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT

// ForFiles are the capabilities with which the guest accesses files for root.
const ForFiles uint64 = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// forNanny are the capabilities of a nanny in its namespace: those that code gets, and those to kill and to inspect it.
const forNanny = ForCode | 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_PTRACE

// sets are the capability sets of a thread, as capset takes them.
type sets struct{ effective, permitted, inheritable uint64 }

func word(s sets, shift int) unix.CapUserData {
	return unix.CapUserData{
		Effective:   uint32(s.effective >> shift),
		Permitted:   uint32(s.permitted >> shift),
		Inheritable: uint32(s.inheritable >> shift),
	}
}

func (s sets) words() [2]unix.CapUserData {
	return [2]unix.CapUserData{word(s, 0), word(s, 32)}
}

// current returns the sets of the calling thread.
func current() (sets, error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var w [2]unix.CapUserData
	if err := unix.Capget(&h, &w[0]); err != nil {
		return sets{}, fmt.Errorf("read the capabilities: %w", err)
	}
	join := func(low, high uint32) uint64 { return uint64(high)<<32 | uint64(low) }
	return sets{
		effective:   join(w[0].Effective, w[1].Effective),
		permitted:   join(w[0].Permitted, w[1].Permitted),
		inheritable: join(w[0].Inheritable, w[1].Inheritable),
	}, nil
}

// setAll sets the sets of all threads.
func setAll(s sets) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	w := s.words()
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&w)), 0)
	runtime.KeepAlive(&h)
	runtime.KeepAlive(&w)
	if e != 0 {
		return fmt.Errorf("set the capabilities: %w", e)
	}
	return nil
}

// Guest is the privileges of the guest.
type Guest struct{ permitted uint64 }

// LeaveRoot changes the ids of this process from 0 to UID and keeps its capabilities.
func LeaveRoot() (*Guest, error) {
	have, err := current()
	if err != nil {
		return nil, err
	}
	groups := make([]uint32, 1)
	for _, c := range []struct {
		what       string
		call       uintptr
		a, b, c, d uintptr
	}{
		{"keep capabilities", unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0},
		{"leave all groups", unix.SYS_SETGROUPS, 0, uintptr(unsafe.Pointer(&groups[0])), 0, 0},
		{"set the group", unix.SYS_SETRESGID, UID, UID, UID, 0},
		{"set the user", unix.SYS_SETRESUID, UID, UID, UID, 0},
	} {
		if _, _, e := syscall.AllThreadsSyscall6(c.call, c.a, c.b, c.c, c.d, 0, 0); e != 0 {
			return nil, fmt.Errorf("%s: %w", c.what, e)
		}
	}
	runtime.KeepAlive(groups)
	g := &Guest{permitted: have.permitted}
	return g, setAll(sets{effective: g.permitted, permitted: g.permitted})
}

// SetEffective sets the effective capabilities of the calling thread. All others stay permitted.
func (g *Guest) SetEffective(caps uint64) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	w := sets{effective: caps & g.permitted, permitted: g.permitted}.words()
	_, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&w)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// Own makes the guest the owner of a path that it has made as root.
func Own(path string) error { return os.Lchown(path, UID, UID) }

// Namespace makes a new process the first one of a user namespace without UID. Spared is another id that code cannot
// become; 0: none.
func Namespace(attr *syscall.SysProcAttr, spared int) {
	ranges := []syscall.SysProcIDMap{{Size: UID}}
	if spared > 0 && spared < UID {
		ranges = []syscall.SysProcIDMap{
			{Size: spared},
			{ContainerID: spared + 1, HostID: spared + 1, Size: UID - spared - 1},
		}
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = ranges, ranges, true
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if forNanny>>c&1 == 1 {
			attr.AmbientCaps = append(attr.AmbientCaps, c)
		}
	}
}

// Restrict makes a nanny pass on nothing but ForCode.
//
// Preconditions: the bounding set is ForCode.
func Restrict() error {
	have, err := current()
	if err != nil {
		return err
	}
	// Without inheritable capabilities there are no ambient ones.
	return setAll(sets{effective: have.permitted, permitted: have.permitted})
}

// Cage is a cgroup that limits the number of processes and threads of code, whatever their uids. The guest and its
// nannies are outside.
type Cage struct {
	Procs   *os.File // a process whose pid is written to it moves inside
	Current *os.File // the number of processes and threads inside
}

// NewCage makes a cage. It mounts cgroups at the directory, where nothing remains visible: code could leave a cgroup
// that it can name.
func NewCage(dir string, processes int) (_ *Cage, err error) {
	failed := func(what string, err error) error { return fmt.Errorf("limit processes: %s: %w", what, err) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("make a directory", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err = unix.Mount("none", dir, "cgroup2", flags, ""); err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+pids"), 0)
	} else if errors.Is(err, unix.ENODEV) { // gVisor as Docker starts it
		err = unix.Mount("none", dir, "cgroup", flags, "pids")
	}
	if err != nil {
		return nil, failed("mount cgroups", err)
	}
	defer func() {
		// The open files keep the cgroup.
		err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))
	}()
	code := filepath.Join(dir, "code")
	if err := os.Mkdir(code, 0o700); err != nil {
		return nil, failed("make a cgroup", err)
	}
	if err := os.WriteFile(filepath.Join(code, "pids.max"), []byte(strconv.Itoa(processes)), 0); err != nil {
		return nil, failed("set the limit", err)
	}
	c := &Cage{}
	if c.Procs, err = os.OpenFile(filepath.Join(code, "cgroup.procs"), os.O_WRONLY, 0); err != nil {
		return nil, failed("open the cgroup", err)
	}
	if c.Current, err = os.Open(filepath.Join(code, "pids.current")); err != nil {
		_ = c.Procs.Close()
		return nil, failed("open the cgroup", err)
	}
	return c, nil
}

// Enter moves a process inside. The limit does not apply to that, only to what the process forks.
func (c *Cage) Enter(pid int) error {
	if _, err := c.Procs.WriteAt([]byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("move a process to the cgroup of code: %w", err)
	}
	return nil
}

// Count returns the number of processes and threads inside.
func (c *Cage) Count() (int, error) {
	text := make([]byte, 32)
	n, err := c.Current.ReadAt(text, 0)
	if n == 0 {
		return 0, fmt.Errorf("count processes: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text[:n])))
}
