package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func otherArch() string {
	if runtime.GOARCH == "s390x" {
		return "amd64"
	}
	return "s390x"
}

// wantKind checks an error's kind and that its words name the reference.
func wantKind(t *testing.T, err error, kind Kind, words ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind || !errors.Is(err, kind) {
		t.Fatalf("error %v, want kind %s", err, kind)
	}
	for _, w := range append(words, e.Ref) {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestGetFromEverywhere(t *testing.T) {
	img := hello(t, "")
	reg := newRegistry(t)
	tag := reg.push(t, "some/hello:v1", img)
	archive, lay := save(t, img, "some/hello:v1"), writeLayout(t, img, "v1")
	for what, ref := range map[string]string{
		"registry tag":            tag,
		"registry with scheme":    "docker://" + tag,
		"registry digest":         reg.host + "/some/hello@" + digestOf(t, img),
		"docker archive":          "tar:" + archive,
		"docker archive with tag": "tar:" + archive + ":some/hello:v1",
		"docker archive by path":  archive,
		"layout":                  "oci:" + lay,
		"layout with tag":         "oci:" + lay + ":v1",
		"layout by path":          lay,
		"OCI archive":             "oci-archive:" + pack(t, lay),
		"OCI archive by path":     pack(t, lay),
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(t)
			var seen []Progress
			got, err := s.Get(t.Context(), ref, Options{Progress: func(p Progress) { seen = append(seen, p) }})
			if err != nil {
				t.Fatal(err)
			}
			if tr := tree(t, got.RootFS); tr != helloTree {
				t.Errorf("unpacked:\n%s", tr)
			}
			if !strings.Contains(what, "docker archive") && got.Digest != digestOf(t, img) {
				t.Errorf("digest %s", got.Digest)
			}
			if got.RootFS != filepath.Join(s.Dir, "images", strings.TrimPrefix(got.Digest, "sha256:"), "rootfs") || got.Ref != ref {
				t.Errorf("image %+v", got)
			}
			c := got.Config
			if fmt.Sprintln(c.Env, c.WorkingDir, c.User, c.Entrypoint, c.Cmd) != "[A=b] /w 1000:1000 [/e] [c]\n" {
				t.Errorf("config %+v", c)
			}
			last := seen[len(seen)-2]
			if seen[0].Phase != PhaseResolve || seen[len(seen)-1].Phase != PhaseDone || last.Phase != PhaseUnpack || last.Layer != 2 || last.Layers != 2 || last.Bytes != last.Total || last.Total == 0 {
				t.Errorf("progress %+v", seen)
			}
			left, _ := os.ReadDir(filepath.Join(s.Dir, "tmp"))
			if len(left) != 0 {
				t.Errorf("left in tmp: %v", left)
			}
		})
	}
}

