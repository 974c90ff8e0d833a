//go:build linux

package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testUID = 1000
	testGID = 1000
)

// plain is an FS without the user switch, as in the local backend.
func plain() *FS { return New(Options{}) }

// switched is an FS that acts for uid 1000.
func switched(t testing.TB) *FS {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("the user switch needs root")
		}
		t.Skip("SKIPPED: the user switch needs root")
	}
	return New(Options{UID: testUID, GID: testGID, SwitchUser: true})
}

// dir returns a directory that belongs to the test user where there is one.
func dir(t testing.TB) string {
	t.Helper()
	d := t.TempDir()
	must(t, os.Chmod(filepath.Dir(d), 0o755))
	if os.Getuid() == 0 {
		must(t, os.Chown(d, testUID, testGID))
	}
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(content), 0o644))
	if os.Getuid() == 0 {
		must(t, os.Chown(name, testUID, testGID))
	}
}

func get(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}

func wantKind(t testing.TB, err error, kind Kind) {
	t.Helper()
	if KindOf(err) != kind {
		t.Errorf("kind = %q (%v), want %q", KindOf(err), err, kind)
	}
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Errorf("%T is no *Error", err)
	}
}

func (f *FS) readString(root, path string, offset, limit int64) (string, error) {
	var b bytes.Buffer
	_, n, err := f.Read(context.Background(), root, path, offset, limit, &b)
	if err == nil && n != int64(b.Len()) {
		err = fmt.Errorf("n = %d, got %d", n, b.Len())
	}
	return b.String(), err
}

func (f *FS) writeString(root, path, content string, opts WriteOptions) error {
	opts.Size = int64(len(content))
	_, err := f.Write(context.Background(), root, path, strings.NewReader(content), opts)
	return err
}

// only asserts that a directory has only the given names, so no temporary files.
func only(t testing.TB, d string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(d)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s has %q, want %q", d, got, names)
	}
}

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
		t.Errorf("a file that tells no size: %q, %v", got, err)
	}
}

