package attack

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// prelude is Python code with which attacks make raw system calls. call returns the name of the errno, or "ok" and the
// result.
const prelude = `
import ctypes, errno, os, sys
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
def call(nr, *args):
    ctypes.set_errno(0)
    r = _libc.syscall(ctypes.c_long(nr), *[a if isinstance(a, (bytes, ctypes.Array, ctypes._Pointer)) or a is None else ctypes.c_long(a) for a in args])
    if r == -1: return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    return 'ok %d' % r
def attempt(f, *args):
    try: return 'ok %r' % (f(*args),)
    except OSError as e: return errno.errorcode.get(e.errno, str(e))
`

// ownHarm are calls that succeed in a container on the host's kernel, where guest and code are the same user. Code can
// send signals to the guest, which survives all of them (TestKillAll), kill the nanny of its own interpreter, and take
// resources from the guest. It harms only its own sandbox.
var ownHarm = []string{"kill of the guest", "stop of the guest", "kill of the nanny", "priority of the guest", "limits of the guest", "limits of the nanny"}

// TestPrivilegedCalls tries calls that only the host's administrator may make, and calls with which code escapes from a
// container. None may succeed.
func TestPrivilegedCalls(t *testing.T) {
	sb := shared(t)
	hostKernel := onHostKernel(t)
	py(t, sb, prelude+"nanny = os.getppid()")
	for _, a := range []struct{ name, code string }{
		{"mount tmpfs", `call(165, b'none', b'/mnt', b'tmpfs', 0, None)`},
		{"mount proc", `call(165, b'proc', b'/mnt', b'proc', 0, None)`},
		{"bind mount", `call(165, b'/', b'/mnt', None, 4096, None)`},
		{"remount the root writable", `call(165, b'none', b'/', None, 32, None)`},
		{"remount usr writable", `call(165, b'none', b'/usr', None, 32|4096, None)`},
		{"umount tmp", `call(166, b'/tmp', 2)`},
		{"umount usr", `call(166, b'/usr', 2)`},
		{"new mount interface", `call(430, b'tmpfs', 0)`},
		{"open_tree", `call(428, -100, b'/usr', 1)`},
		{"pivot_root", `call(155, b'/', b'/mnt')`},
		{"chroot", `call(161, b'/tmp')`},
		{"mknod of a block device", `call(133, b'/tmp/sda', 0o060666, 0x800)`},
		{"mknod of /dev/mem", `call(133, b'/tmp/mem', 0o020666, 0x101)`},
		{"mknod of the console", `call(133, b'/tmp/console', 0o020666, 0x501)`},
		{"setuid 0", `call(105, 0)`},
		{"setgid 0", `call(106, 0)`},
		{"setresuid 0", `call(117, 0, 0, 0)`},
		{"setgroups", `call(116, 1, (ctypes.c_uint * 1)(0))`},
		{"capset of everything", `call(126, (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(*[0xffffffff] * 6))`},
		{"ambient capability", `call(157, 47, 2, 21, 0, 0)`},
		{"sethostname", `call(170, b'owned', 5)`},
		{"settimeofday", `call(164, (ctypes.c_long * 2)(0, 0), None)`},
		{"clock_settime", `call(227, 0, (ctypes.c_long * 2)(0, 0))`},
		{"reboot", `call(169, 0xfee1dead, 672274793, 0x1234567, None)`},
		{"kexec_load", `call(246, 0, 0, None, 0)`},
		{"init_module", `call(175, b'x', 1, b'')`},
		{"finit_module", `call(313, 0, b'', 0)`},
		{"delete_module", `call(176, b'x', 0)`},
		{"swapon", `call(167, b'/tmp/x', 0)`},
		{"iopl", `call(172, 3)`},
		{"ioperm", `call(173, 0, 1024, 1)`},
		{"syslog", `call(103, 5, None, 0)`},
		{"bpf", `call(321, 0, (ctypes.c_char * 128)(), 128)`},
		{"perf_event_open", `call(298, (ctypes.c_char * 128)(), 0, -1, -1, 0)`},
		{"userfaultfd", `call(323, 0)`},
		{"io_uring_setup", `call(425, 8, (ctypes.c_char * 120)())`},
		{"open_by_handle_at", `call(304, -100, (ctypes.c_char * 128)(8, 0, 0, 0, 1), 0)`},
		{"quotactl", `call(179, 0x800001, None, 0, None)`},
		{"acct", `call(163, b'/tmp/acct')`},
		{"lookup_dcookie", `call(212, 0, None, 0)`},
		{"setns of the guest's mounts", `call(308, os.open('/proc/1/ns/mnt', 0), 0)`},
		{"setns of the guest's user", `call(308, os.open('/proc/1/ns/user', 0), 0)`},
		{"fanotify_init", `call(300, 0, 0)`},
		{"add_key", `call(248, b'user', b'name', b'payload', 7, -3)`},
		{"request_key", `call(249, b'user', b'name', None, 0)`},
		{"keyctl: the session keyring", `call(250, 0, -3, 1)`},
		{"keyctl: a keyring of its own", `call(250, 1, b'mine')`},
		{"pidfd_getfd of the guest", `call(438, int(call(434, 1, 0).split()[-1]) if call(434, 1, 0).startswith('ok') else -1, 0, 0)`},
		{"process_vm_readv of the guest", `call(310, 1, (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 64), 1, (ctypes.c_ulong * 2)(0x400000, 64), 1, 0)`},
		{"ptrace attach to the guest", `call(101, 16, 1, 0, 0)`},
		{"ptrace seize of the guest", `call(101, 0x4206, 1, 0, 0)`},
		{"kcmp with the guest", `call(312, 1, os.getpid(), 0, 0, 0)`},
		{"kill of the guest", `call(62, 1, 9)`},
		{"stop of the guest", `call(62, 1, 19)`},
		{"ptrace attach to the nanny", `call(101, 16, nanny, 0, 0)`},
		{"process_vm_readv of the nanny", `call(310, nanny, (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 64), 1, (ctypes.c_ulong * 2)(0x400000, 64), 1, 0)`},
		{"kill of the nanny", `call(62, nanny, 9)`},
		{"priority of the guest", `attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)`},
		{"limits of the guest", `call(302, 1, 7, (ctypes.c_ulong * 2)(3, 3), None)`},
		{"limits of the nanny", `call(302, nanny, 7, (ctypes.c_ulong * 2)(3, 3), None)`},
		{"more processes", `call(160, 6, (ctypes.c_ulong * 2)(100000, 100000))`},
		{"more open files", `call(160, 7, (ctypes.c_ulong * 2)(100000, 100000))`},
		{"real-time scheduling", `attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(99))`},
		{"write core_pattern", `attempt(lambda: os.write(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY), b'|/tmp/x'))`},
		{"write modprobe", `attempt(lambda: os.write(os.open('/proc/sys/kernel/modprobe', os.O_WRONLY), b'/tmp/x'))`},
		{"sysrq", `attempt(lambda: os.write(os.open('/proc/sysrq-trigger', os.O_WRONLY), b'c'))`},
		{"release_agent", `attempt(lambda: os.open('/sys/fs/cgroup/release_agent', os.O_WRONLY))`},
		{"binfmt_misc", `attempt(lambda: os.open('/proc/sys/fs/binfmt_misc/register', os.O_WRONLY))`},
		{"uevent_helper", `attempt(lambda: os.open('/sys/kernel/uevent_helper', os.O_WRONLY))`},
		{"/dev/mem", `attempt(lambda: os.open('/dev/mem', os.O_RDONLY))`},
		{"/dev/kmem", `attempt(lambda: os.open('/dev/kmem', os.O_RDONLY))`},
		{"/proc/kcore", `attempt(lambda: os.open('/proc/kcore', os.O_RDONLY))`},
		{"/dev/sda", `attempt(lambda: os.open('/dev/sda', os.O_RDONLY))`},
		{"/dev/kvm", `attempt(lambda: os.open('/dev/kvm', os.O_RDONLY))`},
		// gVisor implements these two itself. They may be opened, but must be useless.
		{"a FUSE mount", `call(165, b'x', b'/mnt', b'fuse', 0, b'fd=%d,rootmode=40000,user_id=1000,group_id=1000' % os.open('/dev/fuse', os.O_RDWR))`},
		{"a TUN interface", `attempt(lambda: __import__('fcntl').ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454ca, b'tun0' + bytes(12) + b'\x01\x10' + bytes(22)))`},
		{"environment of the guest", `attempt(lambda: open('/proc/1/environ','rb').read())`},
		{"memory of the guest", `attempt(lambda: open('/proc/1/mem','rb').read(1))`},
		{"maps of the guest", `attempt(lambda: open('/proc/1/maps','rb').read())`},
		{"descriptors of the guest", `attempt(lambda: os.listdir('/proc/1/fd'))`},
		{"stdin of the guest", `attempt(lambda: os.open('/proc/1/fd/0', os.O_RDWR))`},
		{"root of the guest", `attempt(lambda: os.listdir('/proc/1/root'))`},
		{"working directory of the guest", `attempt(lambda: os.listdir('/proc/1/cwd'))`},
		{"environment of the nanny", `attempt(lambda: open('/proc/%d/environ' % nanny,'rb').read())`},
		{"memory of the nanny", `attempt(lambda: open('/proc/%d/mem' % nanny,'rb').read(1))`},
		{"descriptors of the nanny", `attempt(lambda: os.listdir('/proc/%d/fd' % nanny))`},
		{"write to the guest's oom score", `attempt(lambda: os.write(os.open('/proc/1/oom_score_adj', os.O_WRONLY), b'1000'))`},
		{"write below /usr", `attempt(lambda: os.open('/usr/bin/owned', os.O_CREAT | os.O_WRONLY))`},
		{"write to python", `attempt(lambda: os.open(os.path.realpath(sys.executable), os.O_WRONLY))`},
		{"write below /etc", `attempt(lambda: os.open('/etc/owned', os.O_CREAT | os.O_WRONLY))`},
		{"write to the guest's program", `attempt(lambda: [os.open('/.recluse/' + n, os.O_WRONLY) for n in os.listdir('/.recluse')] or os.open('/.recluse/x', os.O_CREAT|os.O_WRONLY))`},
		{"write into the guest's directory", `attempt(lambda: os.open('/run/recluse/owned', os.O_CREAT | os.O_WRONLY))`},
		{"write into the root", `attempt(lambda: os.open('/owned', os.O_CREAT | os.O_WRONLY))`},
		{"write below /root", `attempt(lambda: os.open('/root/owned', os.O_CREAT | os.O_WRONLY))`},
		{"write below /proc/sys", `attempt(lambda: os.write(os.open('/proc/sys/kernel/hostname', os.O_WRONLY), b'owned'))`},
		{"raise overcommit", `attempt(lambda: os.write(os.open('/proc/sys/vm/overcommit_memory', os.O_WRONLY), b'1'))`},
		{"set-uid bit for root's files", `attempt(os.chown, '/tmp', 0, 0)`},
		{"user namespace", `call(272, 0x10000000)`},
		{"user and mount namespace", `call(272, 0x10020000)`},
		{"pid namespace", `call(272, 0x20000000)`},
		{"network namespace", `call(272, 0x40000000)`},
	} {
		if hostKernel && slices.Contains(ownHarm, a.name) || isRoot() && slices.Contains(rootMay, a.name) {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			// In a child process, so that a successful attack does not change the interpreter for the next one.
			got := strings.TrimSpace(py(t, sb, fmt.Sprintf(`
_r, _w = os.pipe()
_p = os.fork()
if _p == 0:
    try: os.write(_w, str(%s).encode()[:300])
    except OSError as e: os.write(_w, errno.errorcode[e.errno].encode())
    finally: os._exit(0)
os.close(_w); print(os.read(_r, 400).decode()); os.close(_r); os.waitpid(_p, 0)`, a.code)))
			if !strings.HasPrefix(got, "E") {
				t.Errorf("the attack succeeded: %q", got)
			}
			t.Log(got)
		})
	}
	if got := py(t, sb, "print('alive')"); got != "alive\n" {
		t.Error(got)
	}
}

