package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	api "github.com/recluse-dev/recluse/api/v1"
)

func otherArch() string {
	if runtime.GOARCH == "s390x" {
		return "amd64"
	}
	return "s390x"
}

// wantKind checks the code of an error, and that its text contains the words and the operation.
func wantKind(t *testing.T, err error, kind api.Code, words ...string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != kind {
		t.Fatalf("error %v, want kind %s", err, kind)
	}
	for _, w := range append(words, "get image ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestGetFromEverywhere(t *testing.T) {
	t.Parallel()
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
			if got.RootFS != filepath.Join(s.Dir, "images", strings.TrimPrefix(got.Digest, "sha256:"), "rootfs") {
				t.Errorf("image %+v", got)
			}
			if c := got.Config; !slices.Equal(c.Env, []string{"A=b"}) || c.WorkingDir != "/w" {
				t.Errorf("config %+v", c)
			}
			last := seen[len(seen)-2]
			if seen[0].Phase != PhaseResolve || seen[len(seen)-1].Phase != PhaseDone || last.Phase != PhaseUnpack || last.Bytes != last.Total || last.Total == 0 {
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
	t.Parallel()
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
	t.Parallel()
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

	// The second time, a layout without its layers is enough, and also an archive whose layers are overwritten.
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

func TestIndexChoosesThisMachine(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

func TestZstdLayers(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// TestDiffIDIsChecked uses a layer whose compressed bytes match the manifest, and whose content does not match the
// config.
func TestDiffIDIsChecked(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	big := makeImage(t, "", makeLayer(t, file("zeros", strings.Repeat("\x00", 4<<20))))
	many := makeImage(t, "", makeLayer(t, file("a/b/c/d/e", "")), makeLayer(t, file("f", "")))
	// A long tail after the end of the archive contains no files, but counts for the limit.
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
			wantKind(t, err, TooLarge, "raise the limit")
			if left := tree(t, filepath.Join(s.Dir, "tmp")); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// childEnv makes a process of the test binary get an image and print its root.
const childEnv = "RECLUSE_IMAGE_TEST_CHILD"

func childMain() {
	s := &Store{Dir: os.Args[1], NoSync: true}
	img, err := s.Get(context.Background(), os.Args[2], Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(img.RootFS)
	if len(os.Args) > 3 { // and remove it again
		if err := s.discard(strings.TrimPrefix(img.Digest, digestPrefix)); err != nil {
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

func TestAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("there.tar", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"":                      "",
		"python:3.12-slim":      "python:3.12-slim",
		"oci://registry/x":      "oci://registry/x",
		"tar:":                  "tar:",
		"tar:/a/b.tar":          "tar:/a/b.tar",
		"tar:b.tar":             "tar:" + here + "/b.tar",
		"oci:dir:tag":           "oci:" + here + "/dir:tag",
		"docker-archive:../a/b": "docker-archive:" + filepath.Join(here, "../a/b"),
		"./dir":                 here + "/dir",
		"there.tar":             here + "/there.tar",
		"missing.tar":           "missing.tar",
	} {
		if got, err := Absolute(ref); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", ref, got, err, want)
		}
	}
}