func TestReadGrowing(t *testing.T) {
	d := dir(t)
	put(t, d+"/log", "start")
	file, err := os.OpenFile(d+"/log", os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	defer func() { _ = file.Close() }()
	grow := writerFunc(func(p []byte) (int, error) { // faster than it is read
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
		if err != nil || info.Name != name || info.Path != "/dir/"+name {
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

func TestUserSwitch(t *testing.T) {
	f := switched(t)
	ctx := context.Background()
	d := dir(t)
	put(t, d+"/private", "secret")
	must(t, os.Chown(d+"/private", 0, 0))
	must(t, os.Chmod(d+"/private", 0o600))
	must(t, os.Mkdir(d+"/closed", 0o700))
	put(t, d+"/closed/inside", "secret")
	must(t, os.Mkdir(d+"/passage", 0o711))
	put(t, d+"/passage/inside", "open")

	_, err := f.readString(d, "private", 0, 0)
	wantKind(t, err, Permission)
	_, err = f.readString(d, "closed/inside", 0, 0)
	wantKind(t, err, Permission)
	wantKind(t, f.writeString(d, "private", "x", WriteOptions{}), Permission)
	wantKind(t, f.writeString(d, "private", "x", WriteOptions{Append: true}), Permission)
	wantKind(t, f.writeString(d, "closed/new", "x", WriteOptions{}), Permission)
	wantKind(t, f.writeString("/", "/etc/recluse-test", "x", WriteOptions{}), Permission)
	wantKind(t, f.Mkdir(ctx, "/", "/usr/recluse-test", MkdirOptions{}), Permission)
	wantKind(t, f.Move(ctx, "/", "/etc/passwd", d+"/stolen", MoveOptions{}), Permission)
	_, err = f.Remove(ctx, d, "closed", RemoveOptions{Recursive: true})
	wantKind(t, err, Permission)
	_, err = f.List(ctx, d, "closed", ListOptions{}, func(Info) error { return nil })
	wantKind(t, err, Permission)
	wantKind(t, f.Watch(ctx, d, "closed", WatchOptions{}, func(Event) error { return nil }), Permission)
	_, err = f.TarIn(ctx, d, "closed", tarOf(t, file("x", "x")), TarOptions{})
	wantKind(t, err, Permission)
	_, err = f.readString("/", "/proc/1/environ", 0, 0)
	wantKind(t, err, Permission)
	if got, err := f.readString("/", d+"/passage/inside", 0, 0); err != nil || got != "open" {
		t.Errorf("a directory to pass through only: %q, %v", got, err)
	}

	var archive bytes.Buffer
	stats, err := f.TarOut(ctx, d, []string{"/"}, &archive, TarOptions{})
	must(t, err)
	if stats.SkippedCount != 3 || strings.Contains(archive.String(), "secret") { // private, closed's and passage's content
		t.Errorf("stats %+v", stats)
	}

	must(t, f.writeString(d, "mine", "x", WriteOptions{}))
	must(t, f.Mkdir(ctx, d, "dir/deep", MkdirOptions{Parents: true}))
	for _, name := range []string{"/mine", "/dir", "/dir/deep"} {
		fi, err := os.Lstat(d + name)
		must(t, err)
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != testUID || st.Gid != testGID {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	if get(t, d+"/private") != "secret" {
		t.Error("private was changed")
	}
}

func TestSupplementaryGroups(t *testing.T) {
	switched(t)
	d := dir(t)
	put(t, d+"/team", "team")
	must(t, os.Chown(d+"/team", 0, 4321))
	must(t, os.Chmod(d+"/team", 0o640))
	f := New(Options{UID: testUID, GID: testGID, SwitchUser: true})
	_, err := f.readString(d, "team", 0, 0)
	wantKind(t, err, Permission)
	f = New(Options{UID: testUID, GID: testGID, Groups: []int{4321}, SwitchUser: true})
	if got, err := f.readString(d, "team", 0, 0); err != nil || got != "team" {
		t.Errorf("%q, %v", got, err)
	}
}

// foreignThreads returns the Uid lines of all threads that are not root's.
func foreignThreads(t *testing.T) (foreign []string) {
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	must(t, err)
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if strings.HasPrefix(line, "Uid:") && line != "Uid:\t0\t0\t0\t0" {
				foreign = append(foreign, line)
			}
		}
	}
	return foreign
}

func TestThreadThatCannotComeBackIsDiscarded(t *testing.T) {
	f := switched(t)
	var failed atomic.Int32
	resume := f.resume
	f.resume = func() error {
		failed.Add(1)
		return errors.New("refused")
	}
	d := dir(t)
	put(t, d+"/file", "x")
	for range 20 {
		if got, err := f.readString(d, "file", 0, 0); err != nil || got != "x" {
			t.Fatal(got, err)
		}
	}
	if failed.Load() != 20 {
		t.Fatal("resume was not called")
	}
	for range 1000 {
		if len(foreignThreads(t)) == 0 {
			break
		}
		time.Sleep(time.Millisecond) // threads end on their own time
	}
	// The process's first thread can't end before the process; the runtime parks it for good.
	if left := foreignThreads(t); len(left) > 1 {
		t.Errorf("threads keep the user's ids: %q", left)
	}
	for range 100 {
		var uid int
		done := make(chan struct{})
		go func() { defer close(done); runtime.Gosched(); uid = unix.Geteuid() }()
		<-done
		if uid != 0 {
			t.Fatal("a goroutine got a thread with the user's ids")
		}
	}
	f.resume = resume
	if _, err := f.readString(d, "file", 0, 0); err != nil {
		t.Error(err)
	}
}

func TestWrite(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name    string
		path    string
		content string
		opts    WriteOptions
		kind    Kind
		check   string // file that has the content then
	}{
		{"new file", "new", "x", WriteOptions{}, "", "new"},
		{"over a file", "file", "x", WriteOptions{}, "", "file"},
		{"empty", "file", "", WriteOptions{}, "", "file"},
		{"no parent", "a/b/c", "x", WriteOptions{}, NotFound, ""},
		{"parents made", "a/b/c", "x", WriteOptions{MkdirParents: true}, "", "a/b/c"},
		{"parent is a file", "file/c", "x", WriteOptions{MkdirParents: true}, NotDir, ""},
		{"exclusive, new", "new", "x", WriteOptions{Exclusive: true}, "", "new"},
		{"exclusive, there", "file", "x", WriteOptions{Exclusive: true}, Exists, ""},
		{"exclusive, dangling link there", "dangling", "x", WriteOptions{Exclusive: true}, Exists, ""},
		{"exclusive append", "file", "x", WriteOptions{Exclusive: true, Append: true}, Invalid, ""},
		{"over a directory", "dir", "x", WriteOptions{}, IsDir, ""},
		{"slash at the end", "new/", "x", WriteOptions{}, Invalid, ""},
		{"root", "/", "x", WriteOptions{}, Invalid, ""},
		{"root by a dot", ".", "x", WriteOptions{}, Invalid, ""},
		{"root by dots", "dir/..", "x", WriteOptions{}, Invalid, ""},
		{"over a FIFO", "fifo", "x", WriteOptions{}, NotRegular, ""},
		{"append to a FIFO", "fifo", "x", WriteOptions{Append: true}, NotRegular, ""},
		{"through a link inside", "link", "x", WriteOptions{}, "", "dir/target"},
		{"append through a link", "link", "x", WriteOptions{Append: true}, "", ""},
		{"dangling link", "dangling", "x", WriteOptions{}, NotFound, ""},
		{"link out", "out", "x", WriteOptions{}, Escapes, ""},
		{"append to a link out", "out", "x", WriteOptions{Append: true}, Escapes, ""},
		{"link out as parent", "outdir/new", "x", WriteOptions{MkdirParents: true}, Escapes, ""},
		{"parents beyond a link out", "outdir/a/new", "x", WriteOptions{MkdirParents: true}, Escapes, ""},
		{"dot dot", "../new", "x", WriteOptions{MkdirParents: true}, Escapes, ""},
		{"read-only file", "readonly", "x", WriteOptions{}, Permission, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := switched(t)
			d, outside := dir(t), dir(t)
			put(t, outside+"/secret", "secret")
			put(t, d+"/file", "old")
			must(t, os.Mkdir(d+"/dir", 0o755))
			must(t, os.Chown(d+"/dir", testUID, testGID))
			put(t, d+"/dir/target", "old")
			put(t, d+"/readonly", "old")
			must(t, os.Chmod(d+"/readonly", 0o444))
			must(t, unix.Mkfifo(d+"/fifo", 0o666))
			must(t, os.Symlink("dir/target", d+"/link"))
			must(t, os.Symlink("nowhere", d+"/dangling"))
			must(t, os.Symlink(outside+"/secret", d+"/out"))
			must(t, os.Symlink(outside, d+"/outdir"))
			wantKind(t, f.writeString(d, c.path, c.content, c.opts), c.kind)
			if c.check != "" && get(t, d+"/"+c.check) != c.content {
				t.Errorf("content %q", get(t, d+"/"+c.check))
			}
			if c.kind != "" && (get(t, d+"/file") != "old" || get(t, d+"/dir/target") != "old") {
				t.Error("old file was touched")
			}
			only(t, outside, "secret")
			if get(t, outside+"/secret") != "secret" {
				t.Error("outside was written to")
			}
			if left, _ := filepath.Glob(d + "/.recluse*"); left != nil {
				t.Error("left behind", left)
			}
			if left, _ := filepath.Glob(d + "/*/.recluse*"); left != nil {
				t.Error("left behind", left)
			}
		})
	}

	t.Run("modes", func(t *testing.T) {
		f, d := switched(t), dir(t)
		put(t, d+"/script", "old")
		must(t, os.Chmod(d+"/script", 0o750|fs.ModeSetuid))
		must(t, f.writeString(d, "script", "new", WriteOptions{}))
		must(t, f.writeString(d, "asked", "new", WriteOptions{Mode: 0o604 | fs.ModeSetuid}))
		must(t, f.writeString(d, "default", "new", WriteOptions{}))
		for name, want := range map[string]fs.FileMode{"script": 0o750, "asked": 0o604, "default": 0o644} {
			info, err := f.Stat(ctx, d, name)
			if err != nil || info.Mode != want {
				t.Errorf("%s: %v, want %v (%v)", name, info.Mode, want, err)
			}
		}
	})

	t.Run("failures leave the old file", func(t *testing.T) {
		f, d := switched(t), dir(t)
		put(t, d+"/file", "old")
		cancelled, cancel := context.WithCancel(ctx)
		for _, c := range []struct {
			name string
			ctx  context.Context
			r    io.Reader
			size int64
			kind Kind
		}{
			{"short", ctx, strings.NewReader("abc"), 4, Invalid},
			{"long", ctx, strings.NewReader("abcde"), 4, Invalid},
			{"reader fails", ctx, io.MultiReader(strings.NewReader("abc"), readerFunc(func([]byte) (int, error) { return 0, errors.New("cut") })), -1, Internal},
			{"cancelled on the way", cancelled, readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), -1, Cancelled},
			{"cancelled before", cancelled, strings.NewReader("abcd"), 4, Cancelled},
		} {
			for _, add := range []bool{false, true} {
				_, err := f.Write(c.ctx, d, "file", c.r, WriteOptions{Size: c.size, Append: add})
				if wantKind(t, err, c.kind); get(t, d+"/file") != "old" {
					t.Errorf("%s, append %v: %q", c.name, add, get(t, d+"/file"))
				}
				only(t, d, "file")
				if s, ok := c.r.(*strings.Reader); ok {
					_, _ = s.Seek(0, io.SeekStart)
				}
			}
		}
	})

	t.Run("append", func(t *testing.T) {
		f, d := switched(t), dir(t)
		for range 3 {
			must(t, f.writeString(d, "log", "line\n", WriteOptions{Append: true}))
		}
		if got := get(t, d+"/log"); got != "line\nline\nline\n" {
			t.Errorf("%q", got)
		}
	})

	t.Run("no space", func(t *testing.T) {
		f, d := switched(t), dir(t)
		if err := unix.Mount("tmpfs", d, "tmpfs", 0, "size=64k,mode=777"); err != nil {
			t.Skip("SKIPPED: can't mount a small file system: ", err)
		}
		defer func() { _ = unix.Unmount(d, unix.MNT_DETACH) }()
		must(t, f.writeString(d, "file", "old", WriteOptions{}))
		_, err := f.Write(ctx, d, "file", io.LimitReader(zeros{}, 1<<20), WriteOptions{Size: -1})
		wantKind(t, err, NoSpace)
		if get(t, d+"/file") != "old" {
			t.Error("old file is gone")
		}
		only(t, d, "file")
	})
}

// A parent directory is swapped with a link to the outside, all the time, while every operation runs.
func TestSwappedParents(t *testing.T) {
	f := switched(t)
	ctx := context.Background()
	d, outside := dir(t), dir(t)
	put(t, outside+"/victim", "victim")
	must(t, os.Mkdir(d+"/real", 0o777))
	must(t, os.Chmod(d+"/real", 0o777))
	must(t, os.Symlink(outside, d+"/evil"))
	must(t, os.Rename(d+"/real", d+"/p"))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, d+"/p", unix.AT_FDCWD, d+"/evil", unix.RENAME_EXCHANGE)
			}
		}
	}()
	archive := tarOf(t, file("p/victim", "x"), link("p/l", "/"), file("p/deep/er", "x"))
	raw, err := io.ReadAll(archive)
	must(t, err)
	done := 0
	for i := range 400 {
		name := fmt.Sprintf("p/f%d", i%10)
		if f.writeString(d, name, "x", WriteOptions{MkdirParents: true}) == nil {
			done++
		}
		_ = f.writeString(d, "p/victim", "x", WriteOptions{})
		_ = f.writeString(d, "p/victim", "x", WriteOptions{Append: true})
		if got, err := f.readString(d, "p/victim", 0, 0); err == nil && strings.Contains(got, "victim") {
			t.Fatal("read from outside")
		}
		_ = f.Mkdir(ctx, d, "p/made/deep", MkdirOptions{Parents: true})
		_ = f.Move(ctx, d, name, "p/moved", MoveOptions{})
		_, _ = f.Remove(ctx, d, "p/victim", RemoveOptions{Recursive: true})
		_, _ = f.TarIn(ctx, d, "/", bytes.NewReader(raw), TarOptions{})
		_, _ = f.List(ctx, d, "p", ListOptions{Recursive: true}, func(i Info) error {
			if i.Name == "victim" && i.Size == 6 {
				t.Error("listed the outside")
			}
			return nil
		})
	}
	close(stop)
	<-stopped
	if done == 0 {
		t.Error("no write ever succeeded: nothing was tried")
	}
	only(t, outside, "victim")
	if get(t, outside+"/victim") != "victim" {
		t.Error("outside was changed")
	}
}