func TestIdentityInside(t *testing.T) {
	sb := shared(t)
	status := sh(t, sb, "cat /proc/self/status")
	id, caps := "1000", "0000000000000000"
	if isRoot() {
		id, caps = "0", "00000000000405db"
	}
	contains(t, status, "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000", "CapPrm:\t"+caps, "CapEff:\t"+caps, "CapBnd:\t"+caps)
	ids := strings.Repeat("\t"+id, 4)
	contains(t, status, "Uid:"+ids, "Gid:"+ids)
	contains(t, py(t, sb, "import ctypes; print('nnp', ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"), "nnp 1")
	contains(t, py(t, sb, "import os; print('groups', [g for g in os.getgroups() if g != os.getgid()])"), "groups []")
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(sh(t, sb, "uname -r")); (got == strings.TrimSpace(string(kernel))) != onHostKernel(t) {
		t.Errorf("the reported isolation is %s, but the kernel is %s", backend.Capabilities(t.Context()).Isolation, got)
	}
}

func TestSetuidPrograms(t *testing.T) {
	sb := shared(t)
	for _, script := range []string{
		`su -c id </dev/null`, `su root -c id </dev/null`, `mount -t tmpfs none /mnt && echo uid=0 mounted`, `umount /tmp && echo uid=0`,
		`passwd -d root </dev/null && echo uid=0`, `sudo -n id`, `chsh -s /bin/sh root </dev/null && echo uid=0`, `newgrp root </dev/null; id -g | grep -x 0 && echo uid=0`,
		`pkexec id`, `cp /bin/sh /tmp/suid; chmod 6755 /tmp/suid; /tmp/suid -p -c 'id'; rm -f /tmp/suid`,
	} {
		if got := sh(t, sb, script); strings.Contains(got, "uid=0") || strings.Contains(got, "euid=0") {
			t.Errorf("%s: %s", script, got)
		}
	}
}

