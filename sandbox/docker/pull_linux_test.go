package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	api "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	registryUser     = "reader"
	registryPassword = "open sesame" // of a registry that exists only during a test
)

// testRegistry is a registry on this machine that requires a password.
type testRegistry struct {
	host  string
	asked atomic.Int64 // requests for a manifest
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	if engineHost == "" {
		t.Skip("SKIPPED: " + noEngine)
	}
	r := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		if user != registryUser || password != registryPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
			return
		}
		if strings.Contains(req.URL.Path, "/manifests/") {
			r.asked.Add(1)
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// push stores an image that no engine has yet in the registry, and returns its name and the content of its only file.
// The engine removes it at the end of the test.
func (r *testRegistry) push(t *testing.T, repository, arch string) (ref, content string) {
	t.Helper()
	ref = r.host + "/" + repository
	noise := make([]byte, 4<<20) // large enough that the progress of its download is reported
	_, _ = rand.Read(noise)      // never fails
	img, err := mutate.AppendLayers(empty.Image, layer(t, noise))
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img, remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forget(t, ref) })
	return ref, hash(noise)
}

// pushIndex stores a list of images with one entry, for one architecture.
func (r *testRegistry) pushIndex(t *testing.T, repository, of, arch string) string {
	t.Helper()
	auth := []remote.Option{remote.WithContext(t.Context()), remote.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})}
	from, err := name.ParseReference(of, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(from, auth...)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(r.host+"/"+repository, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	list := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	if err := remote.WriteIndex(to, list, auth...); err != nil {
		t.Fatal(err)
	}
	return to.String()
}

// forget removes an image from the engine, if it exists.
func forget(t *testing.T, ref string) {
	t.Helper()
	if docker(t, "images", "-q", ref) != "" {
		docker(t, "rmi", "-f", ref)
	}
}

// imageFile is the only file of an image.
const imageFile = "from-registry"

func layer(t *testing.T, content []byte) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: imageFile, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// login stores credentials like the docker command.
func login(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dockertest.Config(t), "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *testRegistry) auths(user, password string) string {
	return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// helper makes a credential helper of the docker command on PATH, and returns the configuration that names it.
func (r *testRegistry) helper(t *testing.T, script string) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-recluse-test"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return fmt.Sprintf(`{"credHelpers": {%q: "recluse-test"}}`, r.host)
}

// pulled records the progress reports of a pull.
type pulled struct {
	mu   sync.Mutex
	what string // guarded by mu
	last [2]int64
	n    int
}

func (p *pulled) hear(what string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.last, p.n = what, [2]int64{done, total}, p.n+1
}

func TestAnImageIsPulled(t *testing.T) {
	r := newRegistry(t)
	ref, content := r.push(t, "tools/python:1", runtime.GOARCH)
	login(t, r.auths(registryUser, registryPassword))
	use := func(pull Pull, progress func(string, int64, int64)) (string, error) {
		b := newBackend(t, func(o *Options) { o.Pull, o.Progress = pull, progress })
		sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Image: ref})
		if err != nil {
			return "", err
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		// The image has no shell, but the guest can read its files.
		text, err := sb.Files().ReadAll(t.Context(), "/"+imageFile)
		return hash(text), err
	}

	before := r.asked.Load()
	_, err := use(PullNever, nil)
	if api.CodeOf(err) != api.CodeImageNotFound || !strings.Contains(err.Error(), "docker pull "+ref) {
		t.Errorf("never: %v", err)
	}
	if n := r.asked.Load(); n != before {
		t.Errorf("never: the registry was asked %d times", n-before)
	}

	var heard pulled
	if got, err := use(PullMissing, heard.hear); err != nil || got != content {
		t.Fatalf("missing: %q, %v", got, err)
	}
	if r.asked.Load() == before {
		t.Error("missing: the registry was not asked")
	}
	if heard.n == 0 || heard.what != "image "+ref || heard.last[0] <= 0 || heard.last[0] > heard.last[1] {
		t.Errorf("missing: progress reports: %+v", &heard)
	}

	before, heard.n = r.asked.Load(), 0
	for _, p := range []Pull{PullMissing, PullNever} {
		if got, err := use(p, heard.hear); err != nil || got != content {
			t.Errorf("%s with an existing image: %q, %v", p, got, err)
		}
	}
	if n := r.asked.Load(); n != before || heard.n > 0 {
		t.Errorf("existing images: %d requests to the registry, %d progress reports", n-before, heard.n)
	}

	// The tag now belongs to another image, and only one policy checks.
	old := docker(t, "images", "-q", "--no-trunc", ref)
	t.Cleanup(func() { docker(t, "rmi", "-f", old) }) // the old image has no name then
	_, next := r.push(t, "tools/python:1", runtime.GOARCH)
	if got, err := use(PullMissing, nil); err != nil || got != content {
		t.Errorf("missing: another image was pulled: %q, %v", got, err)
	}
	if got, err := use(PullAlways, nil); err != nil || got != next {
		t.Errorf("always: %q, %v, want the new image", got, err)
	}
}