func TestStat(t *testing.T) {
	f, d := plain(), dir(t)
	put(t, d+"/file", "12345")
	must(t, os.Symlink("/no/where\n", d+"/link"))
	must(t, unix.Mkfifo(d+"/fifo", 0o640))
	for path, want := range map[string]string{"file": "file", "link": "symlink", "fifo": "fifo", "/": "dir", ".": "dir"} {
		info, err := f.Stat(context.Background(), d, path)
		if err != nil || info.Kind != want {
			t.Errorf("%s: %+v, %v", path, info, err)
		}
	}
	info, _ := f.Stat(context.Background(), d, "link")
	if info.LinkTarget != "/no/where\n" || info.Mode.Type() != fs.ModeSymlink {
		t.Errorf("%+v", info)
	}
	info, _ = f.Stat(context.Background(), "/", "/dev/null")
	if info.Kind != "device" {
		t.Errorf("%+v", info)
	}
	if info, err := f.Stat(context.Background(), "/", "/"); err != nil || info.Path != "/" || info.Name != "/" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestMkdir(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	put(t, d+"/file", "")
	must(t, f.Mkdir(ctx, d, "a", MkdirOptions{Mode: 0o2700}))
	wantKind(t, f.Mkdir(ctx, d, "a", MkdirOptions{}), Exists)
	must(t, f.Mkdir(ctx, d, "a", MkdirOptions{Parents: true}))
	wantKind(t, f.Mkdir(ctx, d, "b/c", MkdirOptions{}), NotFound)
	must(t, f.Mkdir(ctx, d, "b/c", MkdirOptions{Parents: true, Mode: 0o777}))
	wantKind(t, f.Mkdir(ctx, d, "file", MkdirOptions{Parents: true}), Exists)
	wantKind(t, f.Mkdir(ctx, d, "file/x", MkdirOptions{Parents: true}), NotDir)
	wantKind(t, f.Mkdir(ctx, d, "/", MkdirOptions{}), Exists)
	must(t, f.Mkdir(ctx, d, "/", MkdirOptions{Parents: true}))
	wantKind(t, f.Mkdir(ctx, d, "", MkdirOptions{}), Invalid)
	wantKind(t, f.Mkdir(ctx, d, "../x", MkdirOptions{Parents: true}), Escapes)
	must(t, f.Mkdir(ctx, "/", d+"/w/x/y", MkdirOptions{Parents: true}))
	for name, want := range map[string]fs.FileMode{"a": 0o700, "b": 0o755, "b/c": 0o777} {
		if info, err := f.Stat(ctx, d, name); err != nil || info.Mode.Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode, err)
		}
	}
}

