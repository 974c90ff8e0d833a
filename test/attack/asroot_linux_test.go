package attack

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// userEnv is the environment variable with the user of the attackers; empty: the default user.
const userEnv = "RECLUSE_ATTACK_USER"

// isRoot reports whether the attackers are root inside.
func isRoot() bool { return os.Getenv(userEnv) == "root" }

// notAsRoot are the attacks that root does not repeat, with the reason.
var notAsRoot = map[string]string{
	"TestAsRoot":                   "it starts the others",
	"TestOnDocker":                 "it starts the others in containers",
	"TestOnMachines":               "it starts the others in machines",
	"TestEveryHazardNamesItsTests": "reads a page and attacks nothing",
	"TestSetuidPrograms":           "there is nothing to gain for root",
	"TestTheRootIsOfOneSandbox":    "TestRootChangesOnlyItsOwnSandbox is the same for root",
	"TestResidue":                  "a pool keeps no sandboxes with an environment, which this repetition sets",
	"TestLinksAndOwners":           "the files of other users are not closed to root",
	"TestReadsThatMustNotHang":     "the same",
}

// TestAsRoot repeats the attacks as root of the sandbox. A limit costs the offender, verdicts are not forged, and host
// and neighbours notice nothing.
func TestAsRoot(t *testing.T) {
	testneed.All(t, "TestBackendSuite (root) and TestRootAttacksTheGuest prove the mechanism")
	need(t)
	if isRoot() || os.Getenv(dockertest.BackendVariable) != "" {
		t.Skip("this program is a repetition itself")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), self, "-test.list=^Test").Output()
	if err != nil {
		t.Fatal(err)
	}
	tests := slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool { return notAsRoot[name] != "" })
	args := []string{"-test.v", "-test.run=^(" + strings.Join(tests, "|") + ")$"}
	if end, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(end.Add(-5*time.Second)).String())
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), userEnv+"=root")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name+" (") {
			t.Errorf("%s did not pass", name)
		}
	}
}

// rootMay are the calls of TestPrivilegedCalls that root inside may make: they change its own sandbox only. A cgroup
// bounds processes instead of their limit, the names of the guest's descriptors lead nowhere, and the score has no
// effect in gVisor.
var rootMay = []string{
	"more processes", "descriptors of the guest", "write to the guest's oom score",
	"chroot", "setuid 0", "setgid 0", "setresuid 0", "setgroups", "set-uid bit for root's files",
	"write below /usr", "write to python", "write below /etc", "write into the root", "write below /root",
}