func TestCredentialsAreTakenWhereTheDockerCommandKeepsThem(t *testing.T) {
	r := newRegistry(t)
	answer := fmt.Sprintf(`[ "$1" = get ] && [ "$(cat)" = %s ] && echo '{"Username": %q, "Secret": %q}'`, r.host, registryUser, registryPassword)
	for _, c := range []struct {
		name   string
		config func(t *testing.T) string
		code   api.Code // empty: success
		says   string
	}{
		{"in its file", func(*testing.T) string { return r.auths(registryUser, registryPassword) }, "", ""},
		{"by a helper program", func(t *testing.T) string { return r.helper(t, answer) }, "", ""},
		{"nowhere", func(*testing.T) string { return "{}" }, api.CodeImageDenied, "docker login " + r.host},
		{"a wrong password", func(*testing.T) string { return r.auths(registryUser, "guessed") }, api.CodeImageDenied, "docker login " + r.host},
		{"a helper with a wrong password", func(t *testing.T) string {
			return r.helper(t, `echo '{"Username": "reader", "Secret": "guessed"}'`)
		}, api.CodeImageDenied, "docker login " + r.host},
		{"a helper that knows nothing", func(t *testing.T) string {
			return r.helper(t, `echo 'credentials not found in native keychain'; exit 1`)
		}, api.CodeImageDenied, "docker login " + r.host},
		{"a helper that is broken", func(t *testing.T) string { return r.helper(t, "echo 'the keychain is locked'; exit 1") }, api.CodeImageUnreachable, "docker-credential"},
		{"a helper that is not there", func(*testing.T) string { return fmt.Sprintf(`{"credHelpers": {%q: "recluse-nonesuch"}}`, r.host) }, api.CodeImageUnreachable, "docker-credential"},
		{"a file that is none", func(*testing.T) string { return "auths:" }, api.CodeImageUnreachable, "config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref, _ := r.push(t, "private/"+randomHex(4), runtime.GOARCH)
			login(t, c.config(t))
			b := newBackend(t, func(o *Options) { o.Pull = PullMissing })
			_, err := b.image(t.Context(), ref)
			if api.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q, %v", api.CodeOf(err), err)
			}
			if err != nil && (strings.Contains(err.Error(), "guessed") || strings.Contains(err.Error(), registryPassword)) {
				t.Errorf("the error contains the password: %v", err)
			}
		})
	}
}

func TestImagesThatCannotBePulledAreNamed(t *testing.T) {
	r := newRegistry(t)
	login(t, r.auths(registryUser, registryPassword))
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	ref, _ := r.push(t, "foreign:1", other)
	b := newBackend(t, func(o *Options) { o.Pull = PullMissing })
	for name, c := range map[string]struct {
		image string
		code  api.Code
		says  string
	}{
		"another machine's": {ref, api.CodeImageArch, "use an image for " + runtime.GOARCH},
		"other machines'":   {r.pushIndex(t, "many:1", ref, other), api.CodeImageArch, "use an image for that machine"},
		"no such tag":       {r.host + "/foreign:2", api.CodeImageNotFound, "check its name"},
		"no such image":     {r.host + "/nobody/made-this", api.CodeImageNotFound, "check its name"},
	} {
		if _, err := b.Start(t.Context(), sandbox.Spec{Image: c.image}.WithDefaults()); api.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, api.CodeOf(err), err)
		}
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Start(given, sandbox.Spec{Image: r.host + "/foreign:3"}.WithDefaults()); api.CodeOf(err) != api.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
}
