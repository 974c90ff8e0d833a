package attack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// hostPlaces are directories of the host that appear inside, and that code there may change in its own sandbox.
var hostPlaces = []string{"/usr/local", "/opt", "/srv", "/etc/hosts", "/etc/alternatives"}

// hostState returns a digest of names, modes, sizes and times of hostPlaces.
func hostState(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	for _, top := range hostPlaces {
		_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // missing, or not readable for this user
			}
			if info, err := e.Info(); err == nil {
				fmt.Fprintln(h, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
			}
			return nil
		})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestTheRootIsOfOneSandbox changes the root file system in every way that a user inside can.
func TestTheRootIsOfOneSandbox(t *testing.T) {
	testneed.Parallel(t)
	sb, other := fresh(t, small()), fresh(t, small())
	if !sb.Backend().Capabilities(t.Context()).WritableRoot {
		t.Skip("the backend has no writable root")
	}
	const seen = `import os, hashlib
h = hashlib.sha256()
for top in ('/usr/local', '/opt', '/srv', '/etc'):
    for d, dirs, files in sorted(os.walk(top)):
        for n in sorted(dirs + files): h.update(os.fsencode(d + '/' + n)); h.update(str(os.lstat(d + '/' + n).st_mode).encode())
print(h.hexdigest())`
	host, before := hostState(t), py(t, other, seen)
	siege(t, sb, func() {
		t.Log(py(t, sb, `
import os, shutil, stat, errno
done, refused = [], []
def attempt(name, f, *a, **k):
    try: f(*a, **k); done.append(name)
    except (OSError, shutil.Error) as e: refused.append(name)
def write(path, mode='w'):
    with open(path, mode) as f: f.write('x')
for d in ('/usr/local', '/opt', '/srv'):
    attempt('write ' + d, write, d + '/x')
    attempt('long name ' + d, write, d + '/' + 'n' * 255)
    attempt('odd name ' + d, write, d + '/$(id)\n"\'')
    attempt('raw name ' + d, os.mkdir, os.fsencode(d) + b'/\xff\xfe')
    attempt('whiteout ' + d, os.mknod, d + '/w', stat.S_IFCHR, os.makedev(0, 0))
    attempt('disk ' + d, os.mknod, d + '/disk', stat.S_IFBLK, os.makedev(8, 0))
    attempt('fifo ' + d, os.mkfifo, d + '/fifo')
    attempt('setuid ' + d, lambda: os.chmod(d + '/x', 0o6755))
    attempt('opaque ' + d, os.setxattr, d, 'trusted.overlay.opaque', b'y')
    attempt('user opaque ' + d, os.setxattr, d, 'user.overlay.opaque', b'y')
    for i, to in enumerate(('/usr/bin', '/etc', '/.recluse', '/proc/1/root', '../../../../../..')):
        attempt('link', os.symlink, to, d + '/to%d' % i)
        attempt('through link to ' + to, write, d + '/to%d/attack-was-here' % i)
    attempt('hard link ' + d, os.link, '/usr/bin/env', d + '/env')
    attempt('hard link to the guest ' + d, os.link, '/.recluse/recluse-guest', d + '/guest')
for d, dirs, files in os.walk('/usr/local', topdown=False):
    for n in files[:3]: attempt('change', write, d + '/' + n); attempt('remove', os.remove, d + '/' + n)
attempt('rename', os.rename, '/usr/local', '/usr/gone')
attempt('remove all', shutil.rmtree, '/usr/local')
attempt('move lib', os.rename, '/usr/local/lib', '/opt/lib')
for path in ('/usr/bin/env', '/etc/passwd', '/etc/ld.so.cache', '/usr/lib', '/bin', '/root/x', '/x', '/run/recluse/x', '/.recluse/x', '/shared/x'):
    for name, f in (('write ', write), ('remove ', os.remove), ('mode ', lambda p: os.chmod(p, 0o777)), ('owner ', lambda p: os.chown(p, 1000, 1000))):
        attempt(name + path, f, path)
bad = [x for x in done if any(p in x for p in ('/usr/bin', '/etc/', '/root', '/run/', '/.recluse', '/shared', 'disk', 'trusted'))]
bad = [x for x in bad if not x.startswith('link')]
assert not bad, bad
with open('/etc/hosts', 'a') as f: f.write('192.0.2.1 attack\n')
print(len(done), 'done', len(refused), 'refused')`))
	})
	if now := hostState(t); now != host {
		t.Error("the host has changed")
	}
	if now := py(t, other, seen); now != before {
		t.Error("another sandbox has changed")
	}
	if now := py(t, fresh(t, small()), seen); now != before {
		t.Error("a new sandbox has changed")
	}
}
