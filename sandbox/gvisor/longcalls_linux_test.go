//go:build linux

package gvisor

import (
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

// TestLongCallsGiveWhatShortOnesDo checks that calls that the engine splits have the same results as whole calls
// (cmd/recluse-engine, longcalls.go).
func TestLongCallsGiveWhatShortOnesDo(t *testing.T) {
	sb := open(t, testBackend(t), sandbox.Spec{Limits: sandbox.Limits{Disk: 256 << 20}})
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", `
import ctypes, errno, mmap, os, random, socket, threading
M = 1 << 20
data = random.Random(7).randbytes(M) * 21 + b'tail'
path = '/tmp/data'
with open(path, 'wb') as f: f.write(data)
f = os.open(path, os.O_RDONLY)
assert os.read(f, 60 * M) == data
assert os.read(f, 60 * M) == b''
os.lseek(f, 5, 0)
assert os.read(f, 15 * M) == data[5:5 + 15 * M]
assert os.lseek(f, 0, 1) == 5 + 15 * M
assert os.pread(f, 60 * M, 3) == data[3:]
assert os.lseek(f, 0, 1) == 5 + 15 * M

def vector(read, *more):
    a, b, c, d = bytearray(9 * M), bytearray(1), bytearray(), bytearray(50 * M)
    n = read(f, [a, b, c, d], *more)
    return (bytes(a) + bytes(b) + bytes(d))[:n]
os.lseek(f, 11, 0)
assert vector(os.readv) == data[11:]
assert vector(os.preadv, 13) == data[13:]
assert vector(os.preadv, 13, os.RWF_HIPRI) == data[13:]
assert os.lseek(f, 0, 1) == len(data)

def refused(call, *args):
    try: call(*args)
    except OSError as e: return errno.errorcode[e.errno]
assert refused(os.pread, f, 60 * M, -5) == 'EINVAL', refused(os.pread, f, 60 * M, -5)
assert refused(os.preadv, f, [bytearray(60 * M)], -5) == 'EINVAL'
assert refused(os.read, 99, 60 * M) == 'EBADF'
assert refused(os.read, os.open('/tmp', os.O_RDONLY), 60 * M) == 'EISDIR'

# Written as well as read.
def written(write):
    g = os.open('/tmp/copy', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    n = write(g)
    got = os.pread(g, 100 * M, 0)
    os.close(g)
    assert n == len(data), n
    return got
assert written(lambda g: os.write(g, data)) == data
assert written(lambda g: os.pwrite(g, data, 3)) == b'\0\0\0' + data
assert written(lambda g: os.writev(g, [data[:7], b'', data[7:]])) == data
assert written(lambda g: os.pwritev(g, [data[:10 * M], data[10 * M:]], 5)) == b'\0' * 5 + data
os.posix_fallocate(os.open('/tmp/copy', os.O_RDWR), 1, 30 * M)
assert os.stat('/tmp/copy').st_size == 30 * M + 1
assert written(lambda g: os.pwritev(g, [data], 0, os.RWF_DSYNC)) == data
assert written(lambda g: os.pwritev(g, [data[:9 * M], data[9 * M:]], 1, os.RWF_SYNC)) == b'\0' + data
free = os.statvfs('/tmp').f_bavail
g = os.open('/tmp/large', os.O_RDWR | os.O_CREAT)
assert refused(os.posix_fallocate, g, 0, 1 << 33) == 'ENOSPC'
assert os.fstat(g).st_size == 0 and os.statvfs('/tmp').f_bavail == free

# Nonsense is refused as ever.
libc = ctypes.CDLL(None, use_errno=True)
for many in (-1, 1025, 0x7fffffff):
    assert libc.readv(f, data, many) == -1 and ctypes.get_errno() == errno.EINVAL, many
if os.uname().machine == 'x86_64': assert libc.syscall(206, 1, data) == -1 and ctypes.get_errno() == errno.ENOSYS  # io_setup

# What may wait gives what it has.
r, w = os.pipe()
os.write(w, b'hello')
assert os.read(r, 60 * M) == b'hello'
got = bytearray()
def take():
    while len(got) < len(data): got.extend(os.read(r, 60 * M))
reader = threading.Thread(target=take)
reader.start()
assert os.write(w, data) == len(data) # who waits until all of it is taken has written all of it
reader.join()
assert got == data
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.send(b'one'); a.send(b'two')
first, second = bytearray(2), bytearray(60 * M)
assert os.readv(b.fileno(), [first, second]) == 3 and first + second[:1] == b'one'

assert len(os.getrandom(9 * M)) == 9 * M
assert os.read(os.open('/dev/zero', os.O_RDONLY), 40 * M) == bytes(40 * M)
m = mmap.mmap(-1, 50 * M, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
assert m[-1] == 0
print('whole')`}})
	if err != nil || strings.TrimSpace(v.Stdout.String()) != "whole" {
		t.Errorf("%v %v\n%s", err, v, v.Stderr)
	}
}

// TestMemoryThatIsScarceIsNotUsedUp: one process uses most of the memory, and other processes can still be started and
// read much data.
func TestMemoryThatIsScarceIsNotUsedUp(t *testing.T) {
	sb := open(t, testBackend(t), sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", `
import os, subprocess, threading
keep = bytearray(b'x') * (205 << 20)
for i in range(5): subprocess.run(['true'], check=True)
for i in range(5):
    t = threading.Thread(target=lambda: None); t.start(); t.join()
assert len(os.read(os.open('/dev/zero', os.O_RDONLY), 10 << 20)) == 10 << 20
print('made')`}})
	if err != nil || strings.TrimSpace(v.Stdout.String()) != "made" || v.MemoryKills != 0 {
		t.Errorf("%v %v\n%s", err, v, v.Stderr)
	}
}
