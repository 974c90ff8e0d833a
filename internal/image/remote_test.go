package image

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// TestATagKeepsItsMeaning checks that a tag keeps the digest that it had when it was first pulled.
func TestATagKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	s, reg := newStore(t), newRegistry(t)
	first := makeImage(t, "", makeLayer(t, file("version", "1")))
	second := makeImage(t, "", makeLayer(t, file("version", "2")))
	ref := reg.push(t, "moving:tag", first)
	get := func(ref string) string {
		t.Helper()
		img, err := s.Get(t.Context(), ref, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return img.Digest
	}
	one, two := digestOf(t, first), digestOf(t, second)
	if get(ref) != one {
		t.Error("first pull")
	}
	reg.push(t, "moving:tag", second)
	if get(ref) != one {
		t.Error("what the cache knows is asked for again")
	}
	if get(reg.host+"/moving@"+two) != two {
		t.Error("the new image has not been pulled")
	}
}

func TestBadReferences(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	rootfs := filepath.Join(t.TempDir(), "rootfs.tar")
	gz := filepath.Join(t.TempDir(), "image.tar")
	text := filepath.Join(t.TempDir(), "text.tar")
	fifo := t.TempDir() + "/none"
	two := filepath.Join(t.TempDir(), "two.tar")
	for f, content := range map[string][]byte{rootfs: makeTar(t, file("bin/sh", "x")), gz: []byte("\x1f\x8b\x08rest"), text: []byte(strings.Repeat("not a tar archive ", 100))} {
		if err := os.WriteFile(f, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeTwo(t, two)
	for ref, want := range map[string]struct {
		kind  v1.Code
		words string
	}{
		"":                   {Invalid, "empty"},
		"UPPER/case":         {Invalid, "registry/name:tag"},
		"a b":                {Invalid, ""},
		"x\ny":               {Invalid, ""},
		"oci:":               {Invalid, ""},
		"name@sha256:1234":   {Invalid, ""},
		"/no/such/image.tar": {NotFound, "/no/such/image.tar"},
		"oci:" + fifo:        {NotFound, fifo},
		rootfs:               {Invalid, "docker import"},
		gz:                   {Invalid, "gunzip"},
		text:                 {Corrupt, "tar"},
		t.TempDir():          {Invalid, "index.json"},
		"/dev/null":          {Invalid, "neither"},
		two:                  {Invalid, "one:v1, two:v1"},
		two + ":three:v1":    {NotFound, "one:v1"},
		writeLayout(t, hello(t, ""), "v1") + ":v2": {NotFound, "only v1"},
	} {
		_, err := s.Get(t.Context(), ref, Options{})
		var e *v1.Error
		if !errors.As(err, &e) || e.Code != want.kind || !strings.Contains(err.Error(), want.words) {
			t.Errorf("Get(%q): %v; want %s saying %q", ref, err, want.kind, want.words)
		}
	}
	if _, err := s.Get(t.Context(), two+":two:v1", Options{}); err != nil {
		t.Errorf("the second of two images: %v", err)
	}
}

func TestRegistryErrors(t *testing.T) {
	t.Parallel()
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	_, err := s.Get(t.Context(), reg.host+"/hello:v2", Options{})
	wantKind(t, err, NotFound, "check name and tag")
	_, err = s.Get(t.Context(), reg.host+"/nobody/nothing:v1", Options{})
	wantKind(t, err, NotFound)

	// A port on which no program listens.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	_, err = s.Get(t.Context(), nobody+"/hello:v1", Options{})
	wantKind(t, err, Unreachable, nobody)

	for status, kind := range map[int]v1.Code{401: Denied, 403: Denied, 429: Unreachable, 503: Unreachable, 418: Unreachable} {
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.WriteHeader(status)
			return true
		})
		_, err := s.Get(t.Context(), ref, Options{})
		if v1.CodeOf(err) != kind {
			t.Errorf("status %d: %v, want %s", status, err, kind)
		}
		if kind == Denied {
			wantKind(t, err, Denied, "or the image does not exist", "docker login "+reg.host)
		}
	}

	// Content that does not match the digest.
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		io.WriteString(w, `{"architecture":"evil"}`)
		return true
	})
	_, err = s.Get(t.Context(), ref, Options{})
	wantKind(t, err, Corrupt)

	// A registry that never answers is stopped by the caller's deadline, and by a cancelled context.
	release := make(chan struct{})
	defer close(release)
	hang := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	}
	reg.intercept(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Get(ctx, ref, Options{})
	wantKind(t, err, Unreachable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v hides the deadline", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = s.Get(ctx, ref, Options{})
	var e *v1.Error
	if !errors.Is(err, context.Canceled) || errors.As(err, &e) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestStalledDownload stops sending in the middle of a layer.
func TestStalledDownload(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	release := make(chan struct{})
	defer close(release)
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "{")
		w.(http.Flusher).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	})
	parsed, err := parseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	r, closeIdle, err := openRegistry(parsed.registry)
	if err != nil {
		t.Fatal(err)
	}
	defer closeIdle()
	f, err := r.find(t.Context(), parsed.registry, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	r.stall = 50 * time.Millisecond // short only now, because on a busy machine an answer may take longer
	_, _, _, err = f.details(t.Context(), runtime.GOARCH)
	if v1.CodeOf(err) != Unreachable || !strings.Contains(err.Error(), "sent nothing") {
		t.Errorf("error %v", err)
	}
}

// TestForeignURLsAreNotFollowed uses a manifest with a URL of another server.
func TestForeignURLsAreNotFollowed(t *testing.T) {
	t.Parallel()
	trap := newRegistry(t)
	visited := false
	trap.intercept(func(http.ResponseWriter, *http.Request) bool { visited = true; return false })
	reg := newRegistry(t)
	img := hello(t, "")
	layers, _ := img.Layers()
	img, err := mutate.Append(makeImage(t, ""), mutate.Addendum{Layer: layers[0], URLs: []string{trap.URL + "/layer"}})
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, "foreign:v1", img)
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		d, _ := layers[0].Digest()
		if strings.HasSuffix(r.URL.Path, d.String()) {
			http.NotFound(w, r)
			return true
		}
		return false
	})
	_, err = newStore(t).Get(t.Context(), ref, Options{})
	wantKind(t, err, NotFound)
	if visited {
		t.Error("the manifest sent us to another server")
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, d := range []string{"usr/bin", "a/b"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"bin": "usr/bin", "abs": "/usr", "up": "../../../usr", "a/b/top": "/", "loop": "loop", "a/two": "../abs/bin", "usr/bin/python": "/usr/bin/python3"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"": ".", "/": ".", "../..": ".", "/bin/sh": "usr/bin/sh", "abs/bin/x": "usr/bin/x", "up/bin": "usr/bin", "a/b/top/a/two/y": "usr/bin/y",
		"none/../bin/z": "usr/bin/z", "/usr/bin/python": "usr/bin/python3", "a/b/../../../../bin": "usr/bin",
	} {
		if got, err := resolve(root, name); err != nil || got != want {
			t.Errorf("resolve(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := resolve(root, "loop/x"); err == nil {
		t.Errorf("a loop resolved to %q", got)
	}
}
