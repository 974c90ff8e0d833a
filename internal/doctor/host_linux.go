package doctor

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostWait is the timeout of one check of the host.
const hostWait = 2 * time.Second

func systemName() string {
	name := "Linux"
	if b, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				name = strings.Trim(v, `"`)
			}
		}
	}
	return name + ", kernel " + HostKernel()
}

// HostKernel returns the release of the kernel of this machine.
func HostKernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func hostChecks(ctx context.Context) []Fact {
	return []Fact{userNamespaces(ctx), cgroups(), python(), kvm()}
}

// userNamespaces checks user namespaces by making one, as sandboxes of an unprivileged user do.
func userNamespaces(ctx context.Context) Fact {
	f := Fact{Name: "user namespaces"}
	ctx, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	err := cmd.Run()
	if err == nil {
		f.OK, f.Detail = true, "allowed"
		return f
	}
	f.Detail = "not allowed: " + err.Error()
	if os.Geteuid() == 0 {
		f.Detail += "; root does not need them"
	}
	switch {
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		f.Remedy = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or add an AppArmor profile with userns for recluse-engine"
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		f.Remedy = "sysctl kernel.unprivileged_userns_clone=1"
	case sysctl("user/max_user_namespaces") == "0":
		f.Remedy = "sysctl user.max_user_namespaces=15000"
	default:
		f.Remedy = "in a container: start it with a seccomp profile that allows unshare, or run as root"
	}
	return f
}

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// cgroups checks the version of cgroups, and whether this user can create one.
func cgroups() Fact {
	f := Fact{Name: "cgroups"}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		f.Detail, f.Remedy = "not mounted: "+err.Error(), "mount cgroups; without them, memory and CPU limits are not enforced"
		return f
	}
	version, dir := "version 1", "/sys/fs/cgroup/memory"
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		version, dir = "version 2", "/sys/fs/cgroup"
	}
	f.OK = unix.Access(dir, unix.W_OK) == nil
	if f.OK {
		f.Detail = version + ", writable"
	} else {
		f.Detail = version + ", not writable: memory and CPU limits are not enforced"
	}
	return f
}

func python() Fact {
	for _, p := range []string{"/usr/bin/python3", "/bin/python3"} {
		if _, err := os.Stat(p); err == nil {
			return Fact{Name: "python", OK: true, Detail: p + ", in the default root file system"}
		}
	}
	return Fact{
		Name:   "python",
		Detail: "not found below /usr, so the default root file system has no Python and only commands can run",
		Remedy: "apt-get install python3, or use --image",
	}
}

func kvm() Fact {
	f := Fact{Name: "kvm", OK: true, Detail: "no /dev/kvm; recluse does not need it"}
	if fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Close(fd)
		f.Detail = "/dev/kvm can be opened; recluse does not need it"
	}
	return f
}
