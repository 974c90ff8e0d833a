package vm

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// shellImage returns an OCI layout of an image with this host's /bin/sh.
func shellImage(t *testing.T) string {
	t.Helper()
	libraries, err := exec.CommandContext(t.Context(), "ldd", "/bin/sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	add := func(path string, content []byte) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range append(strings.Fields(string(libraries)), "/bin/sh") {
		if !filepath.IsAbs(path) {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		add(path, content)
	}
	add("/app/words", []byte("from an image\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		Config: v1.Config{Env: []string{"COLOUR=green", "PATH=/bin"}, WorkingDir: "/app"},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir
}

// TestMachinesOfAnImage boots two machines of a container image, whose disk is made once.
func TestMachinesOfAnImage(t *testing.T) {
	testneed.All(t, "the root of the other tests is made from a directory in the same way")
	b := testBackend(t)
	disks := filepath.Join(b.dir, "images", "root-image-*.squashfs")
	t.Cleanup(func() {
		made, _ := filepath.Glob(disks)
		for _, path := range made {
			_ = os.Remove(path) // only this test uses it
		}
	})
	ref := shellImage(t)
	var first os.FileInfo
	for range 2 {
		sb := open(t, b, sandbox.Spec{Image: ref, Cold: true})
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: `read -r words < words; echo "$words, $COLOUR, $PWD"; [ -e /usr/bin/env ] || echo nothing of the host`})
		if want := "from an image, green, /app\nnothing of the host\n"; err != nil || v.Stdout.String() != want {
			t.Errorf("%v, %v: %q", v, err, v.Stdout)
		}
		made, _ := filepath.Glob(disks)
		if len(made) != 1 {
			t.Fatalf("disks %q", made)
		}
		info, err := os.Stat(made[0])
		if err != nil || first != nil && !os.SameFile(first, info) {
			t.Errorf("the disk was made again: %v", err)
		}
		first = info
	}
}