func TestMove(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	reset := func() {
		_, err := f.Remove(ctx, filepath.Dir(d), filepath.Base(d)+"/w", RemoveOptions{Recursive: true, MissingOK: true})
		must(t, err)
		must(t, f.writeString(d, "w/a", "a", WriteOptions{MkdirParents: true}))
		must(t, f.writeString(d, "w/b", "b", WriteOptions{}))
		must(t, f.writeString(d, "w/dir/x", "x", WriteOptions{MkdirParents: true}))
		must(t, f.Mkdir(ctx, d, "w/empty", MkdirOptions{}))
	}
	for _, c := range []struct {
		from, to string
		opts     MoveOptions
		kind     Kind
	}{
		{"a", "c", MoveOptions{}, ""},
		{"a", "b", MoveOptions{}, ""},
		{"a", "b", MoveOptions{Exclusive: true}, Exists},
		{"a", "c", MoveOptions{Exclusive: true}, ""},
		{"a", "dir", MoveOptions{}, IsDir},
		{"dir", "empty", MoveOptions{}, ""},
		{"empty", "dir", MoveOptions{}, NotEmpty},
		{"dir", "dir/x/y", MoveOptions{}, NotDir},
		{"dir", "dir/y", MoveOptions{}, Invalid},
		{"a", "new/c", MoveOptions{}, NotFound},
		{"a", "new/c", MoveOptions{MkdirParents: true}, ""},
		{"none", "c", MoveOptions{}, NotFound},
		{"/", "c", MoveOptions{}, Invalid},
		{"a", "/", MoveOptions{}, Invalid},
		{"a", "../c", MoveOptions{}, Escapes},
		{"../c", "a", MoveOptions{}, Escapes},
	} {
		reset()
		if err := f.Move(ctx, d+"/w", c.from, c.to, c.opts); KindOf(err) != c.kind {
			t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.kind)
		}
	}
}

