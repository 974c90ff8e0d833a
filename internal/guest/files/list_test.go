//go:build linux

package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHugeDirectory(t *testing.T) {
	t.Parallel()
	f, d, ctx := switched(t), dir(t), context.Background()
	files := 50_000
	if testing.Short() {
		files = 12_000 // more than a walk holds of one directory
	}
	must(t, os.Mkdir(d+"/huge", 0o777))
	must(t, os.Chown(d+"/huge", testUID, testGID))
	for i := range files {
		fd, err := unix.Open(fmt.Sprintf("%s/huge/%07d", d, (i*7919)%files), unix.O_CREAT|unix.O_WRONLY, 0o644)
		must(t, err)
		_ = unix.Close(fd)
	}
	last, n, pages := "", 0, 0
	for after := ""; ; pages++ {
		res, err := f.List(ctx, d, "huge", ListOptions{After: after, Max: files * 2 / 5}, func(i Info) error {
			if i.Path <= last {
				t.Fatalf("%s after %s", i.Path, last)
			}
			last = i.Path
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
	if err != nil || gone != int64(files)+1 {
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

func TestUnreadableEntriesAreCountedOnce(t *testing.T) {
	f, d, ctx := switched(t), dir(t), context.Background()
	for _, name := range []string{"a/1", "b/1", "c", "names/x", "names/y", "z/1"} {
		put(t, d+"/"+name, "")
	}
	must(t, os.Chmod(d+"/b", 0))
	must(t, os.Chmod(d+"/names", 0o744)) // its names can be read, but it cannot be entered
	must(t, os.Chmod(d+"/z", 0))
	for page := 1; page < 10; page++ {
		var got []string
		unreadable, after := 0, ""
		for {
			res, err := f.List(ctx, d, "", ListOptions{Recursive: true, Max: page, After: after}, func(i Info) error {
				got = append(got, i.Path)
				return nil
			})
			must(t, err)
			unreadable += res.Unreadable
			if after = res.Next; after == "" {
				break
			}
		}
		if want := []string{"/a", "/a/1", "/b", "/c", "/names", "/z"}; !slices.Equal(got, want) || unreadable != 3 {
			t.Errorf("pages of %d: %q, %d unreadable", page, got, unreadable)
		}
	}
	res, err := f.List(ctx, d, "", ListOptions{}, func(Info) error { return nil })
	if err != nil || res.Unreadable != 0 {
		t.Errorf("a directory that is not entered is counted: %+v, %v", res, err)
	}
}

func TestGuestDescriptorsAreNotListed(t *testing.T) {
	for _, f := range []*FS{plain(), switched(t)} {
		_, err := f.List(context.Background(), "/", "/proc/self/fd", ListOptions{}, func(Info) error { return nil })
		wantKind(t, err, Permission)
	}
}
