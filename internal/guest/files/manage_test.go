//go:build linux

package files

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

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
	if info, err := f.Stat(context.Background(), "/", "/"); err != nil || info.Path != "/" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestMkdir(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	put(t, d+"/file", "")
	must(t, f.Mkdir(ctx, d, "a", MkdirOptions{}))
	wantKind(t, f.Mkdir(ctx, d, "a", MkdirOptions{}), Exists)
	must(t, f.Mkdir(ctx, d, "a", MkdirOptions{Parents: true}))
	wantKind(t, f.Mkdir(ctx, d, "b/c", MkdirOptions{}), NotFound)
	must(t, f.Mkdir(ctx, d, "b/c", MkdirOptions{Parents: true}))
	wantKind(t, f.Mkdir(ctx, d, "file", MkdirOptions{Parents: true}), Exists)
	wantKind(t, f.Mkdir(ctx, d, "file/x", MkdirOptions{Parents: true}), NotDir)
	wantKind(t, f.Mkdir(ctx, d, "/", MkdirOptions{}), Exists)
	must(t, f.Mkdir(ctx, d, "/", MkdirOptions{Parents: true}))
	wantKind(t, f.Mkdir(ctx, d, "", MkdirOptions{}), Invalid)
	wantKind(t, f.Mkdir(ctx, d, "../x", MkdirOptions{Parents: true}), Escapes)
	must(t, f.Mkdir(ctx, "/", d+"/w/x/y", MkdirOptions{Parents: true}))
	for name, want := range map[string]fs.FileMode{"a": 0o755, "b": 0o755, "b/c": 0o755} {
		if info, err := f.Stat(ctx, d, name); err != nil || info.Mode.Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode, err)
		}
	}
}

func TestMove(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	reset := func() {
		if _, err := f.Remove(ctx, filepath.Dir(d), filepath.Base(d)+"/w", RemoveOptions{Recursive: true}); KindOf(err) != NotFound {
			must(t, err)
		}
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
		testneed.Lacking(t, "no second file system: "+err.Error())
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
		t.Error("the content of the moved file differs")
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

// deep makes a tree that is deeper than the longest path and than the limit of open descriptors.
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
	t.Parallel()
	f, d, ctx := switched(t), dir(t), context.Background()
	levels := 3000
	if testing.Short() {
		levels = 1100
	}
	deep(t, d, levels)
	n := 0
	_, err := f.List(ctx, d, "", ListOptions{Recursive: true}, func(Info) error { n++; return nil })
	if err != nil || n != levels {
		t.Errorf("listed %d, %v", n, err)
	}
	stats, err := f.TarOut(ctx, d, []string{""}, io.Discard, TarOptions{})
	if err != nil || stats.Entries != int64(levels) {
		t.Errorf("stats %+v, %v", stats, err)
	}
	gone, err := f.Remove(ctx, d, "dddddddd", RemoveOptions{Recursive: true})
	if err != nil || gone != int64(levels) {
		t.Errorf("removed %d, %v", gone, err)
	}
}
