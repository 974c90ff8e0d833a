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
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestWrite(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name    string
		path    string
		content string
		opts    WriteOptions
		kind    Kind
		check   string // the file that then has the content
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
				t.Error("the old file was changed")
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
			kind Kind
		}{
			{"reader fails", ctx, io.MultiReader(strings.NewReader("abc"), readerFunc(func([]byte) (int, error) { return 0, errors.New("cut") })), Internal},
			{"cancelled on the way", cancelled, readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), Cancelled},
			{"cancelled before", cancelled, strings.NewReader("abcd"), Cancelled},
		} {
			for _, add := range []bool{false, true} {
				_, err := f.Write(c.ctx, d, "file", c.r, WriteOptions{Append: add})
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
			testneed.Lacking(t, "cannot mount a small file system: "+err.Error())
		}
		defer func() { _ = unix.Unmount(d, unix.MNT_DETACH) }()
		must(t, f.writeString(d, "file", "old", WriteOptions{}))
		_, err := f.Write(ctx, d, "file", io.LimitReader(zeros{}, 1<<20), WriteOptions{})
		wantKind(t, err, NoSpace)
		if get(t, d+"/file") != "old" {
			t.Error("old file is gone")
		}
		only(t, d, "file")
	})
}

// A parent directory is swapped with a link to the outside continuously, while all operations run.
func TestSwappedParents(t *testing.T) {
	t.Parallel()
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
			if strings.HasSuffix(i.Path, "/victim") && i.Size == 6 {
				t.Error("listed the outside")
			}
			return nil
		})
	}
	close(stop)
	<-stopped
	if done == 0 {
		t.Error("no write succeeded, so the test checked nothing")
	}
	only(t, outside, "victim")
	if get(t, outside+"/victim") != "victim" {
		t.Error("outside was changed")
	}
}
