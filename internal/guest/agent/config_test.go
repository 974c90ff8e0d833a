//go:build linux

package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestOwnersBelow gives away the directories that programs install into, and no others.
func TestOwnersBelow(t *testing.T) {
	if os.Getuid() != 0 {
		testneed.Lacking(t, "changing owners needs root")
	}
	top := t.TempDir()
	for _, dir := range []string{
		"bin", "go/src/net/http", "lib/pkgconfig", "lib/python3.12/site-packages/pip/_vendor/rich",
		"lib/python3.12/json/tool", "share/man/man1", "share/doc/x/y",
	} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	owned := func(limit int) []string {
		t.Helper()
		if err := prepareDir(launch.Dir{Path: top, UID: 1000, GID: 1000, Deep: limit}); err != nil {
			t.Fatal(err)
		}
		var found []string
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(path, &st)
			}
			if err == nil && st.Uid == 1000 && path != top {
				found = append(found, strings.TrimPrefix(path, top+"/"))
				err = unix.Lchown(path, 0, 0)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	want := []string{
		"bin", "go", "go/src", "lib", "lib/pkgconfig", "lib/python3.12", "lib/python3.12/site-packages",
		"lib/python3.12/site-packages/pip", "lib/python3.12/site-packages/pip/_vendor",
		"lib/python3.12/site-packages/pip/_vendor/rich", "share", "share/doc", "share/man", "share/man/man1",
	}
	if got := owned(100); !slices.Equal(got, want) {
		t.Errorf("owned: %q", got)
	}
	if got := owned(4); !slices.Equal(got, []string{"bin", "go", "lib", "share"}) {
		t.Errorf("owned with a limit of 4: %q", got)
	}
}