// TestKillAll sends signals to everything that the user may signal. The command and other processes of the user die;
// the guest does not.
func TestKillAll(t *testing.T) {
	testneed.Parallel(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGHUP} {
		name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
		t.Run(name, func(t *testing.T) {
			sb := fresh(t, small())
			py(t, sb, "kept = 'kept'")
			underSiege(t, sb, func() {
				v := run(t, sb, sandbox.Command{Shell: "kill -" + name + " -1; sleep 0.2; for p in $(ls /proc | grep -x '[0-9]*'); do kill -" + name + " $p; done 2>/dev/null; echo done", RunOptions: sandbox.RunOptions{Timeout: 2 * time.Second}})
				t.Log(v)
				// On the host's kernel, the signal also hits the nanny of the command.
				hit := v.Ended == v1.EndedSignal && (v.Signal == sig || v.Signal == syscall.SIGKILL && onHostKernel(t))
				if sig == syscall.SIGSTOP {
					hit = v.Ended == v1.EndedTimeout
				}
				if !hit || v.Stdout.Produced > 0 {
					t.Errorf("the command %s: %q", v, v.Stdout)
				}
			})
			if v := run(t, sb, sandbox.Command{Args: []string{"echo", "alive"}}); v.Stdout.String() != "alive\n" {
				t.Errorf("a command afterwards: %s", v)
			}
			// The interpreter also belongs to the user. The end of an interpreter is reported; a stopped one continues
			// when its cell is interrupted.
			if sig == syscall.SIGSTOP {
				if v := cell(t, sb, sandbox.Cell{Code: "1", RunOptions: sandbox.RunOptions{Timeout: 2 * time.Second}}); !v.StateKept || v.StateLostBefore {
					t.Errorf("the stopped interpreter: %s, state kept %v, lost before %v", v, v.StateKept, v.StateLostBefore)
				}
				if got := py(t, sb, "print(kept)"); got != "kept\n" {
					t.Errorf("the interpreter that was stopped: %q", got)
				}
				return
			}
			if v := cell(t, sb, sandbox.Cell{Code: "print(kept)"}); !v.StateLostBefore || v.Error == nil || v.Error.Name != "NameError" {
				t.Errorf("the next interpreter: %s, lost before %v, %+v", v, v.StateLostBefore, v.Error)
			}
		})
	}
}