// TestRootAttacksTheGuest tries what only root may do to processes of others.
func TestRootAttacksTheGuest(t *testing.T) {
	spec := small()
	spec.User = "root"
	sb := fresh(t, spec)
	siege(t, sb, func() {
		got := py(t, sb, prelude+`
import struct
nanny = os.getppid()
bad = []
def no(name, *args):
    r = call(*args)
    if not r.startswith('E'): bad.append((name, r))
for name, pid in (('guest', 1), ('nanny', nanny)):
    for s in (9, 19, 15, 6, 0): no('kill ' + name, 62, pid, s)
    no('tkill ' + name, 200, pid, 9)
    no('tgkill ' + name, 234, pid, pid, 9)
    no('rt_sigqueueinfo ' + name, 129, pid, 9, (ctypes.c_char * 128)())
    no('ptrace ' + name, 101, 16, pid, 0, 0)
    no('limits ' + name, 302, pid, 7, (ctypes.c_ulong * 2)(1, 1), None)
    no('memory ' + name, 310, pid, (ctypes.c_ulong * 2)(0, 8), 1, (ctypes.c_ulong * 2)(0x400000, 8), 1, 0)
    fd = call(434, pid, 0)
    if fd.startswith('ok'):
        no('pidfd ' + name, 424, int(fd.split()[1]), 9, None, 0)
        no('pidfd_getfd ' + name, 438, int(fd.split()[1]), 0, 0)
    for f in ('mem', 'environ', 'fd/0', 'fd/1', 'fd/3', 'root/etc', 'cwd/etc', 'maps', 'auxv', 'task/%d/mem' % pid):
        for mode in (os.O_RDONLY, os.O_RDWR):
            r = attempt(lambda: os.read(os.open('/proc/%d/%s' % (pid, f), mode), 1))
            if r.startswith('ok') and r != "ok b''": bad.append(('%s of %s' % (f, name), r))
# As every uid that it can become, including the one that it sees as that of the guest.
for uid in (65534, 2147483646, 2147483647):
    if os.fork() == 0:
        try: os.setresuid(uid, uid, uid); os.kill(1, 9); os._exit(1)
        except OSError: os._exit(0)
    if os.wait()[1]: bad.append(('kill of the guest', uid))
# A signal through a descriptor's owner.
r, w = os.pipe()
import fcntl
for pid in (1, nanny):
    for own in (lambda: fcntl.fcntl(r, fcntl.F_SETOWN, pid), lambda: fcntl.fcntl(r, 15, struct.pack('ii', 1, pid)), lambda: fcntl.ioctl(r, 0x8901, struct.pack('i', pid)), lambda: fcntl.ioctl(r, 0x8902, struct.pack('i', pid))):
        try:
            own(); fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            os.write(w, b'x'); os.read(r, 1)
            bad.append(('owner of a descriptor', pid))
        except OSError: pass
# What the guest keeps and uses.
for path in ('/run', '/run/recluse', '/.recluse', '/proc', '/shared'):
    for to in ('/gone', '/tmp/gone'):
        if attempt(os.rename, path, to).startswith('ok'): bad.append(('rename', path))
for path in ('/run/recluse/x', '/.recluse/x', '/run/recluse/bin/x', '/shared/x'):
    if attempt(os.open, path, os.O_CREAT | os.O_WRONLY).startswith('ok'): bad.append(('write', path))
for path in ('/run/recluse', '/run/recluse/bin', '/run/recluse/bin/sudo', '/.recluse/recluse-guest'):
    for name, f in (('mode', lambda: os.chmod(path, 0o777)), ('owner', lambda: os.chown(path, 0, 0, follow_symlinks=False)), ('remove', lambda: os.remove(path))):
        if attempt(f).startswith('ok'): bad.append((name, path))
# Cgroups, name spaces, mounts.
for fs in (b'cgroup', b'cgroup2', b'tmpfs', b'proc', b'sysfs', b'overlay'):
    no('mount', 165, b'none', b'/mnt', fs, 0, None)
for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x02000000, 0x04000000):
    no('unshare', 272, flag)
for ns in ('user', 'mnt', 'pid', 'net'):
    fd = attempt(os.open, '/proc/1/ns/' + ns, os.O_RDONLY)
    if fd.startswith('ok'): no('setns', 308, int(fd.split()[1]), 0)
no('capset', 126, (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)(*[0xffffffff] * 6))
no('raw socket', 41, 2, 3, 1)
no('packet socket', 41, 17, 3, 768)
print(bad)`)
		if got != "[]\n" {
			t.Errorf("succeeded: %s", got)
		}
	})
}

// TestRootChangesOnlyItsOwnSandbox lets root destroy its system.
func TestRootChangesOnlyItsOwnSandbox(t *testing.T) {
	testneed.All(t, "TestTheRootIsOfOneSandbox tries the same as an ordinary user")
	spec := small()
	spec.User = "root"
	sb, other := fresh(t, spec), fresh(t, spec)
	const seen = "ls -laR /usr/bin /usr/sbin /etc | md5sum"
	host, before := hostState(t), sh(t, other, seen)
	underSiege(t, nil, func() {
		run(t, sb, sandbox.Command{Shell: "rm -rf /usr/* /etc/* /var/* /home/* /opt /srv /root /bin /lib* 2>/dev/null; true"})
	})
	if hostState(t) != host {
		t.Error("the host has changed")
	}
	if now := sh(t, other, seen); now != before {
		t.Errorf("another sandbox has changed: %q, %q", before, now)
	}
	if _, err := sb.Run(t.Context(), sandbox.Command{Shell: "true"}); v1.CodeOf(err) != v1.CodeNoShell {
		t.Errorf("a command without a shell: %v", err)
	}
	if _, err := sb.Files().Stat(t.Context(), "/"); err != nil {
		t.Error("the guest does not answer:", err)
	}
}