func TestMoveAcrossFileSystems(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	other, err := os.MkdirTemp("/dev/shm", "recluse-test-")
	if err != nil {
		t.Skip("SKIPPED: no second file system: ", err)
	}
	defer func() { _ = os.RemoveAll(other) }()
	must(t, os.Chown(other, testUID, testGID))
	put(t, d+"/tree/dir/file", "content")
	put(t, d+"/single", "content")
	must(t, os.Chmod(d+"/tree/dir/file", 0o640))
	must(t, os.Symlink("/no/where", d+"/tree/link"))
	must(t, os.Link(d+"/tree/dir/file", d+"/tree/hard"))
	for _, name := range []string{"/tree", "/tree/dir"} {
		must(t, os.Chown(d+name, testUID, testGID))
	}
	must(t, f.Move(ctx, "/", d+"/tree", other+"/tree", MoveOptions{Exclusive: true}))
	must(t, f.Move(ctx, "/", d+"/single", other+"/single", MoveOptions{}))
	only(t, d)
	only(t, other, "tree", "single")
	if get(t, other+"/tree/dir/file") != "content" || get(t, other+"/tree/hard") != "content" || get(t, other+"/single") != "content" {
		t.Error("content")
	}
	if info, err := f.Stat(ctx, other, "tree/dir/file"); err != nil || info.Mode != 0o640 {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := f.Stat(ctx, other, "tree/link"); err != nil || info.LinkTarget != "/no/where" {
		t.Errorf("%+v, %v", info, err)
	}

	must(t, unix.Mkfifo(other+"/tree/fifo", 0o666))
	wantKind(t, f.Move(ctx, "/", other+"/tree", d+"/back", MoveOptions{}), NotRegular)
	only(t, d)
	only(t, other+"/tree", "dir", "fifo", "hard", "link")
	must(t, os.Remove(other+"/tree/fifo"))
	put(t, d+"/there", "")
	wantKind(t, f.Move(ctx, "/", other+"/tree", d+"/there", MoveOptions{Exclusive: true}), Exists)
	only(t, d, "there")
}

func TestRemove(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	outside := dir(t)
	put(t, outside+"/keep", "")
	must(t, f.writeString(d, "w/a/b/c", "", WriteOptions{MkdirParents: true}))
	must(t, os.Symlink(outside, d+"/w/a/link"))
	must(t, os.Symlink(outside, d+"/link"))
	for _, c := range []struct {
		path string
		opts RemoveOptions
		kind Kind
		n    int64
	}{
		{"w", RemoveOptions{}, NotEmpty, 0},
		{"/", RemoveOptions{Recursive: true}, Invalid, 0},
		{"w/..", RemoveOptions{Recursive: true}, Invalid, 0},
		{"..", RemoveOptions{Recursive: true}, Escapes, 0},
		{"", RemoveOptions{Recursive: true}, Invalid, 0},
		{"none", RemoveOptions{Recursive: true}, NotFound, 0},
		{"none", RemoveOptions{MissingOK: true}, "", 0},
		{"link/keep", RemoveOptions{Recursive: true}, Escapes, 0},
		{"link", RemoveOptions{Recursive: true}, "", 1},
		{"w/a/b/c", RemoveOptions{}, "", 1},
		{"w/a/b", RemoveOptions{}, "", 1},
		{"w", RemoveOptions{Recursive: true}, "", 3},
	} {
		n, err := f.Remove(ctx, d, c.path, c.opts)
		if KindOf(err) != c.kind || n != c.n {
			t.Errorf("%s: %d, %v", c.path, n, err)
		}
	}
	only(t, d)
	only(t, outside, "keep")
}

// deep makes a tree deeper than any path may be long and than descriptors may be open.
func deep(t testing.TB, d string, levels int) {
	t.Helper()
	fd, err := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "dddddddd", 0o755))
		if os.Getuid() == 0 {
			must(t, unix.Fchownat(fd, "dddddddd", testUID, testGID, 0))
		}
		sub, err := unix.Openat(fd, "dddddddd", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		_ = unix.Close(fd)
		fd = sub
	}
	_ = unix.Close(fd)
}

