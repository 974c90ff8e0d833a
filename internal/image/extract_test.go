package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

var update = flag.Bool("update", false, "write the seed corpus of FuzzExtract anew")

// target is a directory to unpack into, beside files that must not change.
type target struct {
	outer, inner string
	root         *os.Root
}

func newTarget(t testing.TB) target {
	t.Helper()
	outer := t.TempDir()
	inner := filepath.Join(outer, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outer, "secret"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return target{outer, inner, root}
}

// check fails the test if files outside have changed, or if something inside is not allowed.
func (tg target) check(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(tg.outer)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("outside: %v", entries)
	}
	secret := filepath.Join(tg.outer, "secret")
	content, err := os.ReadFile(secret)
	info, err2 := os.Stat(secret)
	if err := errors.Join(err, err2); err != nil || string(content) != "untouched" || info.Mode().Perm() != 0o600 {
		t.Fatalf("the secret outside was changed: %q %v %v", content, info, err)
	}
	err = filepath.WalkDir(tg.inner, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if os.SameFile(st, info) {
			t.Errorf("%s is the secret outside", p)
		}
		switch mode := st.Mode(); {
		case mode&(fs.ModeSetuid|fs.ModeSetgid) != 0:
			t.Errorf("%s has mode %v", p, mode)
		case mode.IsDir() && mode&0o700 != 0o700:
			t.Errorf("%s cannot be removed: %v", p, mode)
		case !mode.IsDir() && !mode.IsRegular() && mode&fs.ModeSymlink == 0:
			t.Errorf("%s has type %v", p, mode)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// hostile are attacks by layers, with the expected results. Layers are applied one after the other.
var hostile = []struct {
	name   string
	layers [][]entry
	kind   v1.Code // of the error; empty: no error
	tree   string  // the unpacked files, if there is no error
}{
	{"absolute name", [][]entry{{file("/etc/x", "1")}}, "", "etc/\netc/x 1\n"},
	{"many slashes", [][]entry{{file("///etc//./x", "1")}}, "", "etc/\netc/x 1\n"},
	{"dots inside", [][]entry{{file("a/../b", "1")}}, "", "b 1\n"},
	{"dots to the outside", [][]entry{{file("../secret", "1")}}, Corrupt, ""},
	{"dots to the outside, later", [][]entry{{directory755("a"), file("a/../../secret", "1")}}, Corrupt, ""},
	{"absolute dots", [][]entry{{file("/../secret", "1")}}, Corrupt, ""},
	{"dots as directory", [][]entry{{directory755("..")}}, Corrupt, ""},
	{"symlink parent to the outside", [][]entry{{symlink("out", ".."), file("out/secret", "1")}}, "", "out -> ..\nsecret 1\n"},
	{"absolute symlink parent", [][]entry{{symlink("out", "/"), file("out/secret", "1")}}, "", "out -> /\nsecret 1\n"},
	{"symlink parent of a lower layer", [][]entry{{symlink("out", "../.."), directory755("d")}, {file("out/d/x", "1")}}, "", "d/\nd/x 1\nout -> ../..\n"},
	{"two-step symlink", [][]entry{{directory755("a/b"), symlink("a/b/up", "../.."), symlink("hop", "a/b/up/.."), file("hop/secret", "1")}}, "", "a/\na/b/\na/b/up -> ../..\nhop -> a/b/up/..\nsecret 1\n"},
	{"symlink loop as parent", [][]entry{{symlink("x", "y"), symlink("y", "x"), file("x/f", "1")}}, Corrupt, ""},
	{"symlink bomb", [][]entry{symlinkBomb()}, Corrupt, ""},
	{"write over a symlink", [][]entry{{symlink("x", "../secret"), file("x", "1")}}, "", "x 1\n"},
	{"directory over a symlink", [][]entry{{symlink("x", ".."), directory755("x"), file("x/secret", "1")}}, "", "x/\nx/secret 1\n"},
	{"directory modes through a symlink", [][]entry{{symlink("x", ".."), {dir("x/", 0o777), ""}}}, "", "x/\n"},
	{"dangling symlink parent", [][]entry{{symlink("x", "made/here"), file("x/f", "1")}}, "", "made/\nmade/here/\nmade/here/f 1\nx -> made/here\n"},
	{"parent replaced by a symlink", [][]entry{{directory755("p"), file("p/a", "1"), symlink("p", ".."), file("p/b", "2")}}, "", "b 2\np -> ..\n"},
	{"parent removed through its own symlink", [][]entry{{directory755("x"), symlink("x/up", ".."), file("x/up/x", "file"), file("x/up/y", "1")}}, Corrupt, ""},
	{"hard link to the outside", [][]entry{{hardlink("x", "../secret")}}, Corrupt, ""},
	{"hard link to an absolute name", [][]entry{{hardlink("x", "/etc/passwd")}}, Corrupt, ""},
	{"hard link through a symlink", [][]entry{{symlink("out", ".."), hardlink("x", "out/secret")}}, Corrupt, ""},
	{"hard link to a symlink, then written", [][]entry{{symlink("s", "../secret"), hardlink("x", "s"), file("x", "1")}}, "", "s -> ../secret\nx 1\n"},
	{"hard link to a symlink as parent", [][]entry{{symlink("s", ".."), hardlink("x", "s"), file("x/secret", "1")}}, "", "s -> ..\nsecret 1\nx -> ..\n"},
	{"hard link to a directory", [][]entry{{directory755("d"), hardlink("x", "d")}}, Corrupt, ""},
	{"hard link to nothing", [][]entry{{hardlink("x", "none")}}, Corrupt, ""},
	{"hard link to itself", [][]entry{{file("x", "1"), hardlink("x", "x")}}, "", "x 1\n"},
	{"hard link over its own parent", [][]entry{{file("d/x", "1"), hardlink("d", "d/x")}}, Corrupt, ""},
	{"hard link to the root", [][]entry{{hardlink("x", ".")}}, Corrupt, ""},
	{"written through a hard link", [][]entry{{file("a", "1"), hardlink("b", "a"), file("b", "2")}}, "", "a 1\nb 2\n"},
	{"devices and pipes", [][]entry{{
		{tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3}, ""},
		{tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Mode: 0o666, Devmajor: 8}, ""},
		{tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o666}, ""},
		file("after", "1"),
	}}, "", "after 1\n"},
	{"device over a file", [][]entry{{file("x", "1")}, {{tar.Header{Typeflag: tar.TypeChar, Name: "x"}, ""}}}, "", ""},
	{"setuid, setgid and sticky", [][]entry{{
		{tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o7755}, ""}, {dir("d", 0o7000), ""}, file("d/f", "1"), {dir("none", 0), ""}, file("none/f", "1"),
	}}, "", "d/\nd/f 1\nnone/\nnone/f 1\nsu \n"},
	{"file as parent", [][]entry{{file("x", "1"), file("x/y", "2")}}, Corrupt, ""},
	{"the root as file", [][]entry{{file(".", "")}}, Corrupt, ""},
	{"the root as symlink", [][]entry{{symlink(".", "/")}}, Corrupt, ""},
	{"root modes", [][]entry{{{dir("./", 0), ""}, file("x", "1")}}, "", "x 1\n"},
	{"long name", [][]entry{{file(strings.Repeat("a/", 2500)+"x", "")}}, Corrupt, ""},
	{"deep name", [][]entry{{file(strings.Repeat("a/", 600)+"x", "")}}, Corrupt, ""},
	{"long part", [][]entry{{file(strings.Repeat("a", 300), "")}}, Corrupt, ""},
	{"huge owner", [][]entry{{{tar.Header{Typeflag: tar.TypeReg, Name: "x", Uid: 1000, Gid: 1000}, ""}}}, "", "x \n"},
	{"odd names", [][]entry{{file("a b\n$(id)\"'", "1"), file("\xff\xfe", "2")}}, "", "a b\n$(id)\"' 1\n\xff\xfe 2\n"},

	{"whiteout", [][]entry{{file("d/a", "1"), file("d/b", "2")}, {file("d/.wh.a", "")}}, "", "d/\nd/b 2\n"},
	{"whiteout of a directory", [][]entry{{file("d/e/a", "1")}, {file(".wh.d", "")}}, "", ""},
	{"whiteout and new content", [][]entry{{file("d/a", "1"), file("d/b", "1")}, {file("d/a", "2"), file(".wh.d", "")}}, "", "d/\nd/a 2\n"},
	{"whiteout before new content", [][]entry{{file("d/a", "1"), file("d/b", "1")}, {file(".wh.d", ""), file("d/a", "2")}}, "", "d/\nd/a 2\n"},
	{"opaque first", [][]entry{{file("d/a", "1")}, {file("d/.wh..wh..opq", ""), file("d/b", "2")}}, "", "d/\nd/b 2\n"},
	{"opaque last", [][]entry{{file("d/a", "1"), file("d/s/x", "1")}, {file("d/b", "2"), file("d/s/y", "2"), file("d/.wh..wh..opq", "")}}, "", "d/\nd/b 2\nd/s/\nd/s/y 2\n"},
	{"opaque root", [][]entry{{file("a", "1")}, {file("b", "2"), file(".wh..wh..opq", "")}}, "", "b 2\n"},
	{"whiteout of the parent", [][]entry{{file("d/a", "1"), file("d/.wh...", "")}}, Corrupt, ""},
	{"whiteout of itself", [][]entry{{file("d/a", "1"), file("d/.wh..", "")}}, Corrupt, ""},
	{"whiteout of no name", [][]entry{{file("d/a", "1"), file("d/.wh.", "")}}, Corrupt, ""},
	{"whiteout through a symlink", [][]entry{{symlink("out", ".."), file("out/.wh.secret", ""), file("out/.wh..wh..opq", "")}}, "", "out -> ..\n"},
	{"whiteout of a symlink", [][]entry{{symlink("s", "../secret")}, {file(".wh.s", "")}}, "", ""},
	{"opaque over a symlink out", [][]entry{{symlink("d/s", "../..")}, {file("d/.wh..wh..opq", "")}}, "", "d/\n"},
	{"whiteout in nothing", [][]entry{{file("none/.wh.a", ""), file("none/.wh..wh..opq", "")}}, "", ""},
	{"AUFS bookkeeping", [][]entry{{file(".wh..wh.plnk/1.2", ""), file(".wh..wh.aufs", "")}}, "", ".wh..wh.plnk/\n.wh..wh.plnk/1.2 \n"},
}

