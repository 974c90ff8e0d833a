package image

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}

var someTime = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

func dir(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}
func directory755(name string) entry { return entry{dir(name, 0o755), ""} }

// entry is one tar entry and its content.
type entry struct {
	hdr     tar.Header
	content string
}

// makeTar writes a layer.
func makeTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.hdr.ModTime.IsZero() {
			e.hdr.ModTime = someTime
		}
		if err := w.WriteHeader(&e.hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func makeLayer(t testing.TB, entries ...entry) v1.Layer {
	t.Helper()
	return rawLayer(t, makeTar(t, entries...))
}

func rawLayer(t testing.TB, raw []byte, opts ...tarball.LayerOption) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// makeImage makes an image for arch from layers; empty: the architecture of this machine.
func makeImage(t testing.TB, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	if arch == "" {
		arch = runtime.GOARCH
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		Config: v1.Config{Env: []string{"A=b"}, WorkingDir: "/w"},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, layers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// hello is a small image with all kinds of entries.
func hello(t testing.TB, arch string) v1.Image {
	return makeImage(t, arch,
		makeLayer(t, directory755("usr/bin"), symlink("bin", "usr/bin"), file("bin/sh", "shell"), directory755("etc"), file("etc/old", "old"), file("etc/gone", "gone"),
			directory755("opaque"), file("opaque/below", "below"), symlink("run", "/var/run"), directory755("var/run")),
		makeLayer(t, file("etc/.wh.gone", ""), file("etc/old", "new"), file("opaque/here", "here"), file("opaque/.wh..wh..opq", ""), hardlink("usr/bin/bash", "bin/sh"), file("run/pid", "1")),
	)
}

// helloTree describes the unpacked hello, as tree does.
const helloTree = `bin -> usr/bin
etc/
etc/old new
opaque/
opaque/here here
run -> /var/run
usr/
usr/bin/
usr/bin/bash shell
usr/bin/sh shell
var/
var/run/
var/run/pid 1
`

// tree describes the content of a directory.
func tree(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		switch {
		case d.IsDir():
			b.WriteString(rel + "/\n")
		case d.Type()&os.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			b.WriteString(rel + " -> " + target + "\n")
		case d.Type().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b.WriteString(rel + " " + string(content) + "\n")
		default:
			b.WriteString(rel + " " + d.Type().String() + "\n")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// registryServer is a registry in this process that counts requests for blobs.
type registryServer struct {
	*httptest.Server
	blobs atomic.Int64
	host  string
	// wrap may answer a request instead of the registry. It returns whether it did.
	wrap atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func newRegistry(t testing.TB) *registryServer {
	t.Helper()
	r := &registryServer{}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.blobs.Add(1)
		}
		if f := r.wrap.Load(); f != nil && (*f)(w, req) {
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

func (r *registryServer) intercept(f func(http.ResponseWriter, *http.Request) bool) { r.wrap.Store(&f) }

// push puts an image or index into the registry and returns its reference.
func (r *registryServer) push(t testing.TB, repoTag string, img remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repoTag)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	switch v := img.(type) {
	case v1.Image:
		err = remote.Write(ref, v, remote.WithTransport(tr))
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, v, remote.WithTransport(tr))
	default:
		t.Fatalf("cannot push a %T", img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// save writes a docker-save archive.
func save(t testing.TB, img v1.Image, tag string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	ref, err := name.NewTag(tag)
	if err == nil {
		err = tarball.WriteToFile(file, ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// writeLayout writes an OCI layout with one tagged image.
func writeLayout(t testing.TB, img v1.Image, tag string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// pack makes a tar archive of a directory.
func pack(t testing.TB, dir string) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "oci.tar")
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func newStore(t testing.TB) *Store {
	t.Helper()
	return &Store{Dir: filepath.Join(t.TempDir(), "cache"), NoSync: true}
}

func digestOf(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}
