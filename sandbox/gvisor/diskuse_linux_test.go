//go:build linux

package gvisor

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// TestImagesThatNothingNeedsAreRemoved keeps those that a snapshot needs, however old they are.
func TestImagesThatNothingNeedsAreRemoved(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.images.Dir = t.TempDir()
	files, refs := map[string]string{}, map[string]string{}
	var snap *sandbox.Snapshot
	for _, name := range []string{"needed", "unused", "recent"} {
		content := shellFiles(t)
		content["/app/name"] = []byte(name)
		ref := "tar:" + saveImage(t, imageOf(t, runtime.GOARCH, content))
		refs[name] = ref
		sb := open(t, b, sandbox.Spec{Image: ref})
		if name == "needed" {
			var err error
			if snap, err = sb.Snapshot(t.Context(), sandbox.SnapshotOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		img, err := b.image(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = filepath.Join(filepath.Dir(img.RootFS), "manifest.json")
	}
	// Templates also need them, until they are old.
	templates, err := filepath.Glob(filepath.Join(b.dir, "templates", "[0-9a-f]*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range templates {
		aged(t, dir, 2*templateAge)
	}
	for _, name := range []string{"needed", "unused"} {
		aged(t, files[name], 2*imageAge)
	}
	removed, err := b.Reclaim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"needed": true, "recent": true, "unused": false} {
		if _, err := os.Stat(files[name]); (err == nil) != want {
			t.Errorf("the image %s exists: %t", name, err == nil)
		}
	}
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, restored, "read x < /app/name; echo $x")
	_ = restored.Close()
	if !slices.ContainsFunc(removed, func(u v1.DiskUse) bool { return u.Kind == v1.DiskImage && u.Bytes > 0 }) {
		t.Errorf("%+v", removed)
	}
	sb := open(t, b, sandbox.Spec{Image: refs["unused"]}) // it is unpacked again
	if got := sh(t, sb, "read x < /app/name; echo $x"); got != "unused" {
		t.Errorf("%q", got)
	}
}
