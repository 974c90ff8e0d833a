//go:build linux

package gvisor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// fakeHost makes a small host with a merged /usr, or with a real /bin.
func fakeHost(t *testing.T, merged bool) string {
	t.Helper()
	host := t.TempDir()
	dirs := []string{"usr/bin", "etc/ssl/certs", "etc/ssl/private", "home/someone", "root", "var/lib"}
	if !merged {
		dirs = append(dirs, "bin")
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if merged {
		if err := os.Symlink("usr/bin", filepath.Join(host, "bin")); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{
		"etc/ld.so.cache": 0o644, "etc/shadow": 0o600, "etc/ssl/certs/ca.crt": 0o644, "etc/ssl/certs/odd.key": 0o600,
		"etc/ssl/private/key": 0o600, "home/someone/secret": 0o644, "etc/hosts": 0o644,
	} {
		if err := os.WriteFile(filepath.Join(host, name), []byte("host's "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

func TestHostRootHoldsOnlyWhatIsListed(t *testing.T) {
	for name, merged := range map[string]bool{"merged": true, "split": false} {
		t.Run(name, func(t *testing.T) {
			host := fakeHost(t, merged)
			root, err := buildHostRoot(t.Context(), t.TempDir(), host, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"etc/ld.so.cache", "etc/ssl/certs/ca.crt", "etc/passwd", "home/user", "run/recluse", "proc", "tmp"} {
				if _, err := os.Stat(filepath.Join(root.dir, name)); err != nil {
					t.Error(err)
				}
			}
			for _, name := range []string{"etc/shadow", "etc/ssl/private", "etc/ssl/certs/odd.key", "home/someone", "usr/bin"} {
				if _, err := os.Lstat(filepath.Join(root.dir, name)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is in the root (%v)", name, err)
				}
			}
			if hosts, _ := os.ReadFile(filepath.Join(root.dir, "etc/hosts")); string(hosts) == "host's etc/hosts" {
				t.Error("the root contains the hosts file of the host")
			}
			link, err := os.Readlink(filepath.Join(root.dir, "bin"))
			if merged && (link != "usr/bin" || len(root.binds) != 1) || !merged && (err == nil || len(root.binds) != 2) {
				t.Errorf("bin: %q %v, binds %v", link, err, root.binds)
			}
		})
	}
}

func TestHostRootIsBuiltOnceAndAnewWhenTheHostChanges(t *testing.T) {
	host, cache := fakeHost(t, true), t.TempDir()
	var wg sync.WaitGroup
	var dirs [8]string
	for i := range dirs {
		wg.Go(func() {
			root, err := buildHostRoot(t.Context(), cache, host, false)
			if err != nil {
				t.Error(err)
				return
			}
			dirs[i] = root.dir
		})
	}
	wg.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] {
			t.Fatalf("several roots of one host: %v", dirs)
		}
	}
	if err := os.WriteFile(filepath.Join(host, "etc/ld.so.cache"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := buildHostRoot(t.Context(), cache, host, false)
	if err != nil || root.dir == dirs[0] {
		t.Fatalf("root after a change: %v %v", root, err)
	}
	if !isDir(dirs[0]) {
		t.Error("the older root is gone while it may be in use")
	}
	if err := pruneHostRoots(t.Context(), cache, func(dir string) bool { return dir == root.dir }); err != nil {
		t.Fatal(err)
	}
	if isDir(dirs[0]) || !isDir(root.dir) {
		t.Error("prune kept the wrong root")
	}
}

func TestPackagesOfTheHostAreShownWithoutItsSecrets(t *testing.T) {
	host := fakeHost(t, true)
	for _, dir := range []string{"etc/apt/sources.list.d", "etc/apt/auth.conf.d", "var/lib/dpkg"} {
		if err := os.MkdirAll(filepath.Join(host, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/apt/sources.list":               "deb http://deb.example/debian stable main\n",
		"etc/apt/sources.list.d/secret.list": "deb https://user:key@private.example/debian stable main\n",
		"etc/apt/auth.conf.d/private.conf":   "machine private.example login user password key\n",
		"etc/passwd":                         "root:x:0:0:The Boss:/root:/bin/zsh\n_apt:x:42:65534:Fetch:/nonexistent:/bin/false\nalice:x:1000:1000:Alice:/home/alice:/bin/sh\n",
		"etc/group":                          "root:x:0:\nssl-cert:x:117:alice\nalice:x:1000:\n",
	} {
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := buildHostRoot(t.Context(), t.TempDir(), host, true)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(root.binds, bind{Source: filepath.Join(host, "var/lib/dpkg"), Target: "/var/lib/dpkg"}) {
		t.Errorf("binds: %v", root.binds)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root.dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if read("etc/apt/sources.list") == "" {
		t.Error("no sources")
	}
	for _, name := range []string{"etc/apt/sources.list.d/secret.list", "etc/apt/auth.conf.d/private.conf"} {
		if _, err := os.Stat(filepath.Join(root.dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is in the root: %v", name, err)
		}
	}
	users, groups := read("etc/passwd"), read("etc/group")
	if strings.Count("\n"+users, "\nroot:") != 1 || !strings.Contains(users, "\n_apt:x:42:65534::/nonexistent:/bin/false\n") ||
		strings.Contains(users, "Boss") || strings.Contains(users, "lice") || !strings.Contains(groups, "\nssl-cert:x:117:\n") || strings.Contains(groups, "alice") {
		t.Errorf("accounts:\n%s\n%s", users, groups)
	}
}

func TestHostRootWithoutUsr(t *testing.T) {
	if _, err := buildHostRoot(t.Context(), t.TempDir(), t.TempDir(), false); err == nil {
		t.Error("no error")
	}
}

func TestHostRootRunsPython(t *testing.T) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testneed.Lacking(t, "/usr/bin/python3")
	}
	x := newBench(t).mustStart("one", nil, "")
	x.expect(`python3 -c 'import ssl,os,pwd,time; print(pwd.getpwuid(1000).pw_dir, len(ssl.create_default_context().get_ca_certs())>=0)'`, "/home/user True")
}

// umaskEnv marks the test process that has a restrictive umask.
const umaskEnv = "RECLUSE_TEST_UMASK"

func TestSandboxesUnderANarrowUmask(t *testing.T) {
	testneed.Sandboxes(t)
	if os.Getenv(umaskEnv) == "" {
		// The umask applies to the whole process, in which other tests run.
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSandboxesUnderANarrowUmask$", "-test.v")
		cmd.Env = append(os.Environ(), umaskEnv+"=1")
		runtime.LockOSThread() // Pdeathsig kills the child when the thread that started it exits
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	syscall.Umask(0o077)
	dir := t.TempDir()
	b := backendIn(t, dir)
	sb := open(t, b, sandbox.Spec{})
	file := filepath.Join(dir, "text")
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Share(t.Context(), sb.ID(), file, "a/b/text"); err != nil {
		t.Fatal(err)
	}
	v := cell(t, sb, `import os
open("/etc/passwd").read().count("root:") >= 1, os.listdir("/usr/bin") != [], open("/shared/a/b/text").read()`)
	if got := v.Result.Text(); got != "(True, True, 'hello')" {
		t.Errorf("got %s: %v", got, v)
	}
}
