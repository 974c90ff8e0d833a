package vm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	playMonitor()
	if dir := os.Getenv(makerEnv); dir != "" {
		makeForAnother(dir)
	}
	goleak.VerifyTestMain(m)
}

// programs are what the root file system of the tests has of this host, besides Python.
var programs = strings.Fields(`bash sh ls cat echo sleep head tail grep sed id stat touch mkdir rm ps env seq sort wc tr
	setsid tty stty kill true false test dd uname nproc free chmod chown ln cp mv find xargs tee timeout mkfifo readlink
	df yes date printf basename dirname expr mktemp cut sha256sum md5sum base64 od cmp nice unshare mount getent pwd rmdir
	cksum tac rev nl paste split truncate shuf pgrep pkill awk tar gzip sync whoami who which arch hostname sysctl ln
	prlimit renice taskset ionice setpriv flock script mknod ulimit realpath comm join fold expand tsort numfmt chgrp
	install link unlink logname groups nohup pathchk printenv stdbuf sum tty users ip dmesg lsblk findmnt umount diff`)

// prepareWait is how long the download of a kernel and the making of the root may take.
const prepareWait = 5 * time.Minute

// sharedDir returns a data directory in which the setup has run. It is kept for the next run of the tests, with the
// kernel and the templates.
var sharedDir = sync.OnceValues(func() (string, error) {
	// Not in the cache directory: that of root is in its home, below which no root file system may be.
	dir := filepath.Join(os.TempDir(), "recluse-test-vm")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), prepareWait)
	defer cancel()
	lock, err := filelock.Acquire(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Release()
	version := sha256.Sum256(fmt.Append(nil, programs, 2)) // and the version of fillTestRoot
	root := filepath.Join(dir, "root-"+hex.EncodeToString(version[:6]))
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		temp := root + ".new"
		if err := errors.Join(os.RemoveAll(temp), fillTestRoot(ctx, temp)); err != nil {
			return "", err
		}
		if err := os.Rename(temp, root); err != nil {
			return "", err
		}
	}
	data := filepath.Join(dir, "data")
	b, err := newTestBackend(data)
	if err != nil {
		return "", err
	}
	_, err = b.Setup(ctx, SetupOptions{RootFS: root})
	return data, err
})

// fillTestRoot makes a small system of this host's programs: the whole /usr would take minutes.
func fillTestRoot(ctx context.Context, root string) error {
	copyFile := func(from, to string) error {
		in, err := os.Open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	}
	var files []string
	for _, name := range programs {
		path := "/usr/bin/" + name
		if _, err := os.Stat(path); err != nil {
			continue // tests that need it fail
		}
		files = append(files, path)
	}
	library, err := output(ctx, "/", "/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))")
	if err != nil {
		return err
	}
	library = strings.TrimSpace(library)
	files = append(files, "/usr/bin/python3")
	err = filepath.WalkDir(library, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"test", "__pycache__", "idlelib", "lib2to3"}, d.Name()) {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range files {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // a broken link
		}
		if err := copyFile(real, root+path); err != nil {
			return err
		}
		libraries, _ := output(ctx, "/", "ldd", real) // fails for scripts
		for word := range strings.FieldsSeq(libraries) {
			if !strings.HasPrefix(word, "/") {
				continue
			}
			target := word
			if !strings.HasPrefix(word, "/usr/") {
				target = "/usr" + word
			}
			if _, err := os.Stat(root + target); err == nil {
				continue
			}
			if err := copyFile(word, root+target); err != nil {
				return err
			}
		}
		if !strings.HasPrefix(path, "/usr/bin/") && filepath.Ext(path) != ".so" {
			continue
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755); err != nil {
		return err
	}
	for link, to := range map[string]string{"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n", "group": "root:x:0:\nuser:x:1000:\n",
		"nsswitch.conf": "passwd: files\nhosts: files dns\n", "hosts": "127.0.0.1 localhost\n", "resolv.conf": "",
	} {
		path := filepath.Join(root, "etc", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// monitorEnv is the environment variable with the monitor that runs the tests, with KVM (make test-kvm). Without it, QEMU
// emulates: the tests must not depend on the KVM of a machine.
const monitorEnv = "RECLUSE_TEST_MONITOR"

// testMonitor returns the name of the monitor that runs the tests.
func testMonitor() string { return cmp.Or(os.Getenv(monitorEnv), MonitorQEMU) }

// newTestBackend returns a backend with the monitor of the tests.
func newTestBackend(dir string, changes ...func(*Options)) (*Backend, error) {
	guest, err := testbin.Guest()
	if err != nil {
		return nil, err
	}
	o := Options{Monitor: testMonitor(), DataDir: dir, CacheDir: filepath.Join(dir, "cache"), Guest: guest.Path, AllowEmulation: true, Accelerator: AcceleratorEmulation, Network: sandboxtest.Network()}
	if os.Getenv(monitorEnv) != "" {
		o.AllowEmulation, o.Accelerator = false, AcceleratorKVM
	}
	for _, change := range changes {
		change(&o)
	}
	return New(o)
}

// emptyBackend returns a backend without a setup.
func emptyBackend(t *testing.T, changes ...func(*Options)) *Backend {
	t.Helper()
	b, err := newTestBackend(t.TempDir(), changes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// testBackend returns a backend with its own sandboxes and snapshots, and the shared kernel, images and templates.
func testBackend(t *testing.T, changes ...func(*Options)) *Backend {
	t.Helper()
	testneed.Sandboxes(t)
	for _, program := range []string{kinds[testMonitor()].program, squashTool} {
		if _, err := exec.LookPath(program); err != nil {
			testneed.Lacking(t, err)
		}
	}
	shared, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	b := emptyBackend(t, changes...)
	if err := shareSetup(shared, b.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // tests of the suite continue after Run has returned
		all, err := b.List(context.Background())
		if err != nil || len(all) > 0 {
			t.Errorf("left behind: %+v, %v", all, err)
		}
		for _, i := range all {
			if err := b.Stop(context.Background(), i.ID); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// shareSetup makes the data directory dir use what the setup has made in another one.
func shareSetup(shared, dir string) error {
	setup, err := os.ReadFile(filepath.Join(shared, Name, setupFile))
	if err != nil {
		return err
	}
	for _, d := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for _, d := range []string{"kernels", "images", "templates"} {
		if err := os.Symlink(filepath.Join(shared, Name, d), filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, setupFile), setup, 0o600)
}

func open(t *testing.T, b *Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	return sandboxtest.Open(t, b, spec)
}

// cell runs code that must succeed and returns the text of its result.
func cell(t *testing.T, sb *sandbox.Sandbox, code string) string {
	t.Helper()
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	if !v.OK() {
		t.Fatalf("%s: %s %s", code, v, v.Stderr)
	}
	if v.Result == nil {
		return ""
	}
	return v.Result.Text()
}

// leftovers returns the monitors and directories of sandboxes that have ended.
func leftovers(b *Backend, ids []string) (left []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, id := range ids {
		if _, err := os.Stat(b.store.Path(id)); err == nil {
			left = append(left, b.store.Path(id))
		}
		for _, l := range links {
			if mounts, err := os.ReadFile(filepath.Join(filepath.Dir(l), "mountinfo")); err == nil && strings.Contains(string(mounts), "/"+id+"/") {
				line, _ := os.ReadFile(l)
				left = append(left, fmt.Sprintf("%s: %.80q", l, line))
			}
		}
	}
	return left
}
