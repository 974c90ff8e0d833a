//go:build linux

package files

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	d, outside := dir(t), dir(t)
	put(t, outside+"/secret", "secret")
	put(t, d+"/file", "0123456789")
	put(t, d+"/sub/inner", "inner")
	must(t, os.Symlink("sub/inner", d+"/link"))
	must(t, os.Symlink("sub/../link", d+"/twice"))
	must(t, os.Symlink(outside+"/secret", d+"/abs"))
	must(t, os.Symlink("../"+filepath.Base(outside)+"/secret", d+"/rel"))
	must(t, os.Symlink(outside, d+"/dirlink"))
	must(t, os.Symlink("loop", d+"/loop"))
	pr, pw, err := os.Pipe()
	must(t, err)
	defer func() { _, _ = pr.Close(), pw.Close() }()
	must(t, os.Symlink(fmt.Sprint("/proc/self/fd/", pr.Fd()), d+"/magic"))
	must(t, unix.Mkfifo(d+"/fifo", 0o666))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: d + "/socket"}))

	for _, c := range []struct {
		name, root, path string
		offset, limit    int64
		want             string
		kind             Kind
	}{
		{"whole file", d, "file", 0, 0, "0123456789", ""},
		{"a leading slash means the root", d, "/file", 0, 0, "0123456789", ""},
		{"dots and slashes", d, ".//./sub/../file", 0, 0, "0123456789", ""},
		{"from an offset", d, "file", 7, 0, "789", ""},
		{"limited", d, "file", 2, 3, "234", ""},
		{"limit beyond the end", d, "file", 8, 100, "89", ""},
		{"offset beyond the end", d, "file", 100, 0, "", ""},
		{"negative offset", d, "file", -1, 0, "", Invalid},
		{"through a link inside", d, "link", 0, 0, "inner", ""},
		{"through two links", d, "twice", 0, 0, "inner", ""},
		{"absolute link out", d, "abs", 0, 0, "", Escapes},
		{"relative link out", d, "rel", 0, 0, "", Escapes},
		{"parent is a link out", d, "dirlink/secret", 0, 0, "", Escapes},
		{"dot dot", d, "../" + filepath.Base(outside) + "/secret", 0, 0, "", Escapes},
		{"dot dot later", d, "sub/../../x", 0, 0, "", Escapes},
		{"dot dot alone", d, "..", 0, 0, "", Escapes},
		{"link to itself", d, "loop", 0, 0, "", Invalid},
		{"magic link", d, "magic", 0, 0, "", Escapes},
		{"absolute link in the whole tree", "/", d + "/abs", 0, 0, "secret", ""},
		{"absolute link as parent in the whole tree", "", d + "/dirlink/secret", 0, 0, "secret", ""},
		{"above the whole tree", "/", "../../.." + d + "/file", 0, 0, "0123456789", ""},
		{"magic link in the whole tree", "/", d + "/magic", 0, 0, "", NotFound},
		{"missing", d, "nothing", 0, 0, "", NotFound},
		{"below a file", d, "file/x", 0, 0, "", NotDir},
		{"directory", d, "sub", 0, 0, "", IsDir},
		{"root itself", d, "/", 0, 0, "", IsDir},
		{"FIFO", d, "fifo", 0, 0, "", NotRegular},
		{"below a FIFO", d, "fifo/x", 0, 0, "", NotDir},
		{"FIFO as root", d + "/fifo", "x", 0, 0, "", NotDir},
		{"socket", d, "socket", 0, 0, "", NotRegular},
		{"device", "/dev", "null", 0, 0, "", NotRegular},
		{"device in the whole tree", "/", "/dev/zero", 0, 0, "", NotRegular},
		{"NUL", d, "fi\x00le", 0, 0, "", Invalid},
		{"empty", d, "", 0, 0, "", Invalid},
		{"relative root", "tmp", "file", 0, 0, "", Invalid},
		{"long name", d, strings.Repeat("x", 256), 0, 0, "", Invalid},
		{"long path", d, strings.Repeat("x/", 3000), 0, 0, "", Invalid},
		{"percent signs are themselves", d, "%2e%2e/file", 0, 0, "", NotFound},
		{"own memory", "/", "/proc/self/mem", 0, 10, "", Permission},
		{"own memory by the thread", "/", "/proc/thread-self/mem", 0, 10, "", Permission},
		{"own environment below /proc", "/proc", fmt.Sprint(os.Getpid(), "/environ"), 0, 0, "", Permission},
		{"own task", "/proc", fmt.Sprintf("%d/task/%[1]d/environ", os.Getpid()), 0, 0, "", Permission},
	} {
		for _, f := range []struct {
			name string
			make func() *FS
		}{{"guest", plain}, {"user", func() *FS { return switched(t) }}} {
			t.Run(c.name+"/"+f.name, func(t *testing.T) {
				got, err := f.make().readString(c.root, c.path, c.offset, c.limit)
				wantKind(t, err, c.kind)
				if got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	}
	if got, err := plain().readString("/", "/proc/meminfo", 0, 0); err != nil || !strings.Contains(got, "MemTotal") {
		t.Errorf("a file without a size: %q, %v", got, err)
	}
}

func TestReadGrowing(t *testing.T) {
	d := dir(t)
	put(t, d+"/log", "start")
	file, err := os.OpenFile(d+"/log", os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	defer func() { _ = file.Close() }()
	grow := writerFunc(func(p []byte) (int, error) { // grows faster than it is read
		_, _ = file.Write(bytes.Repeat([]byte("x"), 2*len(p)))
		return len(p), nil
	})
	info, n, err := plain().Read(context.Background(), d, "log", 0, 0, grow)
	if err != nil || n != 5 || info.Size != 5 {
		t.Errorf("n = %d, info %+v, %v", n, info, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestReadCancelled(t *testing.T) {
	d := dir(t)
	put(t, d+"/sparse", "")
	must(t, os.Truncate(d+"/sparse", 1<<40))
	ctx, cancel := context.WithCancel(context.Background())
	_, _, err := plain().Read(ctx, d, "sparse", 0, 0, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
	wantKind(t, err, Cancelled)
}

func TestStrangeNames(t *testing.T) {
	f := switched(t)
	d := dir(t)
	for _, name := range []string{
		`"quotes' and \`, "$(reboot)", "`x`", "new\nline", "tab\t", "\xff\xfe", "%2e%2e%2f", "-rf", " ", "~", "*", "é",
		strings.Repeat("n", 255), "...", ".hidden", "\x1b[31m",
	} {
		must(t, f.writeString(d, "dir/"+name, name, WriteOptions{MkdirParents: true}))
		if got, err := f.readString(d, "dir/"+name, 0, 0); err != nil || got != name {
			t.Errorf("%q: %q, %v", name, got, err)
		}
		info, err := f.Stat(context.Background(), d, "dir/"+name)
		if err != nil || info.Path != "/dir/"+name {
			t.Errorf("%q: %+v, %v", name, info, err)
		}
	}
	var archive bytes.Buffer
	_, err := f.TarOut(context.Background(), d, []string{"dir"}, &archive, TarOptions{})
	must(t, err)
	stats, err := f.TarIn(context.Background(), d, "copy", &archive, TarOptions{MkdirParents: true})
	if err != nil || stats.Entries != 17 {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if got := get(t, d+"/copy/dir/\xff\xfe"); got != "\xff\xfe" {
		t.Errorf("invalid UTF-8 through tar: %q", got)
	}
}

func BenchmarkReadSmall(b *testing.B) {
	for _, c := range []struct {
		name string
		fs   *FS
	}{{"guest", plain()}, {"user", switched(b)}} {
		b.Run(c.name, func(b *testing.B) {
			d := dir(b)
			put(b, d+"/a/b/file", "x")
			for b.Loop() {
				if _, err := c.fs.readString("/", d+"/a/b/file", 0, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