func TestDeepTree(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	const levels = 3000
	deep(t, d, levels)
	n := 0
	_, err := f.List(ctx, d, "", ListOptions{Recursive: true}, func(Info) error { n++; return nil })
	if err != nil || n != levels {
		t.Errorf("listed %d, %v", n, err)
	}
	stats, err := f.TarOut(ctx, d, []string{""}, io.Discard, TarOptions{})
	if err != nil || stats.Entries != levels {
		t.Errorf("stats %+v, %v", stats, err)
	}
	gone, err := f.Remove(ctx, d, "dddddddd", RemoveOptions{Recursive: true})
	if err != nil || gone != levels {
		t.Errorf("removed %d, %v", gone, err)
	}
}

func TestHugeDirectory(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	const files = 50_000
	must(t, os.Mkdir(d+"/huge", 0o777))
	must(t, os.Chown(d+"/huge", testUID, testGID))
	for i := range files {
		fd, err := unix.Open(fmt.Sprintf("%s/huge/%07d", d, (i*7919)%files), unix.O_CREAT|unix.O_WRONLY, 0o644)
		must(t, err)
		_ = unix.Close(fd)
	}
	last, n, pages := "", 0, 0
	for after := ""; ; pages++ {
		res, err := f.List(ctx, d, "huge", ListOptions{After: after, Max: 20_000}, func(i Info) error {
			if i.Name <= last {
				t.Fatalf("%s after %s", i.Name, last)
			}
			last = i.Name
			n++
			return nil
		})
		must(t, err)
		if after = res.Next; after == "" {
			break
		}
	}
	if n != files || pages != 2 {
		t.Errorf("%d files on %d pages", n, pages+1)
	}
	cancelled, cancel := context.WithCancel(ctx)
	_, err := f.List(cancelled, d, "huge", ListOptions{Max: files}, func(Info) error { cancel(); return nil })
	wantKind(t, err, Cancelled)
	_, err = f.Remove(cancelled, d, "huge", RemoveOptions{Recursive: true})
	wantKind(t, err, Cancelled)
	gone, err := f.Remove(ctx, d, "huge", RemoveOptions{Recursive: true})
	if err != nil || gone != files+1 {
		t.Errorf("removed %d, %v", gone, err)
	}
}

