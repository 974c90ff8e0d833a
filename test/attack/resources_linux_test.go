package attack

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// bomb is a command that attacks a resource.
type bomb struct {
	name    string
	script  string        // shell script
	python  string        // or a Python program
	timeout time.Duration // 0: it ends by itself
	memory  bool          // the verdict must report memory as the cause
	kills   bool          // or at least that some of its processes were OOM-killed
	crowd   bool          // so many processes that a host's kernel that enforces the limit is busy with reclaim for long
	refused bool          // the host's kernel refuses the call
	// make test also runs it in containers, to test their limit; the others run there in make test-all
	common  bool
	variant bool // only make test-all runs it: another bomb of the list tests the same limit
	check   func(t *testing.T, sb *sandbox.Sandbox, v *sandbox.Verdict)
}

func (b bomb) command() sandbox.Command {
	c := sandbox.Command{Shell: b.script, RunOptions: sandbox.RunOptions{Timeout: b.timeout}}
	if b.python != "" {
		c.Shell, c.Args = "", []string{"python3", "-c", b.python}
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	return c
}

// left reports whether only make test-all runs this bomb.
func (b bomb) left() bool {
	return !testneed.AllTests() && (b.variant || dockertest.Chosen() && !b.common)
}

// here returns the bomb with the expectations for the tested backend.
func (b bomb) here(t *testing.T) bomb {
	t.Helper()
	if !onHostKernel(t) {
		return b
	}
	if b.crowd {
		b.timeout = 10 * time.Second
	}
	if b.refused {
		b.memory, b.kills, b.check = false, false, nil
	}
	return b
}

func (b bomb) run(t *testing.T, sb *sandbox.Sandbox) *sandbox.Verdict {
	t.Helper()
	v := run(t, sb, b.command())
	t.Logf("%s after %s, %d killed for memory, %d survivors, peak %d MiB; %.300q %.300q", v, v.Wall.Round(time.Millisecond), v.MemoryKills, v.SurvivorsTotal, v.PeakMemory>>20, v.Stdout.String(), v.Stderr.String())
	if onMachine() && strings.HasSuffix(strings.TrimSpace(v.Stderr.String()), "MemoryError") {
		return v // the kernel of a machine refuses an allocation that is larger than the machine
	}
	if b.timeout == 0 && v.Ended == v1.EndedTimeout {
		t.Error("the timeout had to end it")
	}
	if b.memory && v.Ended != v1.EndedMemory {
		t.Errorf("the verdict is %q, want memory", v)
	}
	if (b.memory || b.kills) && v.MemoryKills == 0 {
		t.Error("the verdict reports no OOM-killed process")
	}
	return v
}

var memoryBombs = []bomb{
	{name: "bytearray that grows", common: true, memory: true, python: `
b = bytearray()
while True: b += b'x' * (8 << 20)`},
	{name: "many small objects", variant: true, memory: true, python: `
l = []
while True: l.append([len(l)] * 100)`},
	{name: "mmap", variant: true, memory: true, python: `
import mmap
keep = []
while True:
    m = mmap.mmap(-1, 16 << 20); keep.append(m)
    for i in range(0, len(m), 4096): m[i] = 1`},
	{name: "one huge allocation", common: true, memory: true, python: `b = b'x' * (8 << 30)`},
	// Memory that is filled by one system call; see cmd/recluse-engine, longcalls.go.
	{name: "read of an endless file", memory: true, python: `open('/dev/zero','rb').read(6 << 30)`},
	{name: "many reads of endless files", variant: true, kills: true, python: `
import os
for i in range(8):
    if os.fork() == 0: open('/dev/zero','rb').read(6 << 30)
while True: os.wait()`},
	{name: "read at a place", variant: true, memory: true, python: `import os; os.pread(os.open('/dev/zero', os.O_RDONLY), 2 << 30, 5)`},
	{name: "read into many buffers", variant: true, memory: true, python: `import os; os.readv(os.open('/dev/zero', os.O_RDONLY), [bytearray(1 << 30), bytearray(1), bytearray(3 << 30)])`},
	{name: "read at a place into many buffers", variant: true, memory: true, python: `import os; os.preadv(os.open('/dev/zero', os.O_RDONLY), [bytearray(10 << 20), bytearray(3 << 30)], 7)`},
	{name: "read with flags", variant: true, memory: true, python: `import os; os.preadv(os.open('/dev/zero', os.O_RDONLY), [bytearray(2 << 30)], 0, os.RWF_NOWAIT)`},
	{name: "write of what was never touched", python: `
import mmap, os
os.write(os.memfd_create('x'), mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))`},
	{name: "write of many buffers", variant: true, python: `
import os
m = memoryview(bytearray(1 << 20))
os.writev(os.memfd_create('x'), [m] * 1000)`},
	{name: "fallocate of a memfd", python: `import os; os.posix_fallocate(os.memfd_create('x'), 0, 4 << 30)`},
	{name: "random bytes", variant: true, memory: true, python: `import os; os.getrandom((1 << 31) - 1)`},
	{name: "random bytes without end", memory: true, python: `
import ctypes, mmap, os
libc = ctypes.CDLL(None)
getrandom = 318 if os.uname().machine == 'x86_64' else 278
libc.mmap.restype = ctypes.c_void_p
p = libc.mmap(None, ctypes.c_size_t(3 << 30), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, ctypes.c_long(0))
libc.syscall(getrandom, ctypes.c_void_p(p), ctypes.c_size_t(2**64 - 1), 0)`},
	{name: "a mapping that is to be filled at once", memory: true, python: `
import mmap
m = mmap.mmap(-1, 6 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
for i in range(0, len(m), 4096): m[i] = 1`},
	{name: "a pipe into tail", variant: true, kills: true, script: `head -c 10G /dev/zero | tail`},
	{name: "a hundred small processes", variant: true, kills: true, crowd: true, script: `for i in $(seq 100); do python3 -c "
import time
b = bytearray(b'x') * (20 << 20)
time.sleep(0.5)" & done; wait`},
	{name: "forked hogs", kills: true, python: `
import os
for i in range(5):
    if os.fork() == 0:
        b = bytearray()
        while True: b += b'x' * (4 << 20)
for i in range(5): os.wait()`},
	{name: "hogs that ignore every signal", common: true, kills: true, python: `
import os, signal
for i in range(1, 64):
    try: signal.signal(i, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0: os.setsid()
b = bytearray()
while True: b += b'x' * (4 << 20)`},
	{name: "memfd", common: true, kills: false, python: `
import os
f = os.memfd_create('bomb')
while True: os.write(f, b'x' * (4 << 20))`},
	{name: "memfd held by nobody in particular", kills: false, python: `
import os, socket
# The file is only in flight between two sockets: no process has it open or mapped.
a, b = socket.socketpair()
f = os.memfd_create('bomb')
socket.send_fds(a, [b'x'], [f])
while True: os.write(f, b'x' * (4 << 20))`},
	{name: "SysV shared memory", kills: false, python: `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for i in range(64):
    id = libc.shmget(0, 16 << 20, 0o1600)
    if id < 0: break
    p = libc.shmat(id, None, 0)
    ctypes.memset(p, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(p))
print('segments', i)`},
	// A process has too few descriptors to fill the machine alone.
	{name: "full pipes", variant: true, kills: true, refused: true, python: `
import fcntl, os, time
def fill():
    keep = []
    try:
        while True:
            r, w = os.pipe(); keep.append((r, w))
            fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20)
            os.set_blocking(w, False)
            try:
                while True: os.write(w, b'x' * 65536)
            except BlockingIOError: pass
    except OSError as e: print(e, len(keep), flush=True)
    time.sleep(3)
for i in range(4):
    if os.fork() == 0:
        fill()
        os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for i in range(4)])`, check: func(t *testing.T, _ *sandbox.Sandbox, v *sandbox.Verdict) {
		contains(t, v.Stdout.String(), "-9") // the process that fills nothing survives and reports it
	}},
	{name: "full sockets", kills: true, python: `
import socket
keep = []
try:
    while True:
        a, b = socket.socketpair(); keep.append((a, b))
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        a.setblocking(False)
        try:
            while True: a.send(b'x' * 65536)
        except BlockingIOError: pass
except OSError as e: print(e, len(keep))`},
	{name: "descriptors in flight", variant: true, kills: true, refused: true, timeout: 30 * time.Second, python: `
import os, socket
f = os.open('/usr/bin/env', os.O_RDONLY)
n = 0
keep = []
try:
    while n < 200000:
        a, b = socket.socketpair(); keep.append((a, b))
        a.setblocking(False)
        try:
            while True: socket.send_fds(a, [b'x'], [f] * 200); n += 200
        except BlockingIOError: pass
except OSError as e: print(e)
print(n, 'descriptors in flight')`},
}

func TestMemoryBombs(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	for _, b := range memoryBombs {
		if b.left() {
			continue
		}
		memoryPart(t, b.name, func(t *testing.T) {
			sb := fresh(t, small())
			b := b.here(t)
			siege(t, sb, func() {
				v := b.run(t, sb)
				if b.check != nil {
					b.check(t, sb, v)
				}
			})
		})
	}
}

// TestBystandersOfAMemoryBomb is about processes that are stopped while the guest selects a process to kill: running
// processes continue, stopped ones stay stopped, and a shell does not report its jobs as stopped.
func TestBystandersOfAMemoryBomb(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	memoryPart(t, "of several", func(t *testing.T) {
		sb := fresh(t, small())
		start := func(script string) string {
			id, err := sb.Start(t.Context(), sandbox.Command{Shell: script})
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		ticking := start("echo $$ > /tmp/ticking; while :; do date +%s.%N > /tmp/tick.new; mv /tmp/tick.new /tmp/tick; done")
		halted := start("echo $$ > /tmp/halted; kill -STOP $$; sleep 1000")
		alone := start("setsid -w sh -c 'echo $$ > /tmp/alone; sleep 1000 & wait'")
		await(t, sb, "test -s /tmp/ticking && test -s /tmp/alone && test -s /tmp/tick && grep -q 'State:.T' /proc/$(cat /tmp/halted)/status")
		siege(t, sb, func() {
			for _, b := range memoryBombs {
				if b.name == "forked hogs" || b.name == "a hundred small processes" && testneed.AllTests() {
					b := b.here(t)
					// The host's kernel does not report to which of several operations the killed processes belonged.
					b.kills = b.kills && !onHostKernel(t)
					b.run(t, sb)
				}
			}
			// The same below a shell with job control.
			v := run(t, sb, sandbox.Command{Shell: `set -m; python3 -c "
b = bytearray()
while True: b += b'x' * (4 << 20)"; echo ended with $?; jobs`})
			if got := v.Stdout.String(); got != "ended with 137\n" {
				t.Errorf("the shell printed %q, %q", got, v.Stderr)
			}
		})
		await(t, sb, "a=$(cat /tmp/tick); sleep 0.05; test \"$a\" != \"$(cat /tmp/tick)\"")
		await(t, sb, "grep -q 'State:.T' /proc/$(cat /tmp/halted)/status")
		await(t, sb, "grep -q 'State:.S' /proc/$(cat /tmp/alone)/status")
		for _, id := range []string{ticking, halted, alone} {
			if err := sb.Cancel(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
}

// await waits until a script succeeds.
func await(t *testing.T, sb *sandbox.Sandbox, script string) {
	t.Helper()
	v := run(t, sb, sandbox.Command{Shell: "until { " + script + "; } 2>/dev/null; do sleep 0.02; done", RunOptions: sandbox.RunOptions{Timeout: 20 * time.Second}})
	if !v.OK() {
		t.Fatalf("the script did not succeed: %s", script)
	}
}

// TestMemoryBombInTheInterpreter is about a cell: its interpreter is the hog, so its state is lost, and the verdict
// reports both.
func TestMemoryBombInTheInterpreter(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	memoryPart(t, "of a cell", func(t *testing.T) {
		sb := fresh(t, small())
		underSiege(t, sb, func() {
			v := cell(t, sb, sandbox.Cell{Code: "b = bytearray()\nwhile True: b += b'x' * (8 << 20)"})
			if v.Ended != v1.EndedMemory || v.StateKept {
				t.Errorf("verdict %s, state kept %v", v, v.StateKept)
			}
		})
		if got := py(t, sb, "print(1+1)"); got != "2\n" {
			t.Errorf("the next interpreter printed %q", got)
		}
		// A bomb in a command must not kill the interpreter, even if the interpreter is large.
		py(t, sb, "big = b'x' * (60 << 20)")
		siege(t, sb, func() {
			memoryBombs[0].run(t, sb)
			memoryBombs[4].run(t, sb)
		})
	})
}

func TestFilesInMemory(t *testing.T) {
	testneed.Parallel(t)
	need(t)
	fill := func(dir string) string {
		return `cd ` + dir + ` && head -c 10G /dev/zero > fill; ls -l fill; df . | tail -1`
	}
	full := func(t *testing.T, _ *sandbox.Sandbox, v *sandbox.Verdict) {
		contains(t, strings.ToLower(v.Stderr.String()), "no space left")
	}
	for _, b := range []bomb{
		{name: "fill home", common: true, script: fill("/home/user"), check: full},
		{name: "fill tmp", variant: true, script: fill("/tmp"), check: full},
		{name: "fill var tmp", variant: true, script: fill("/var/tmp"), check: full},
		{name: "fill shared memory", variant: true, script: fill("/dev/shm"), check: full},
		{name: "fill everything at once, then allocate", common: true, script: fill("/home/user") + ";" + fill("/tmp") + ";" + fill("/var/tmp") + ";" + fill("/dev/shm") + `; python3 -c "
b = bytearray()
while True: b += b'x' * (4 << 20)"; echo hog ended with $?`, check: func(t *testing.T, sb *sandbox.Sandbox, v *sandbox.Verdict) {
			contains(t, v.Stdout.String(), "hog ended with 137")
		}},
		{name: "fill from deleted files", script: `cd /tmp; for i in 1 2 3 4; do exec {fd}>f$i; rm f$i; head -c 1G /dev/zero >&$fd; done; echo end`, check: full},
		{name: "a million files", python: `
import os
n = 0
try:
    for d in ('/home/user', '/tmp', '/var/tmp', '/dev/shm'):
        try:
            for i in range(1000000):
                os.close(os.open('%s/f%d' % (d, i), os.O_CREAT | os.O_WRONLY)); n += 1
        except OSError as e: print(d, e)
finally: print(n, 'files')`, check: func(t *testing.T, sb *sandbox.Sandbox, v *sandbox.Verdict) {
			contains(t, v.Stdout.String(), "No space left")
			began := time.Now()
			n := 0
			for _, err := range sb.Files().List(t.Context(), "/home/user", sandbox.ListOptions{}) {
				if err != nil {
					t.Error("list:", err)
					break
				}
				n++
			}
			t.Logf("listed %d in %s", n, time.Since(began))
		}},
		{name: "hard links and directories without number", variant: true, python: `
import os
os.chdir('/tmp')
open('a','w').close()
try:
    for i in range(300000): os.link('a', 'l%d' % i)
except OSError as e: print(e, i)
d = '/home/user'
try:
    for i in range(100000):
        d += '/d'; os.mkdir('d'); os.chdir('d')
except OSError as e: print(e, i)`},
		{name: "a sparse file of 8 EB", python: `
import os
f = os.open('/tmp/sparse', os.O_CREAT | os.O_RDWR)
for size in (1 << 40, 1 << 62, (1 << 63) - 1):
    try: os.ftruncate(f, size)
    except OSError as e: print(e)
os.pwrite(f, b'x', 1 << 39) if os.fstat(f).st_size > 1 << 39 else None
print(os.fstat(f).st_size)`, check: func(t *testing.T, sb *sandbox.Sandbox, v *sandbox.Verdict) {
			if _, err := sb.Files().ReadAll(t.Context(), "/tmp/sparse"); err == nil {
				t.Error("a file of exabytes was read to its end")
			}
		}},
		{name: "fallocate", variant: true, python: `
import os
f = os.open('/tmp/falloc', os.O_CREAT | os.O_RDWR)
try: os.posix_fallocate(f, 0, 8 << 30)
except OSError as e: print(e)`},
		{name: "very many extended attributes", python: `
import os
open('/tmp/x','w').close()
try:
    for i in range(100000): os.setxattr('/tmp/x', 'user.a%d' % i, b'x' * 60000)
except OSError as e: print(e, i)`},
	} {
		if b.left() {
			continue
		}
		memoryPart(t, b.name, func(t *testing.T) {
			sb := fresh(t, small())
			siege(t, sb, func() {
				v := b.run(t, sb)
				if b.check != nil {
					b.check(t, sb, v)
				}
			})
		})
	}
}

func TestFileDescriptors(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	siege(t, sb, func() {
		v := bomb{python: `
import os
n = 0
try:
    while True: os.open('/dev/null', os.O_RDONLY); n += 1
except OSError as e: print(n, e)`}.run(t, sb)
		contains(t, v.Stdout.String(), "Too many open files")
		v = bomb{python: `
import os, resource
try: resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000)); print('raised')
except (ValueError, OSError) as e: print('refused')
# In flight between sockets descriptors count for nobody; on top each process has its own table.
import socket
n = 0
for p in range(60):
    if os.fork() == 0:
        keep = []
        try:
            while True: keep.append(os.open('/usr/bin/env', os.O_RDONLY))
        except OSError: pass
        import time; time.sleep(3); os._exit(0)
for p in range(60): os.wait()`}.run(t, sb)
		contains(t, v.Stdout.String(), "refused")
	})
}
