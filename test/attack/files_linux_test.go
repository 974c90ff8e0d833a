package attack

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// soon is the limit of a file operation: none may hang, whatever it meets.
const soon = 30 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	return ctx
}

// TestReadsThatMustNotHang reads files that block, never end or are secret, through the file API.
func TestReadsThatMustNotHang(t *testing.T) {
	sb := shared(t)
	sh(t, sb, `mkdir -p ~/r && cd ~/r && mkfifo fifo && ln -s fifo tofifo && ln -s /dev/zero tozero && ln -s /proc/1/environ toenv && ln -s loop loop && ln -s / root && python3 -c "
import socket; s = socket.socket(socket.AF_UNIX); s.bind('sock')"`)
	siege(t, sb, func() {
		for _, path := range []string{
			"/home/user/r/fifo", "/home/user/r/tofifo", "/home/user/r/sock", "/home/user/r/tozero", "/home/user/r/toenv", "/home/user/r/loop",
			"/dev/zero", "/dev/random", "/dev/tty", "/dev/full", "/dev/stdin", "/dev/fd/0",
			"/proc/1/environ", "/proc/1/mem", "/proc/self/mem", "/proc/self/environ", "/proc/1/maps", "/proc/1/fd/0", "/proc/self/fd/0", "/proc/kmsg", "/proc/kcore", "/proc/1/root/etc/shadow", "/proc/self/pagemap",
			"/home/user/r", "/home/user/r/missing", "/home/user/r/root/proc/1/environ",
		} {
			var got bytes.Buffer
			_, err := sb.Files().Read(within(t), path, &limited{w: &got, left: 1 << 20})
			if err == nil {
				t.Errorf("%s was read: %d bytes %.80q", path, got.Len(), got.String())
			}
			if v1.CodeOf(err) == v1.CodeCancelled {
				t.Errorf("%s: the read hung", path)
			}
			lacks(t, got.String(), "RECLUSE_GUEST", "token")
		}
		for _, path := range []string{"/home/user/r/fifo", "/dev/null", "/dev/full", "/proc/self/mem", "/proc/1/oom_score_adj", "/home/user/r/sock", "/proc/sys/kernel/hostname", "/etc/passwd", "/usr/bin/x", "/run/recluse/x"} {
			err := sb.Files().WriteAll(within(t), path, []byte("x"), sandbox.WriteOptions{Append: true})
			if v1.CodeOf(err) == v1.CodeCancelled || err == nil {
				t.Errorf("append to %s: %v", path, err)
			}
		}
		// The file there may be replaced, but must never be opened.
		began := time.Now()
		err := sb.Files().WriteAll(within(t), "/home/user/r/fifo", []byte("x"), sandbox.WriteOptions{})
		t.Logf("write over a FIFO: %v in %s", err, time.Since(began))
		var tarball bytes.Buffer
		stats, err := sb.Files().Download(within(t), &tarball, "/home/user/r")
		t.Logf("download of these files: %+v %v", stats, err)
		if v1.CodeOf(err) == v1.CodeCancelled {
			t.Error("the download hung")
		}
	})
	sh(t, sb, "rm -rf ~/r")
}

// limited is a writer that fails after a maximum of bytes.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, fmt.Errorf("too much")
	}
	return l.w.Write(p)
}