// TestHostFilesAreInvisible writes a secret into the usual places of a host and searches for it inside.
func TestHostFilesAreInvisible(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	name := fmt.Sprintf("recluse-attack-%d.txt", os.Getpid())
	for _, dir := range []string{"/root", "/home", "/etc", "/var/tmp", "/tmp", "/var/lib", "/opt", "/srv", "/mnt", "/run", "/dev/shm"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(hostSecret), 0o644); err != nil {
			t.Logf("%s: %v", dir, err)
			continue
		}
		t.Cleanup(func() { _ = os.Remove(path) })
	}
	sb := fresh(t, small()) // made after the secret was written
	out := sh(t, sb, `find / \( -path /proc -o -path /usr \) -prune -o -name 'recluse-attack-*' -print 2>/dev/null
grep -rls 'host-secret-' /etc /home /root /var /opt /srv /mnt /run /tmp /dev/shm /.recluse 2>/dev/null
for d in /root /home /etc /var/tmp /tmp /var/lib /opt /srv /mnt /run /dev/shm; do cat $d/`+name+` /proc/self/root$d/`+name+` /proc/1/root$d/`+name+` /proc/self/cwd/../../../..$d/`+name+`; done 2>/dev/null
cat /etc/shadow /etc/gshadow /etc/ssh/ssh_host_* /root/.ssh/* /root/.bash_history 2>/dev/null
echo; echo searched`)
	contains(t, out, "searched")
	lacks(t, out, "recluse-attack-", "host-secret-", hostSecret, "root:$", "PRIVATE KEY")
	out = sh(t, sb, "cat /proc/self/mountinfo /proc/mounts /proc/self/mounts")
	t.Log(out)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	lacks(t, out, dataDir)
	if !onHostKernel(t) { // there the mount table shows the directories of image layers, but they cannot be reached
		lacks(t, out, "/var/lib", "overlay2")
	}
	lacks(t, sh(t, sb, "hostname; cat /etc/hostname /etc/hosts /proc/sys/kernel/hostname; uname -a; cat /etc/machine-id /var/lib/dbus/machine-id"), " "+host, hostSecret)
	if id, err := os.ReadFile("/etc/machine-id"); err == nil && len(strings.TrimSpace(string(id))) > 8 {
		lacks(t, sh(t, sb, "cat /etc/machine-id"), strings.TrimSpace(string(id)))
	}
}