// symlinkBomb has few links, but resolving them all would take an extreme number of steps.
func symlinkBomb() []entry {
	bomb := []entry{directory755("d"), symlink("l0", "d")}
	for i := 1; i < 20; i++ {
		bomb = append(bomb, symlink(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d/../l%d/../l%d", i-1, i-1, i-1)))
	}
	return append(bomb, file("l19/x", ""))
}

func TestHostileLayers(t *testing.T) {
	t.Parallel()
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			tg := newTarget(t)
			x := newExtractor(tg.root, 1<<20, 10000)
			var err error
			for _, entries := range tc.layers {
				if err = x.apply(t.Context(), bytes.NewReader(makeTar(t, entries...))); err != nil {
					break
				}
			}
			x.finish()
			tg.check(t)
			if tc.kind != "" {
				if v1.CodeOf(err) != tc.kind {
					t.Fatalf("error %v, want %s", err, tc.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := tree(t, tg.inner); got != tc.tree {
				t.Errorf("unpacked:\n%s\nwant:\n%s", got, tc.tree)
			}
		})
	}
}

// rawHostile are invalid layers that no tar writer makes.
func rawHostile(t testing.TB) map[string][]byte {
	good := makeTar(t, file("a", strings.Repeat("x", 2000)))
	big := makeTar(t, file("a", ""))
	patchSize(big, "77777777777")
	base256 := makeTar(t, file("a", ""))
	copy(base256[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff")
	fixSum(base256)
	negative := makeTar(t, file("a", ""))
	copy(negative[124:136], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	fixSum(negative)
	return map[string][]byte{
		"cut in the header":    good[:300],
		"cut in the content":   good[:1000],
		"size too large":       big,
		"size beyond all":      base256,
		"negative size":        negative,
		"wrong checksum":       append([]byte("b"), good[1:]...),
		"sparse file of 1 TiB": sparse(t),
		"noise":                bytes.Repeat([]byte("noise"), 500),
	}
}

func patchSize(raw []byte, octal string) {
	copy(raw[124:136], octal+"\x00")
	fixSum(raw)
}

// fixSum corrects the checksum of a header.
func fixSum(raw []byte) {
	copy(raw[148:156], "        ")
	sum := 0
	for _, b := range raw[:512] {
		sum += int(b)
	}
	copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// sparse returns a small archive with a huge sparse file, in the old GNU format.
func sparse(t testing.TB) []byte {
	raw := makeTar(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "hole", Mode: 0o644, Format: tar.FormatGNU}, ""})
	raw[156] = tar.TypeGNUSparse
	copy(raw[386:], "20000000000\x00")                                     // the map's first entry: offset
	copy(raw[398:], "00000000000\x00")                                     // and length
	copy(raw[483:495], "\x80\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00") // real size, 1 TiB
	copy(raw[386:398], "\x80\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00")
	fixSum(raw)
	return raw
}

func TestHostileBytes(t *testing.T) {
	t.Parallel()
	for name, raw := range rawHostile(t) {
		t.Run(name, func(t *testing.T) {
			tg := newTarget(t)
			x := newExtractor(tg.root, 1<<20, 10000)
			err := x.apply(t.Context(), bytes.NewReader(raw))
			x.finish()
			tg.check(t)
			want := Corrupt
			if strings.HasPrefix(name, "si") && name != "negative size" || strings.HasPrefix(name, "sparse") {
				want = TooLarge
			}
			if v1.CodeOf(err) != want {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

// TestManyMarkers checks that the cost of whiteouts does not grow with the square of their number.
func TestManyMarkers(t *testing.T) {
	t.Parallel()
	markers := 2000
	if testing.Short() {
		markers = 200
	}
	tg := newTarget(t)
	x := newExtractor(tg.root, 1<<20, 100_000)
	var entries []entry
	for i := range markers {
		entries = append(entries, file(fmt.Sprintf("d/%d", i), ""), file("d/.wh..wh..opq", ""), file(".wh.d", ""))
	}
	if err := x.apply(t.Context(), bytes.NewReader(makeTar(t, entries...))); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(tree(t, tg.inner), "\n"); got != markers+1 {
		t.Errorf("%d entries", got)
	}
}

func TestModesWhateverTheUmask(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	x := newExtractor(tg.root, 1<<20, 100)
	if err := x.apply(t.Context(), bytes.NewReader(makeTar(t, file("implied/x", ""), entry{dir("tmp", 0o1777), ""}, entry{tar.Header{Typeflag: tar.TypeReg, Name: "all", Mode: 0o777}, ""}))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"implied": fs.ModeDir | 0o755, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "all": 0o777} {
		if st, err := os.Stat(filepath.Join(tg.inner, name)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
}

func TestCancelledExtraction(t *testing.T) {
	t.Parallel()
	tg := newTarget(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := newExtractor(tg.root, 1<<20, 100).apply(ctx, bytes.NewReader(makeTar(t, file("x", ""))))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// FuzzExtract applies two layers and searches for changes outside, and for files inside that are not allowed.
func FuzzExtract(f *testing.F) {
	n := 0
	add := func(first, second []byte) {
		f.Add(first, second)
		if !*update {
			return
		}
		content := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n[]byte(%q)\n", first, second)
		file := filepath.Join("testdata", "fuzz", "FuzzExtract", fmt.Sprintf("seed-%02d", n))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			f.Fatal(err)
		}
		n++
	}
	for _, tc := range hostile {
		raw := [][]byte{nil, nil}
		for i, entries := range tc.layers {
			raw[i] = makeTar(f, entries...)
		}
		if len(raw[0])+len(raw[1]) < 10_000 {
			add(raw[0], raw[1])
		}
	}
	for _, raw := range rawHostile(f) {
		f.Add(raw, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		tg := newTarget(t)
		x := newExtractor(tg.root, 1<<20, 200)
		for _, raw := range [][]byte{first, second} {
			if err := x.apply(t.Context(), bytes.NewReader(raw)); err != nil {
				var e *v1.Error
				if !errors.As(err, &e) {
					t.Errorf("error without a kind: %v", err)
				}
				break
			}
		}
		x.finish()
		tg.check(t)
		if x.bytes > 1<<20 {
			t.Errorf("%d bytes written", x.bytes)
		}
	})
}
