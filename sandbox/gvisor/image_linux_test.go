//go:build linux

package gvisor

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	api "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// imageServer is a registry in this process. Blobs in damaged are sent with a changed byte.
type imageServer struct {
	host    string
	damaged atomic.Bool
	layers  atomic.Int64 // downloads of blobs
}

func newImageServer(t *testing.T) *imageServer {
	t.Helper()
	s := &imageServer{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			inner.ServeHTTP(w, r)
			return
		}
		s.layers.Add(1)
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		if s.damaged.Load() && len(body) > 0 {
			body[len(body)/2] ^= 1
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body) // if the client disconnects, its own test fails
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

// push stores an image in the registry and returns its reference.
func (s *imageServer) push(t *testing.T, tag string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(s.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if err := remote.Write(ref, img, remote.WithTransport(transport)); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// saveImage writes an archive in the format of docker save.
func saveImage(t *testing.T, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	tag, err := name.NewTag("box:1")
	if err == nil {
		err = tarball.WriteToFile(file, tag, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// layOut writes an OCI layout.
func layOut(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// imageOf packs files into an image of one layer.
func imageOf(t *testing.T, arch string, files map[string][]byte) v1.Image {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for path, content := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		Config: v1.Config{Env: []string{"COLOUR=green", "PATH=/bin"}, WorkingDir: "/app"},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// shellFiles returns this machine's /bin/sh and its shared libraries.
func shellFiles(t *testing.T) map[string][]byte {
	t.Helper()
	out, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, path := range append(strings.Fields(string(out)), "/bin/sh") {
		if !filepath.IsAbs(path) {
			continue
		}
		if files[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestSandboxesFromImages(t *testing.T) {
	files := shellFiles(t)
	files["/app/words"] = []byte("from an image\n")
	img := imageOf(t, runtime.GOARCH, files)
	server := newImageServer(t)
	b := backendIn(t, t.TempDir())
	var told atomic.Int64 // reported progress, in bytes
	b.opts.Progress = func(what string, done, total int64) {
		if done > total {
			t.Errorf("told %q, %d of %d", what, done, total)
		}
		if strings.HasPrefix(what, "image ") {
			told.Store(max(told.Load(), done))
		}
	}
	var downloads int64
	tag := server.push(t, "box:1", img)
	for _, c := range []struct{ source, ref string }{
		{"a registry", tag},
		{"a registry, again", tag},
		{"a layout", "oci:" + layOut(t, img)},
		{"an archive", "tar:" + saveImage(t, img)},
	} {
		t.Run(c.source, func(t *testing.T) {
			sb := open(t, b, sandbox.Spec{Image: c.ref})
			// The image has no bash, so sh is used.
			v, err := sb.Run(t.Context(), sandbox.Command{Shell: `read -r words < words; echo "$words, $COLOUR, $PWD"; [ -e /usr/bin ] || echo nothing of the host; : > mine`})
			if err != nil {
				t.Fatal(err)
			}
			if want := "from an image, green, /app\nnothing of the host\n"; v.Stdout.String() != want || v.OK() || !strings.Contains(v.Stderr.String(), "mine") {
				t.Errorf("%s\nstdout: %s\nstderr: %s\nwant %s and no file made", v, v.Stdout, v.Stderr, want)
			}
			g, err := sb.Guest(t.Context())
			if err != nil || g.Shell != "/bin/sh" || g.Python != "" {
				t.Errorf("%+v, %v", g, err)
			}
			_, err = sb.Cell(t.Context(), sandbox.Cell{Code: "1"})
			wantCode(t, err, api.CodeNoPython)
		})
		if downloads == 0 {
			downloads = server.layers.Load()
			if told.Load() < 100<<10 {
				t.Errorf("a shell and its libraries were downloaded, but %d bytes were reported", told.Load())
			}
		}
	}
	if n := server.layers.Load(); downloads == 0 || n != downloads {
		t.Errorf("%d downloads for the first sandbox, %d for all", downloads, n)
	}
	// An archive of docker save has its own manifest. The other two are the same image.
	if unpacked := entriesOf(filepath.Join(b.cache, "images")); len(unpacked) != 2 {
		t.Errorf("unpacked %d times: %v", len(unpacked), unpacked)
	}
}

func TestImagesBringTheirHomeAndUser(t *testing.T) {
	files := shellFiles(t)
	files["/etc/passwd"] = []byte("root:x:0:0::/root:/bin/sh\napp:x:1234:77::/home/app:/bin/sh\n")
	files["/etc/group"] = []byte("root:x:0:\napp:x:77:\nother:x:88:app\n")
	files["/home/user/words"] = []byte("of the image\n")
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	for user, want := range map[string]string{
		"": "1000 1000", "app": "1234 77", "1234": "1234 77", "app:other": "1234 88", "55:66": "55 66",
		"root": "1000 1000", "0": "1000 1000", "nobody-knows": "1000 1000",
	} {
		img, err := mutate.Config(imageOf(t, runtime.GOARCH, files), v1.Config{User: user, Env: []string{"PATH=/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		sb := open(t, b, sandbox.Spec{Image: "oci:" + layOut(t, img)})
		got := sh(t, sb, `while read -r key id rest; do case $key in [UG]id:) ids="$ids $id";; esac; done < /proc/self/status
read -r words < words; echo $ids $words; echo mine > /home/user/f; echo mine > /opt/f`)
		if got != want+" of the image" {
			t.Errorf("with the user %q: %q, want %q", user, got, want)
		}
	}
}

func TestImagesThatCannotBe(t *testing.T) {
	b := testBackend(t)
	other := map[string]string{"amd64": "arm64"}[runtime.GOARCH]
	if other == "" {
		other = "amd64"
	}
	words := map[string][]byte{"/app/words": []byte(t.Name())}
	foreign, broken := imageOf(t, other, words), imageOf(t, runtime.GOARCH, words)
	server := newImageServer(t)
	brokenRef := server.push(t, "broken:1", broken)
	foreignRef := server.push(t, "foreign:1", foreign)
	server.damaged.Store(true)
	manifest, err := broken.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	damage := func(path string, change func([]byte)) string {
		t.Helper()
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		change(raw)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flip := func(raw []byte) { raw[len(raw)/2] ^= 1 }
	brokenLayout := layOut(t, broken)
	damage(filepath.Join(brokenLayout, "blobs", "sha256", manifest.Layers[0].Digest.Hex), flip)
	brokenArchive := damage(saveImage(t, broken), func(raw []byte) {
		gzip := bytes.Index(raw, []byte{0x1f, 0x8b, 0x08}) // the layer is the only compressed part
		if gzip < 0 {
			t.Fatal("the archive has no compressed layer")
		}
		raw[gzip+20] ^= 0xff
	})
	server2 := newImageServer(t)
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer closed.Close()
	closedHost := closed.Listener.Addr().String()
	const again = "fetch or export the image again"
	forOther := "made for linux/" + other
	for _, c := range []struct {
		name, ref       string
		code            api.Code
		message, remedy string
	}{
		{"corrupt, in a registry", brokenRef, api.CodeImageCorrupt, "sent wrong content", again},
		{"corrupt, in a layout", "oci:" + brokenLayout, api.CodeImageCorrupt, "layer 1 of 1: ", again},
		{"corrupt, in an archive", "tar:" + brokenArchive, api.CodeImageCorrupt, "layer 1 of 1: ", again},
		{"for another machine, in a registry", server2.push(t, "foreign:1", foreign), api.CodeImageArch, forOther, "built for this machine"},
		{"for another machine, in a layout", "oci:" + layOut(t, foreign), api.CodeImageArch, forOther, "built for this machine"},
		{"for another machine, in an archive", "tar:" + saveImage(t, foreign), api.CodeImageArch, forOther, "built for this machine"},
		{"no such tag", server2.host + "/foreign:2", api.CodeImageNotFound, "not found in the registry", "check name and tag"},
		{"no such archive", "tar:/none.tar", api.CodeImageNotFound, "none.tar\" not found", "check the path"},
		{"not a name", "a b", api.CodeInvalidSpec, "invalid image reference", "write it as"},
		{"a config that is not what its digest says", foreignRef, api.CodeImageCorrupt, "sent wrong content", again},
		{"not for this user", closedHost + "/secret:1", api.CodeImageDenied, "access denied", "docker login " + closedHost},
		{"a registry that is not there", "127.0.0.1:1/nobody/here", api.CodeImageUnreachable, "the registry 127.0.0.1:1 cannot be reached", "check the network"},
	} {
		t.Run(c.name, func(t *testing.T) {
			toldInTime(t, func() {
				_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Image: c.ref})
				wantError(t, err, c.code, c.message, c.remedy)
				if !strings.Contains(err.Error(), c.ref) {
					t.Errorf("the error lacks %s: %v", c.ref, err)
				}
			})
		})
	}
	for _, left := range entriesOf(filepath.Join(b.cache, "tmp")) {
		t.Errorf("left over from an image: %s", left)
	}
}

// toldInTime checks that do returns within a second. On a busy machine it may be slower, but not every time.
func toldInTime(t *testing.T, ask func()) {
	t.Helper()
	noticedInTime(t, func() time.Time {
		began := time.Now()
		ask()
		return began
	})
}

// noticedInTime is toldInTime for an event that do has to cause first. The time is measured from that event.
func noticedInTime(t *testing.T, ask func() (happened time.Time)) {
	t.Helper()
	var took time.Duration
	for range 5 {
		if took = time.Since(ask()); took <= time.Second || t.Failed() {
			return
		}
	}
	t.Errorf("it took %s", took)
}