// TestHostProcessesAreInvisible searches for the process and the command line of this test.
func TestHostProcessesAreInvisible(t *testing.T) {
	sb := shared(t)
	out := sh(t, sb, `for p in /proc/[0-9]*; do echo "$(basename $p) $(tr '\0' ' ' < $p/cmdline)"; done; ls /proc | sort -n | tail -3; cat /proc/loadavg; cat /proc/*/cgroup`)
	lacks(t, out, "attack.test", "recluse-engine", "-test.", dataDir)
	pid := os.Getpid()
	got := py(t, sb, prelude+fmt.Sprintf("\nprint(call(62, %d, 0), os.path.exists('/proc/%d') and open('/proc/%d/cmdline').read())", pid, pid, pid))
	lacks(t, got, "attack.test")
	if pid > 1000 {
		contains(t, got, "ESRCH")
	}
}

// TestHostHardwareIsInvisible searches for devices, and for data that identifies this machine.
func TestHostHardwareIsInvisible(t *testing.T) {
	sb := shared(t)
	out := sh(t, sb, `ls /dev /sys/class/net /sys/firmware 2>/dev/null; cat /sys/class/dmi/id/*serial* /sys/class/dmi/id/*uuid* /sys/devices/virtual/dmi/id/*serial* /sys/hypervisor/uuid 2>/dev/null; find /dev -type b; for d in /dev/*; do [ -c $d ] && stat -c 'device %t:%T' $d; done`)
	lacks(t, out, "sda", "vda", "nvme", "kvm", "loop0", "eth0", "mem\n", "device 1:1\n", "device 1:2\n", "device 1:4\n")
	secret := []string{"product_uuid", "product_serial", "board_serial", "chassis_serial"}
	if !onHostKernel(t) { // it shows the types of its devices and the names of their makers to every user
		out += sh(t, sb, `find /sys -name '*dmi*' -o -name 'product_uuid' -o -name 'board_serial' | head; cat /sys/class/dmi/id/* 2>/dev/null; ls /sys/block 2>/dev/null`)
		lacks(t, out, "dmi", "product_uuid", "sda", "vda", "nvme", "loop0")
		secret = append(secret, "product_name")
	}
	for _, name := range secret {
		if b, err := os.ReadFile("/sys/class/dmi/id/" + name); err == nil && len(strings.TrimSpace(string(b))) > 3 {
			lacks(t, out, strings.TrimSpace(string(b)))
		}
	}
}