func TestHardLinksShareAndTimesStay(t *testing.T) {
	got, err := newStore(t).Get(t.Context(), writeLayout(t, hello(t, ""), "x"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, err1 := os.Stat(filepath.Join(got.RootFS, "usr/bin/sh"))
	b, err2 := os.Stat(filepath.Join(got.RootFS, "usr/bin/bash"))
	d, err3 := os.Stat(filepath.Join(got.RootFS, "usr/bin"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(a, b) {
		t.Error("the hard link became a copy")
	}
	if !a.ModTime().Equal(someTime) || !d.ModTime().Equal(someTime) {
		t.Errorf("times %v and %v, want %v", a.ModTime(), d.ModTime(), someTime)
	}
}

func TestSecondUseReadsNoLayers(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	for range 2 {
		if _, err := s.Get(t.Context(), ref, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := reg.blobs.Load(); n != 3 { // one config, two layers
		t.Errorf("%d blobs were fetched", n)
	}
	reg.Close()
	if _, err := s.Get(t.Context(), ref, Options{}); err != nil {
		t.Errorf("without the registry: %v", err)
	}

	// A layout without its layers is enough the second time, and so is an archive with its layers overwritten.
	lay := writeLayout(t, makeImage(t, "", makeLayer(t, file("layout", "x"))), "v1")
	if _, err := s.Get(t.Context(), lay, Options{}); err != nil {
		t.Fatal(err)
	}
	blobs, _ := filepath.Glob(filepath.Join(lay, "blobs/sha256/*"))
	for _, b := range blobs {
		if raw, _ := os.ReadFile(b); raw[0] != '{' {
			os.Remove(b)
		}
	}
	if _, err := s.Get(t.Context(), lay, Options{}); err != nil {
		t.Errorf("layout: %v", err)
	}
}

func TestPullPolicies(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	first := makeImage(t, "", makeLayer(t, file("version", "1")))
	second := makeImage(t, "", makeLayer(t, file("version", "2")))
	ref := reg.push(t, "moving:tag", first)
	_, err := s.Get(t.Context(), ref, Options{Pull: PullNever})
	wantKind(t, err, NotFound, "never")
	get := func(p Pull) string {
		t.Helper()
		img, err := s.Get(t.Context(), ref, Options{Pull: p})
		if err != nil {
			t.Fatal(err)
		}
		return img.Digest
	}
	one, two := digestOf(t, first), digestOf(t, second)
	if get("") != one {
		t.Error("first pull")
	}
	reg.push(t, "moving:tag", second)
	if get(PullMissing) != one || get(PullNever) != one {
		t.Error("missing and never must keep what the cache knows")
	}
	if get(PullAlways) != two || get(PullNever) != two {
		t.Error("always must follow the tag")
	}
	_, err = s.Get(t.Context(), ref, Options{Pull: "sometimes"})
	wantKind(t, err, Invalid, "sometimes")
}

func TestIndexChoosesThisMachine(t *testing.T) {
	reg := newRegistry(t)
	mine, other := hello(t, ""), hello(t, otherArch())
	add := func(idx v1.ImageIndex, img v1.Image, p v1.Platform) v1.ImageIndex {
		return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}})
	}
	idx := add(empty.Index, other, v1.Platform{OS: "linux", Architecture: otherArch()})
	onlyOther := reg.push(t, "multi:other", idx)
	idx = add(idx, makeImage(t, "", makeLayer(t, file("x", "v9"))), v1.Platform{OS: "linux", Architecture: runtime.GOARCH, Variant: "v9"})
	idx = add(idx, mine, v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	idx = add(idx, makeImage(t, "", makeLayer(t, file("x", "win"))), v1.Platform{OS: "windows", Architecture: runtime.GOARCH})
	ref := reg.push(t, "multi:all", idx)

	s := newStore(t)
	for _, r := range []string{ref, reg.host + "/multi@" + digestOf(t, idx)} {
		got, err := s.Get(t.Context(), r, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != digestOf(t, mine) {
			t.Errorf("%s: chose %s", r, got.Digest)
		}
	}
	got, err := s.Get(t.Context(), ref, Options{Arch: otherArch()})
	if err != nil || got.Digest != digestOf(t, other) {
		t.Errorf("the cache mixes architectures up: %v, %v", got, err)
	}
	_, err = s.Get(t.Context(), onlyOther, Options{})
	wantKind(t, err, Arch, runtime.GOARCH, otherArch())
}

func TestWrongArchitecture(t *testing.T) {
	img := hello(t, otherArch())
	s := newStore(t)
	for what, ref := range map[string]string{
		"registry": newRegistry(t).push(t, "wrong:v1", img), "archive": save(t, img, "wrong:v1"), "layout": writeLayout(t, img, "v1"),
	} {
		t.Run(what, func(t *testing.T) {
			_, err := s.Get(t.Context(), ref, Options{})
			wantKind(t, err, Arch, "linux/"+otherArch())
		})
	}
}

func TestBadReferences(t *testing.T) {
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
		kind  Kind
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
		var e *Error
		if !errors.As(err, &e) || e.Kind != want.kind || !strings.Contains(err.Error(), want.words) {
			t.Errorf("Get(%q): %v; want %s saying %q", ref, err, want.kind, want.words)
		}
	}
	if _, err := s.Get(t.Context(), two+":two:v1", Options{}); err != nil {
		t.Errorf("the second of two images: %v", err)
	}
}

func TestRegistryErrors(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	_, err := s.Get(t.Context(), reg.host+"/hello:v2", Options{})
	wantKind(t, err, NotFound, "check name and tag")
	_, err = s.Get(t.Context(), reg.host+"/nobody/nothing:v1", Options{})
	wantKind(t, err, NotFound)

	// A port on which nobody listens.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	_, err = s.Get(t.Context(), nobody+"/hello:v1", Options{})
	wantKind(t, err, Unreachable, nobody)

	for status, kind := range map[int]Kind{401: Denied, 403: Denied, 429: Unreachable, 503: Unreachable, 418: Unreachable} {
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.WriteHeader(status)
			return true
		})
		_, err := s.Get(t.Context(), ref, Options{})
		if !errors.Is(err, kind) {
			t.Errorf("status %d: %v, want %s", status, err, kind)
		}
		if kind == Denied {
			wantKind(t, err, Denied, "or does not exist", "docker login "+reg.host)
		}
	}

	// Something else than what the digest promises.
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
	var e *Error
	if !errors.Is(err, context.Canceled) || errors.As(err, &e) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestStalledDownload stops sending in the middle of a layer.
func TestStalledDownload(t *testing.T) {
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
	parsed, err := parseReference(ref, false)
	if err != nil {
		t.Fatal(err)
	}
	r, closeIdle, err := openRegistry(parsed.registry, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeIdle()
	r.stall = 50 * time.Millisecond
	f, err := r.find(t.Context(), parsed.registry, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _, err = f.details(t.Context(), runtime.GOARCH)
	if !errors.Is(err, Unreachable) || !strings.Contains(err.Error(), "sent nothing") {
		t.Errorf("error %v", err)
	}
}

// TestForeignURLsAreNotFollowed lets a manifest point to another server.
func TestForeignURLsAreNotFollowed(t *testing.T) {
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

func TestZstdLayers(t *testing.T) {
	raw := makeTar(t, file("z", strings.Repeat("zstd", 10000)))
	img := makeImage(t, "", rawLayer(t, raw, tarball.WithCompression(compression.ZStd)))
	got, err := newStore(t).Get(t.Context(), writeLayout(t, img, "z"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(got.RootFS, "z")); err != nil || st.Size() != 40000 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestCorruptImages(t *testing.T) {
	img := makeImage(t, "", makeLayer(t, file("a", strings.Repeat("some text that compresses ", 1000))), makeLayer(t, file("b", "second")))
	manifest, _ := img.Manifest()
	layer := "blobs/sha256/" + manifest.Layers[0].Digest.Hex
	config := "blobs/sha256/" + manifest.Config.Digest.Hex
	digest, _ := img.Digest()
	change := func(name string, f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			file := filepath.Join(dir, name)
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, f(raw), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(i int) func([]byte) []byte {
		return func(b []byte) []byte { b[(i+len(b))%len(b)] ^= 1; return b }
	}
	other := rawBlob(t, makeLayer(t, file("a", "other")))
	for what, damage := range map[string]func(*testing.T, string){
		"bit in the layer's middle": change(layer, flip(200)),
		"bit in the layer's end":    change(layer, flip(-1)),
		"bit in the layer's head":   change(layer, flip(5)),
		"layer cut":                 change(layer, func(b []byte) []byte { return b[:len(b)/2] }),
		"layer grown":               change(layer, func(b []byte) []byte { return append(b, b...) }),
		"layer empty":               change(layer, func([]byte) []byte { return nil }),
		"layer exchanged":           change(layer, func([]byte) []byte { return other }),
		"layer missing":             func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, layer)) },
		"config changed":            change(config, flip(20)),
		"config missing":            func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, config)) },
		"manifest changed":          change("blobs/sha256/"+digest.Hex, flip(30)),
		"index is no JSON":          change("index.json", func(b []byte) []byte { return b[:20] }),
		"digest is a path": change("index.json", func(b []byte) []byte {
			return []byte(strings.ReplaceAll(string(b), digest.Hex, "../../../../../../../../../../../../../../../../../../../etc/passwd"[:64]))
		}),
	} {
		t.Run(what, func(t *testing.T) {
			dir := writeLayout(t, img, "v1")
			damage(t, dir)
			s := newStore(t)
			for _, ref := range []string{dir, pack(t, dir)} {
				_, err := s.Get(t.Context(), ref, Options{})
				wantKind(t, err, Corrupt)
			}
			if left := tree(t, filepath.Join(s.Dir, "images")) + tree(t, filepath.Join(s.Dir, "tmp")); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// TestDiffIDIsChecked has a layer whose compressed bytes are as promised and whose content is not what the config says.
func TestDiffIDIsChecked(t *testing.T) {
	img := makeImage(t, "", makeLayer(t, file("a", "good")))
	cfg, _ := img.ConfigFile()
	cfg = cfg.DeepCopy()
	cfg.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	dir := writeLayout(t, img, "v1")
	rawCfg, _ := json.Marshal(cfg)
	m, _ := img.Manifest()
	m = m.DeepCopy()
	m.Config.Digest, m.Config.Size = hashOf(rawCfg), int64(len(rawCfg))
	rawManifest, _ := json.Marshal(m)
	index, _ := os.ReadFile(filepath.Join(dir, "index.json"))
	old := strings.TrimPrefix(digestOf(t, img), "sha256:")
	for name, raw := range map[string][]byte{
		"blobs/sha256/" + hashOf(rawCfg).Hex:      rawCfg,
		"blobs/sha256/" + hashOf(rawManifest).Hex: rawManifest,
		"index.json": []byte(strings.ReplaceAll(string(index), old, hashOf(rawManifest).Hex)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := newStore(t).Get(t.Context(), dir, Options{})
	wantKind(t, err, Corrupt, "layer 1 of 1", "content has digest")
}

func TestCaps(t *testing.T) {
	big := makeImage(t, "", makeLayer(t, file("zeros", strings.Repeat("\x00", 4<<20))))
	many := makeImage(t, "", makeLayer(t, file("a/b/c/d/e", "")), makeLayer(t, file("f", "")))
	// A long tail behind the archive's end unpacks to nothing and costs all the same.
	tail := makeImage(t, "", rawLayer(t, append(makeTar(t, file("a", "")), make([]byte, 4<<20)...)))
	for what, tc := range map[string]struct {
		img  v1.Image
		opts Options
		ok   bool
	}{
		"bytes":          {big, Options{MaxBytes: 1 << 20}, false},
		"entries":        {many, Options{MaxEntries: 5}, false},
		"tail":           {tail, Options{MaxBytes: 1 << 20}, false},
		"bytes enough":   {big, Options{MaxBytes: 5 << 20}, true},
		"entries enough": {many, Options{MaxEntries: 6}, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Get(t.Context(), writeLayout(t, tc.img, "v1"), tc.opts)
			if tc.ok {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantKind(t, err, TooLarge, "raise the cap")
			if left := tree(t, filepath.Join(s.Dir, "tmp")); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

func TestConcurrentGets(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			own := &Store{Dir: s.Dir, NoSync: true} // as another process would have
			img, err := own.Get(t.Context(), ref, Options{Pull: PullAlways})
			if err != nil {
				t.Error(err)
				return
			}
			if tr := tree(t, img.RootFS); tr != helloTree {
				t.Errorf("unpacked:\n%s", tr)
			}
		})
	}
	wg.Wait()
	if n := reg.blobs.Load(); n != 3 {
		t.Errorf("%d blobs were fetched, want each once", n)
	}
}

// childEnv makes the test binary get an image and print its root, as another process.
const childEnv = "RECLUSE_IMAGE_TEST_CHILD"

func childMain() {
	s := &Store{Dir: os.Args[1], NoSync: true}
	img, err := s.Get(context.Background(), os.Args[2], Options{Pull: PullAlways})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(img.RootFS)
	if len(os.Args) > 3 { // and remove it again
		if err := s.Remove(context.Background(), img.Digest); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func child(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	return cmd
}

func TestConcurrentProcesses(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			out, err := child(s.Dir, ref).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
				return
			}
			if tr := tree(t, strings.TrimSpace(string(out))); tr != helloTree {
				t.Errorf("unpacked:\n%s", tr)
			}
		})
	}
	wg.Wait()
	if n := reg.blobs.Load(); n != 3 {
		t.Errorf("%d blobs were fetched, want each once", n)
	}
}

// TestCrashInTheMiddle kills a process while it unpacks; the next one clears up and succeeds.
func TestCrashInTheMiddle(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	img := hello(t, "")
	ref := reg.push(t, "hello:v1", img)
	layers, _ := img.Layers()
	last, _ := layers[1].Digest()
	reached, once := make(chan struct{}), sync.Once{}
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, last.String()) {
			return false
		}
		once.Do(func() { close(reached) })
		<-r.Context().Done()
		return true
	})
	cmd := child(s.Dir, ref)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	if left := tree(t, filepath.Join(s.Dir, "tmp")); !strings.Contains(left, "usr/bin/sh") {
		t.Errorf("the child had not begun:\n%s", left)
	}
	cmd.Process.Kill()
	cmd.Wait()
	reg.intercept(func(http.ResponseWriter, *http.Request) bool { return false })
	if left := tree(t, filepath.Join(s.Dir, "images")); left != "" {
		t.Errorf("half an image is shown:\n%s", left)
	}
	// Another image's Get clears up too.
	if _, err := s.Get(t.Context(), reg.push(t, "other:v1", makeImage(t, "", makeLayer(t, file("x", "")))), Options{}); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, filepath.Join(s.Dir, "tmp")); left != "" {
		t.Errorf("left in tmp:\n%s", left)
	}
	if _, err := s.Get(t.Context(), ref, Options{}); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedCacheIsMadeAnew(t *testing.T) {
	s := newStore(t)
	lay := writeLayout(t, hello(t, ""), "v1")
	img, err := s.Get(t.Context(), lay, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { return os.WriteFile(filepath.Join(img.dir, "config.json"), []byte("{}"), 0o600) },
		func() error { return os.WriteFile(filepath.Join(img.dir, "manifest.json"), nil, 0o600) },
		func() error { return os.RemoveAll(img.RootFS) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), lay, Options{}); err != nil {
			t.Fatal(err)
		}
		if tr := tree(t, img.RootFS); tr != helloTree {
			t.Errorf("unpacked:\n%s", tr)
		}
	}
}

func TestListHoldRemovePrune(t *testing.T) {
	s, reg := newStore(t), newRegistry(t)
	if infos, err := s.List(t.Context()); err != nil || len(infos) != 0 {
		t.Errorf("an empty cache: %v, %v", infos, err)
	}
	ref := reg.push(t, "hello:v1", hello(t, ""))
	lay := writeLayout(t, makeImage(t, "", makeLayer(t, file("x", "123"))), "v1")
	img, err := s.Get(t.Context(), ref, Options{})
	if err != nil {
		t.Fatal(err)
	}
	small, err := s.Get(t.Context(), lay, Options{})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := s.List(t.Context())
	if err != nil || len(infos) != 2 || infos[0].Digest != small.Digest || infos[0].Bytes != 3 || infos[0].Entries != 1 || infos[0].Refs[0] != "file:"+lay {
		t.Errorf("list %+v, %v", infos, err)
	}

	held, err := img.Hold()
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, s.Remove(t.Context(), ref), InUse)
	removed, err := s.Prune(t.Context(), PruneOptions{UnusedFor: time.Hour})
	if err != nil || len(removed) != 0 {
		t.Errorf("prune removed what was just used: %v, %v", removed, err)
	}
	removed, err = s.Prune(t.Context(), PruneOptions{Keep: func(d string) bool { return d == small.Digest }})
	if err != nil || len(removed) != 0 {
		t.Errorf("prune removed what is kept or held: %v, %v", removed, err)
	}
	removed, err = s.Prune(t.Context(), PruneOptions{})
	if err != nil || len(removed) != 1 || removed[0].Digest != small.Digest {
		t.Errorf("prune: %v, %v", removed, err)
	}
	held.Close()
	if err := s.Remove(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	wantKind(t, s.Remove(t.Context(), ref), NotFound)
	wantKind(t, s.Remove(t.Context(), "sha256:../../x"), NotFound)
	if _, err := img.Hold(); !errors.Is(err, NotFound) {
		t.Errorf("holding a removed image: %v", err)
	}
	for _, dir := range []string{"images", "refs", "locks", "tmp"} {
		if left := tree(t, filepath.Join(s.Dir, dir)); left != "" {
			t.Errorf("left in %s:\n%s", dir, left)
		}
	}
}

func TestCacheNotUsable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, file + "/below"} {
		_, err := (&Store{Dir: dir}).Get(t.Context(), writeLayout(t, hello(t, ""), "v1"), Options{})
		if !errors.Is(err, Cache) {
			t.Errorf("cache in %q: %v", dir, err)
		}
	}
}

func TestResolve(t *testing.T) {
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
		if got, err := Resolve(root, name); err != nil || got != want {
			t.Errorf("Resolve(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := Resolve(root, "loop/x"); err == nil {
		t.Errorf("a loop resolved to %q", got)
	}
}

// writeTwo writes a docker-save archive with two images.
func writeTwo(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one, two := makeImage(t, "", makeLayer(t, fileEntry("1"))), makeImage(t, "", makeLayer(t, fileEntry("2")))
	if err := tarball.MultiWrite(map[name.Tag]v1.Image{name.MustParseReference("one:v1").(name.Tag): one, name.MustParseReference("two:v1").(name.Tag): two}, f); err != nil {
		t.Fatal(err)
	}
}

func fileEntry(name string) entry { return file(name, name) }

func rawBlob(t *testing.T, l v1.Layer) []byte {
	t.Helper()
	r, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
