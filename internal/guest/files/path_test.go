//go:build linux

package files

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

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
		check(fs.Move(ctx, root, "in", path+"/n", MoveOptions{}))
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