// TestRuntimeSockets searches for the sockets through which a container could control its host.
func TestRuntimeSockets(t *testing.T) {
	sb := shared(t)
	out := sh(t, sb, `ls -la /var/run /run /run/recluse; find / \( -path /proc -o -path /usr \) -prune -o -type s -print 2>/dev/null; for s in /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock /run/crio/crio.sock /run/systemd/private /run/dbus/system_bus_socket; do [ -e $s ] && echo "FOUND $s"; done; echo searched`)
	contains(t, out, "searched")
	lacks(t, out, "FOUND", ".sock")
}

// TestUserNamespace is a separate test, because code in a new user namespace has every capability in it, and can mount
// file systems without limits.
func TestUserNamespaceGivesNothing(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	siege(t, sb, func() {
		out := sh(t, sb, `unshare -Urm sh -c 'id -u; mount -t tmpfs -o size=8G none /mnt && echo MOUNTED; mount -t proc proc /proc && echo MOUNTED; mount --bind /tmp /usr && echo MOUNTED; chroot / id; cat /proc/1/environ && echo READ' ; unshare -Urn true && echo NETNS`)
		t.Log(out)
		lacks(t, out, "MOUNTED", "READ")
	})
}

// rogueNanny starts the guest's program as a nanny, requests a process of a user from it, and prints the output. It
// uses the guest's own protocol: a length, JSON, and file descriptors.
const rogueNanny = `
import base64, json, os, socket, struct, sys
encode = lambda s: base64.b64encode(s.encode()).decode()
def ask(guest, user):
    ours, theirs = socket.socketpair()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.dup(theirs.fileno())
        os.dup2(fd, 3)
        os.set_inheritable(3, True)
        os.execv(guest, [guest, 'nanny', json.dumps({'uid': user, 'gid': user})])
    theirs.close()
    body = json.dumps({'start': {'path': encode('/bin/sh'), 'argv': [encode(a) for a in ('sh', '-c', 'id -u')], 'env': [], 'dir': encode('/'), 'files': 3}}).encode()
    socket.send_fds(ours, [struct.pack('<I', len(body)) + body], [0, w, 2])
    os.close(w)
    said = os.fdopen(r).read().strip()
    ours.close()
    os.waitpid(pid, 0)
    return said
for user in (-1, 0): print('user %d: <%s>' % (user, ask(sys.argv[1], user)))`

// TestGuestProgramIsUnreachable runs the guest's own binary as the user. It must be useless for an attacker.
func TestGuestProgramIsUnreachable(t *testing.T) {
	sb := shared(t)
	guest := strings.TrimSpace(sh(t, sb, "find /.recluse -type f -name recluse-guest"))
	if guest == "" {
		t.Fatal("the guest's program not found")
	}
	t.Run("as a nanny", func(t *testing.T) {
		v := run(t, sb, sandbox.Command{Args: []string{"python3", "-c", rogueNanny, guest}, RunOptions: sandbox.RunOptions{Timeout: 20 * time.Second}})
		t.Log(v, v.Stdout, v.Stderr)
		// The first shows that the nanny understands the request.
		own, root := "1000", ""
		if isRoot() {
			own, root = "0", "0"
		}
		contains(t, v.Stdout.String(), "user -1: <"+own+">", "user 0: <"+root+">")
	})
	t.Run("as a guest", func(t *testing.T) {
		config := `{"token":"00","uid":0,"gid":0,"home":"/tmp","state":"/tmp/rogue"`
		mounts := sh(t, sb, launch.ConfigEnv+`='`+config+`,"tmpfs":[{"path":"/tmp","size":8589934592,"inodes":99,"mode":"777"}]}' timeout 20 `+guest+` </dev/null; echo ended with $?; grep 8388608k /proc/mounts`)
		contains(t, mounts, "mount /tmp: ", "ended with 1\n")
		lacks(t, mounts, "8388608k")
		contains(t, sh(t, sb, launch.ConfigEnv+`='`+config+`}' timeout 20 `+guest+` </dev/null; echo ended with $?; rm -rf /tmp/rogue`), "ended with 1\n")
	})
	if got := py(t, sb, "print('alive')"); got != "alive\n" {
		t.Error(got)
	}
}