// TestNames uses file names that are a problem for other software.
func TestNames(t *testing.T) {
	sb := shared(t)
	f := sb.Files().Below("/home/user/names")
	if err := sb.Files().Mkdir(t.Context(), "/home/user/names", sandbox.MkdirOptions{Parents: true}); err != nil {
		t.Fatal(err)
	}
	good := []string{"a'b", `a"b`, "$(touch owned)", "`touch owned`", "a\nb", "-rf", "a b", "\xff\xfe", "..a", "%2e%2e%2fetc", "*", "a;b", strings.Repeat("n", 255), "\u202e.txt", "~", "a\\b"}
	for _, name := range good {
		if err := f.WriteAll(within(t), name, []byte(name), sandbox.WriteOptions{}); err != nil {
			t.Errorf("write %q: %v", name, err)
			continue
		}
		if got, err := f.ReadAll(within(t), name); err != nil || string(got) != name {
			t.Errorf("read %q: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]v1.Code{
		"../escape": v1.CodePathEscapes, "../../etc/escape": v1.CodePathEscapes, "a/../../escape": v1.CodePathEscapes, "/../../../tmp/escape": v1.CodePathEscapes,
		"x\x00y": v1.CodePathInvalid, strings.Repeat("n", 256): v1.CodePathInvalid, strings.Repeat("d/", 4096) + "f": v1.CodePathInvalid, "": v1.CodePathInvalid, ".": v1.CodePathInvalid,
	} {
		if err := f.WriteAll(within(t), name, []byte("x"), sandbox.WriteOptions{Parents: true}); v1.CodeOf(err) != want {
			t.Errorf("write %.40q: %v, want %s", name, err, want)
		}
	}
	lacks(t, sh(t, sb, "ls /tmp /etc /home /home/user /"), "owned", "escape")
	listed := map[string]bool{}
	for e, err := range f.List(within(t), "/", sandbox.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		listed[strings.TrimPrefix(e.Path, "/")] = true
	}
	for _, name := range good {
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
	}
	sh(t, sb, "rm -rf ~/names")
}

// TestSymlinkSwap repeatedly replaces a directory by a link to another one, while the host writes and reads below it.
func TestSymlinkSwap(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	sh(t, sb, "mkdir -p ~/jail/dir ~/outside && echo precious > ~/outside/file")
	siege(t, sb, func() {
		id, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"python3", "-c", `
import os, ctypes
os.chdir('/home/user/jail'); os.symlink('/home/user/outside', 'link')
libc = ctypes.CDLL(None)
while True:
    if libc.renameat2(-100, b'dir', -100, b'link', 2) != 0:
        os.rename('dir', 'x'); os.rename('link', 'dir'); os.rename('x', 'link')`}})
		if err != nil {
			t.Fatal(err)
		}
		f := sb.Files().Below("/home/user/jail")
		outcomes := map[v1.Code]int{}
		for i := range 150 {
			err := f.WriteAll(within(t), "dir/file", []byte("evil"), sandbox.WriteOptions{})
			outcomes[v1.CodeOf(err)]++
			if i%3 == 0 {
				if got, err := f.ReadAll(within(t), "dir/file"); err == nil && strings.Contains(string(got), "precious") {
					t.Fatal("the host read a file outside")
				}
				_ = f.Remove(within(t), "dir/file", sandbox.RemoveOptions{})
			}
		}
		t.Log(outcomes)
		if err := sb.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
	if got := sh(t, sb, "ls ~/outside; cat ~/outside/file"); got != "file\nprecious\n" {
		t.Errorf("the outside now contains %q", got)
	}
}

// TestLinksAndOwners checks that the file API has the rights of the user, not those of the guest.
func TestLinksAndOwners(t *testing.T) {
	sb := shared(t)
	sh(t, sb, "mkdir -p ~/l && cd ~/l && ln -s /etc etc && ln -s /run/recluse run && ln -s /.recluse guest && ln -s /proc/1/root up && ln /etc/passwd hard 2>/dev/null; true")
	for _, path := range []string{"/home/user/l/etc/passwd", "/home/user/l/etc/new", "/home/user/l/run/new", "/home/user/l/guest/recluse-guest", "/home/user/l/up/etc/new", "/root/new", "/new", "/proc/1/cwd/new", "/home/new"} {
		if err := sb.Files().WriteAll(within(t), path, []byte("x"), sandbox.WriteOptions{Parents: true}); err == nil {
			t.Errorf("%s was written", path)
		}
		if err := sb.Files().Remove(within(t), path, sandbox.RemoveOptions{Recursive: true}); err == nil && !strings.HasSuffix(path, "new") {
			t.Errorf("%s was removed", path)
		}
	}
	if err := sb.Files().Remove(within(t), "/run/recluse", sandbox.RemoveOptions{Recursive: true}); err == nil {
		t.Error("the guest's directory was removed")
	}
	below := sb.Files().Below("/home/user/l")
	for _, path := range []string{"etc/hostname", "up/etc/passwd", "run", "guest/recluse-guest"} {
		if got, err := below.ReadAll(within(t), path); err == nil {
			t.Errorf("%s was read below the root: %.60q", path, got)
		}
	}
	sh(t, sb, "rm -rf ~/l")
}

// TestHostileTars unpacks archives that were made to escape from the target directory.
func TestHostileTars(t *testing.T) {
	sb := fresh(t, small())
	sh(t, sb, "mkdir -p ~/in ~/victim && echo precious > ~/victim/file")
	type entry struct {
		name, link, body string
		kind             byte
		mode, size       int64
	}
	archive := func(entries ...entry) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			if e.kind == 0 {
				e.kind = tar.TypeReg
			}
			if e.mode == 0 {
				e.mode = 0o755
			}
			h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.body))}
			if e.size > 0 {
				h.Size = e.size
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, e.body)
		}
		_ = w.Flush() // some are truncated on purpose
		return &b
	}
	siege(t, sb, func() {
		for _, a := range []struct {
			name string
			r    io.Reader
		}{
			{"dots", archive(entry{name: "../victim/file", body: "evil"}, entry{name: "a/../../victim/file", body: "evil"})},
			{"absolute", archive(entry{name: "/home/user/victim/file", body: "evil"}, entry{name: "/etc/evil", body: "evil"})},
			{"link, then through it", archive(entry{name: "l", link: "/home/user/victim", kind: tar.TypeSymlink}, entry{name: "l/file", body: "evil"})},
			{"relative link, then through it", archive(entry{name: "m", link: "../victim", kind: tar.TypeSymlink}, entry{name: "m/file", body: "evil"})},
			{"two links", archive(entry{name: "a1", link: ".", kind: tar.TypeSymlink}, entry{name: "a1/a2", link: "../victim", kind: tar.TypeSymlink}, entry{name: "a2/file", body: "evil"})},
			{"hard link outside", archive(entry{name: "h", link: "../victim/file", kind: tar.TypeLink}, entry{name: "h", body: "evil"})},
			{"absolute hard link", archive(entry{name: "h2", link: "/home/user/victim/file", kind: tar.TypeLink}, entry{name: "h2", body: "evil"})},
			{"hard link over a link", archive(entry{name: "s", link: "../victim/file", kind: tar.TypeSymlink}, entry{name: "h3", link: "s", kind: tar.TypeLink}, entry{name: "h3", body: "evil"})},
			{"set-uid", archive(entry{name: "suid", body: "#!/bin/sh\nid\n", mode: 0o6755})},
			{"devices", archive(entry{name: "dev", kind: tar.TypeBlock}, entry{name: "chr", kind: tar.TypeChar}, entry{name: "fifo", kind: tar.TypeFifo})},
			{"a file where a directory is", archive(entry{name: "d/f", body: "x"}, entry{name: "d", body: "x"})},
			{"wrong size", archive(entry{name: "short", body: "x", size: 1 << 40})},
			{"noise", io.LimitReader(zeros{}, 10<<20)},
			{"noise that is not zero", strings.NewReader(strings.Repeat("tar?", 100000))},
			{"a name of 60 kB", archive(entry{name: strings.Repeat("deep/", 12000) + "f", body: "x"})},
			{"NUL in a link", archive(entry{name: "nul", link: "x", kind: tar.TypeSymlink})},
		} {
			stats, err := sb.Files().Upload(within(t), "/home/user/in", a.r, sandbox.TarOptions{})
			if v1.CodeOf(err) == v1.CodeCancelled || v1.CodeOf(err) == v1.CodeInternal {
				t.Errorf("%s: %v", a.name, err)
			}
			t.Logf("%s: %+v %.200v", a.name, stats, err)
			if got := sh(t, sb, "ls ~/victim; cat ~/victim/file"); got != "file\nprecious\n" {
				t.Fatalf("%s: the outside now contains %q", a.name, got)
			}
		}
		lacks(t, sh(t, sb, "ls /etc /; ls -la ~/in; find ~/in -perm /6000"), "evil", "suid\n/", "brw", "crw")
		if got := sh(t, sb, "find ~/in -perm /6000"); got != "" {
			t.Errorf("set-uid files were unpacked: %s", got)
		}
	})
	onRoot := func(t *testing.T) {
		sh(t, sb, "mkdir -p /opt/in /opt/victim && echo precious > /opt/victim/file")
		siege(t, sb, func() {
			for name, r := range map[string]io.Reader{
				"dots":             archive(entry{name: "../victim/file", body: "evil"}, entry{name: "../../etc/evil", body: "evil"}),
				"absolute":         archive(entry{name: "/opt/victim/file", body: "evil"}, entry{name: "/usr/local/evil", body: "evil"}),
				"through a link":   archive(entry{name: "l", link: "../victim", kind: tar.TypeSymlink}, entry{name: "l/file", body: "evil"}),
				"hard link":        archive(entry{name: "h", link: "../victim/file", kind: tar.TypeLink}, entry{name: "h", body: "evil"}),
				"link to the host": archive(entry{name: "p", link: "/proc/1/root", kind: tar.TypeSymlink}, entry{name: "p/evil", body: "evil"}),
				"whiteout":         archive(entry{name: ".wh..wh..opq", body: "x"}, entry{name: ".wh.victim", body: "x"}, entry{name: "w", kind: tar.TypeChar}),
				"set-uid":          archive(entry{name: "suid", body: "#!/bin/sh\nid\n", mode: 0o6755}),
			} {
				_, err := sb.Files().Upload(within(t), "/opt/in", r, sandbox.TarOptions{})
				if v1.CodeOf(err) == v1.CodeCancelled || v1.CodeOf(err) == v1.CodeInternal {
					t.Errorf("%s: %v", name, err)
				}
			}
			if got := sh(t, sb, "ls /opt/victim; cat /opt/victim/file; find /opt/in -perm /6000"); got != "file\nprecious\n" {
				t.Errorf("the outside now contains %q", got)
			}
			// The user's own tar may write wherever the user may: in this sandbox.
			sh(t, sb, "cd /opt/in && tar -cPf x.tar /opt/victim/file && echo changed > /opt/victim/file && tar -xPf x.tar && grep precious /opt/victim/file")
		})
		lacks(t, sh(t, sb, "ls /etc / /usr/local /opt"), "evil")
		lacks(t, sh(t, fresh(t, small()), "ls /opt /usr/local"), "victim", "evil")
		sh(t, sb, "rm -rf /opt/in /opt/victim")
	}
	if sb.Backend().Capabilities(t.Context()).WritableRoot {
		t.Run("on the writable root", onRoot)
	}
	t.Run("bombs", func(t *testing.T) {
		siege(t, sb, func() {
			// 8 GB of zeros, and a million files: the disk limit stops both.
			r, w := io.Pipe()
			go func() {
				tw := tar.NewWriter(w)
				_ = tw.WriteHeader(&tar.Header{Name: "big", Mode: 0o644, Size: 8 << 30})
				_, err := io.Copy(tw, io.LimitReader(zeros{}, 8<<30))
				_ = w.CloseWithError(err)
			}()
			_, err := sb.Files().Upload(within(t), "/home/user/in", r, sandbox.TarOptions{})
			_ = r.Close()
			if v1.CodeOf(err) != v1.CodeDiskFull {
				t.Errorf("8 GB: %v", err)
			}
			r2, w2 := io.Pipe()
			go func() {
				tw := tar.NewWriter(w2)
				var err error
				for i := 0; i < 1000000 && err == nil; i++ {
					err = tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("f%d", i), Mode: 0o644})
				}
				_ = w2.CloseWithError(err)
			}()
			_, err = sb.Files().Upload(within(t), "/home/user/in", r2, sandbox.TarOptions{})
			_ = r2.Close()
			if code := v1.CodeOf(err); code != v1.CodeDiskFull && code != v1.CodeTooMany {
				t.Errorf("a million files: %v", err)
			}
		})
	})
}