func TestListPages(t *testing.T) {
	f, d, ctx := plain(), dir(t), context.Background()
	for _, name := range []string{"a/1", "a/b/c/d", "a.txt", "a-", "b", "z/y/x"} {
		put(t, d+"/"+name, "")
	}
	must(t, os.Symlink("/", d+"/link"))
	must(t, os.Symlink(".", d+"/self"))
	want := []string{"/a", "/a/1", "/a/b", "/a/b/c", "/a/b/c/d", "/a-", "/a.txt", "/b", "/link", "/self", "/z", "/z/y", "/z/y/x"}
	for page := 1; page < 15; page++ {
		var got []string
		after := ""
		for {
			res, err := f.List(ctx, d, "", ListOptions{Recursive: true, Max: page, After: after}, func(i Info) error {
				got = append(got, i.Path)
				return nil
			})
			must(t, err)
			if after = res.Next; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d: %q", page, got)
		}
	}
	var got []string
	list := func(path string, opts ListOptions) error {
		got = nil
		_, err := f.List(ctx, d, path, opts, func(i Info) error { got = append(got, i.Path); return nil })
		return err
	}
	must(t, list("a", ListOptions{Recursive: true, Depth: 2}))
	if !slices.Equal(got, []string{"/a/1", "/a/b", "/a/b/c"}) {
		t.Errorf("%q", got)
	}
	must(t, list("", ListOptions{After: "a-"}))
	if !slices.Equal(got, []string{"/a.txt", "/b", "/link", "/self", "/z"}) {
		t.Errorf("%q", got)
	}
	wantKind(t, list("b", ListOptions{}), NotDir)
	wantKind(t, list("link", ListOptions{}), Escapes)
	wantKind(t, list("none", ListOptions{}), NotFound)
	stop := errors.New("stop")
	_, err := f.List(ctx, d, "", ListOptions{}, func(Info) error { return stop })
	if !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestGuestDescriptorsAreNotListed(t *testing.T) {
	for _, f := range []*FS{plain(), switched(t)} {
		_, err := f.List(context.Background(), "/", "/proc/self/fd", ListOptions{}, func(Info) error { return nil })
		wantKind(t, err, Permission)
	}
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"file", "../x", "/../x", "a/../../x", "in/../../x", "out/x", "abs/x", "up/x", "up/../x", "two/x", "%2e%2e/x", "a\x00b", "", "/", "//", "./.",
		strings.Repeat("a/", 50), strings.Repeat("../", 50), "in/file", "\xff", "loop/x", "in/./..//out/../x",
	} {
		f.Add(seed)
	}
	base := f.TempDir()
	root, outside := base+"/root", base+"/outside"
	put(f, outside+"/x", "outside")
	put(f, base+"/x", "outside")
	fs := plain()
	f.Fuzz(func(t *testing.T, path string) {
		ctx := context.Background()
		must(t, os.RemoveAll(root))
		must(t, os.MkdirAll(root+"/in", 0o755))
		must(t, os.WriteFile(root+"/in/file", []byte("inside"), 0o644))
		for name, target := range map[string]string{"out": "../outside", "abs": outside, "up": "..", "two": "in/step", "in/step": "../up", "loop": "loop"} {
			must(t, os.Symlink(target, root+"/"+name))
		}
		check := func(err error) {
			t.Helper()
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Fatalf("%T", err)
			}
			if err != nil && e.Kind == Internal {
				t.Errorf("not classified: %v", err)
			}
		}
		got, err := fs.readString(root, path, 0, 0)
		if check(err); strings.Contains(got, "outside") {
			t.Fatalf("read outside through %q", path)
		}
		check(fs.writeString(root, path, "written", WriteOptions{MkdirParents: true}))
		check(fs.writeString(root, path, "written", WriteOptions{Append: true}))
		check(fs.Mkdir(ctx, root, path+"d", MkdirOptions{Parents: true}))
		check(fs.Move(ctx, root, path, path+"m", MoveOptions{}))
		check(fs.Move(ctx, root, "in", path+"/n", MoveOptions{MkdirParents: true}))
		_, err = fs.Remove(ctx, root, path+"m", RemoveOptions{Recursive: true})
		check(err)
		_, err = fs.Remove(ctx, root, path, RemoveOptions{Recursive: true})
		check(err)
		only(t, base, "outside", "root", "x")
		only(t, outside, "x")
		if get(t, base+"/x") != "outside" || get(t, outside+"/x") != "outside" {
			t.Fatalf("wrote outside through %q", path)
		}
	})
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