// TestGuestsSocket connects to the socket at which the guest of a container waits for its host. Even with the token,
// which code inside cannot know, only a bridge is accepted.
func TestGuestsSocket(t *testing.T) {
	sb := shared(t)
	hello, err := proto.Marshal(&wire.Hello{Protocol: wire.Protocol, Nonce: []byte("a nonce of nobody")})
	if err != nil {
		t.Fatal(err)
	}
	out := py(t, sb, fmt.Sprintf(`
import socket, struct
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
hello = bytes.fromhex('%x')
try:
    s.connect('\0recluse-%s')
    s.sendall(bytes.fromhex('%s') + struct.pack('>I', len(hello)) + hello)
    print('answer <%%s>' %% s.recv(1000).hex())
except (ConnectionError, BrokenPipeError) as e: print('refused', e)`, hello, sb.ID(), tokenOf(t, sb)))
	t.Log(out)
	if out != "answer <>\n" && !strings.HasPrefix(out, "refused") {
		t.Errorf("the guest sent %q", out)
	}
	if err := sb.Ping(t.Context()); err != nil {
		t.Errorf("the host lost its connection: %v", err)
	}
}

// injection pushes characters into every terminal except its own: directly, and as the leader of a session that takes
// the terminal from another session.
const injection = `
import fcntl, os, termios
own = os.ttyname(0) if os.isatty(0) else None
def push(path):
    f = os.open(path, os.O_RDWR | os.O_NOCTTY)
    if os.getsid(0) == os.getpid() and own is None: fcntl.ioctl(f, termios.TIOCSCTTY, 1)
    fcntl.ioctl(f, termios.TIOCSTI, b'x')
    print('INJECTED', path, flush=True)
for path in ('/dev/pts/' + n for n in os.listdir('/dev/pts') if n.isdigit()):
    if path == own: continue
    for steal in (False, True):
        pid = os.fork()
        if pid == 0:
            try:
                if steal: os.setsid(); own = None
                push(path)
            except OSError as e: print('tried', path, e, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)`

// TestTerminalInjection pushes characters into the terminal of another command. Pushing into its own is allowed.
func TestTerminalInjection(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	typed, keyboard := io.Pipe()
	victim := make(chan *sandbox.Verdict, 1)
	go func() {
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: "stty -echo; touch /tmp/ready; read line; echo \"got <$line>\"", PTY: &sandbox.Size{Rows: 24, Cols: 80}, RunOptions: sandbox.RunOptions{Stdin: typed}})
		if err != nil {
			t.Error(err)
		}
		victim <- v
	}()
	await(t, sb, "test -e /tmp/ready")
	for name, size := range map[string]*sandbox.Size{"without a terminal": nil, "with one": {Rows: 24, Cols: 80}} {
		v := run(t, sb, sandbox.Command{Args: []string{"python3", "-c", injection}, PTY: size})
		t.Log(name, v, v.Stdout, v.Stderr)
		contains(t, v.Stdout.String(), "tried /dev/pts/")
		lacks(t, v.Stdout.String(), "INJECTED")
	}
	if _, err := io.WriteString(keyboard, "mine\n"); err != nil {
		t.Error(err)
	}
	if v := <-victim; v != nil {
		contains(t, v.Stdout.String(), "got <mine>")
	}
	_ = keyboard.Close()
}