// TestDownloadOfAGrowingFile checks that the download ends, with the content that the file had at its beginning.
func TestDownloadOfAGrowingFile(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	siege(t, sb, func() {
		id, err := sb.Start(t.Context(), sandbox.Command{Shell: "cd ~; while :; do head -c 100000 /dev/zero >> grows; [ $(stat -c %s grows) -gt 20000000 ] && : > grows; done"})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, err := sb.Files().Read(within(t), "/home/user/grows", io.Discard)
			if v1.CodeOf(err) == v1.CodeCancelled {
				t.Error("the read never ended")
			}
			_, err = sb.Files().Download(within(t), io.Discard, "/home/user")
			if v1.CodeOf(err) == v1.CodeCancelled {
				t.Error("the download never ended")
			}
		}
		if err := sb.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
}

// TestMountRequests requests mounts of host directories that must not be visible inside.
func TestMountRequests(t *testing.T) {
	need(t)
	links := t.TempDir()
	for name, target := range map[string]string{"etc": "/etc", "root": "/root", "up": "/", "run": "/var/run", "two": links + "/etc", "docker": "/var/lib/docker", "proc": "/proc/self/root"} {
		if err := os.Symlink(target, links+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	good := links + "/good"
	if err := os.Mkdir(good, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"/", "//", "/.", "/..", "/etc", "//etc", "/./etc", "/etc/", "/etc/.", "/usr/../etc", "/etc/ssl", "/var/run", "/run", "/var", "/var/lib", "/var/lib/docker", "/var/lib/kubelet", "/var/run/docker.sock", "/run/docker.sock",
		"/run/containerd/containerd.sock", "/proc", "/proc/self/root", "/proc/1/root", "/proc/self/root/etc", "/sys", "/sys/fs/cgroup", "/dev", "/dev/shm", "/root", "/root/.ssh", "/root/..", "/home", "/boot",
		"~/.ssh", "~", ".", "..", "etc", "./etc", "", "/etc:/x", good + ":rw", good + ",rw", "/nonexistent", "/etc\x00/x", good + "\n",
		links + "/etc", links + "/root", links + "/up", links + "/run", links + "/two", links + "/docker", links + "/proc", links + "/up/etc", links + "/good/../../../../../../../../etc", dataDir, dataDir + "/" + backend.Name(),
	} {
		sb, err := open(t, sandbox.Spec{Limits: small().Limits, User: small().User, Mounts: []sandbox.Mount{{Host: host, Path: "/data"}}})
		if err == nil {
			t.Errorf("%q was mounted:\n%s", host, sh(t, sb, "ls /data | head"))
			_ = sb.Close()
			continue
		}
		if code := v1.CodeOf(err); code != v1.CodeMountRefused && code != v1.CodeInvalidSpec {
			t.Errorf("%q: %s: %v", host, code, err)
		}
	}
	for _, inside := range []string{"/", "/proc", "/proc/x", "/usr", "/usr/bin", "/etc", "/dev", "/.recluse", "/run/recluse", "/home/user", "/tmp/x", "relative", "", "/data/../usr", "//usr", "/lib", "/bin"} {
		sb, err := open(t, sandbox.Spec{Limits: small().Limits, User: small().User, Mounts: []sandbox.Mount{{Host: good, Path: inside}}})
		if err == nil {
			t.Errorf("a mount at %q was made", inside)
			_ = sb.Close()
		}
	}
	// An allowed mount is read-only, without set-uid, and its links do not lead outside.
	for path, target := range map[string]string{good + "/abs": "/root", good + "/rel": "../../../../../../../../root", good + "/shadow": "/etc/shadow"} {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(good+"/file", []byte("fine"), 0o644); err != nil {
		t.Fatal(err)
	}
	secret := fmt.Sprintf("/root/recluse-attack-mount-%d", os.Getpid())
	if err := os.WriteFile(secret, []byte(hostSecret), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(secret) })
	sb := fresh(t, sandbox.Spec{Limits: small().Limits, User: small().User, Mounts: []sandbox.Mount{{Host: good, Path: "/data"}}})
	out := sh(t, sb, `cat /data/file; echo; cat /data/shadow; ls /data/abs/ /data/rel/; cat /data/*/recluse-attack-mount-*; echo x > /data/new && echo WRITTEN; echo x > /data/file && echo WRITTEN; ln -s x /data/l && echo WRITTEN; rm /data/file && echo WRITTEN; chmod 777 /data/file && echo WRITTEN; touch -d 2001-01-01 /data/file && echo WRITTEN; true`)
	contains(t, out, "fine")
	lacks(t, out, "WRITTEN", hostSecret, "root:$", "root:*")
	// A writable mount creates files of the user, never set-uid root files on the host.
	if err := os.Chmod(good, 0o777); err != nil {
		t.Fatal(err)
	}
	rw := fresh(t, sandbox.Spec{Limits: small().Limits, User: small().User, Mounts: []sandbox.Mount{{Host: good, Path: "/data", Writable: true}}})
	t.Log(sh(t, rw, `cp /bin/true /data/suid; chmod 6777 /data/suid; chown 0:0 /data/suid; mknod /data/dev b 8 0; mkfifo /data/fifo; ln -s /etc/shadow /data/out; ln /data/suid /data/hard; ls -la /data`))
	if info, err := os.Stat(good + "/suid"); err == nil && info.Mode()&os.ModeSetuid != 0 {
		if st, ok := owner(info); ok && st == 0 {
			t.Error("the host has a set-uid program of root")
		}
	}
	if info, err := os.Lstat(good + "/dev"); err == nil {
		t.Errorf("the host has a device: %s", info.Mode())
	}
}

func owner(info os.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
