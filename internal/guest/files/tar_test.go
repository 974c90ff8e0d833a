//go:build linux

package files

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

type tarEntry struct {
	tar.Header
	content string
}

func file(name, content string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

func link(name, target string) tarEntry {
	return tarEntry{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}}
}

func hard(name, target string) tarEntry {
	return tarEntry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}}
}

func folder(name string, mode int64) tarEntry {
	return tarEntry{Header: tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}}
}

func special(name string, flag byte) tarEntry {
	return tarEntry{Header: tar.Header{Name: name, Typeflag: flag, Mode: 0o666, Devmajor: 1, Devminor: 3}}
}

func moded(e tarEntry, mode int64) tarEntry {
	e.Mode = mode
	return e
}

func tarOf(t testing.TB, entries ...tarEntry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.ModTime = time.Unix(1_000_000_000, 0)
		must(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.content)
		must(t, err)
	}
	must(t, w.Close())
	return &b
}

func TestTarIn(t *testing.T) {
	long := strings.Repeat("n", 256)
	for _, c := range []struct {
		name    string
		entries []tarEntry
		opts    TarOptions
		kind    Kind
		check   func(t *testing.T, d string, s Stats)
	}{
		{"files and directories", []tarEntry{folder("./", 0o700), folder("a", 0o555), file("a/b", "b"), file("c/d/e", "e"), link("l", "a/b"), hard("h", "a/b")}, TarOptions{}, "", func(t *testing.T, d string, s Stats) {
			if get(t, d+"/a/b") != "b" || get(t, d+"/c/d/e") != "e" || get(t, d+"/h") != "b" || get(t, d+"/l") != "b" || s.Entries != 5 || s.Bytes != 2 {
				t.Errorf("%+v", s)
			}
			fi, _ := os.Stat(d + "/a")
			if fi.Mode().Perm() != 0o555 || fi.ModTime().Unix() != 1_000_000_000 {
				t.Error(fi.Mode(), fi.ModTime())
			}
		}},
		{"absolute name is taken below", []tarEntry{file("/etc/x", "x")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) { get(t, d+"/etc/x") }},
		{"dot dot", []tarEntry{file("../victim", "x")}, TarOptions{}, Escapes, nil},
		{"dot dot inside", []tarEntry{file("a/../../victim", "x")}, TarOptions{}, Escapes, nil},
		{"directory by dot dot", []tarEntry{folder("..", 0o777)}, TarOptions{}, Escapes, nil},
		{"through an absolute link", []tarEntry{link("l", "OUTSIDE"), file("l/victim", "x")}, TarOptions{}, Escapes, nil},
		{"through a relative link", []tarEntry{link("l", ".."), file("l/victim", "x")}, TarOptions{}, Escapes, nil},
		{"two steps", []tarEntry{folder("a/b", 0o755), link("a/b/up", "../.."), link("l", "a/b/up/.."), file("l/victim", "x")}, TarOptions{}, Escapes, nil},
		{"through a link, inside", []tarEntry{folder("a", 0o755), link("l", "a"), file("l/x", "x")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) { get(t, d+"/a/x") }},
		{"over a link out", []tarEntry{link("l", "OUTSIDE/victim"), file("l", "x")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			if fi, _ := os.Lstat(d + "/l"); !fi.Mode().IsRegular() {
				t.Error("the link was not replaced")
			}
		}},
		{"directory over a link out", []tarEntry{link("l", "OUTSIDE"), folder("l", 0o777), file("l/x", "x")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			if fi, _ := os.Lstat(d + "/l"); !fi.IsDir() {
				t.Error("the link was not replaced")
			}
		}},
		{"hard link out", []tarEntry{hard("h", "../outside/victim"), file("h", "x")}, TarOptions{}, Escapes, nil},
		{"hard link through a link out", []tarEntry{link("l", "OUTSIDE"), hard("h", "l/victim")}, TarOptions{}, Escapes, nil},
		{"hard link to a link out, then written", []tarEntry{link("l", "OUTSIDE/victim"), hard("h", "l"), file("h", "x")}, TarOptions{}, "", nil},
		{"absolute hard link is taken below", []tarEntry{hard("h", "OUTSIDE/victim")}, TarOptions{}, NotFound, nil},
		{"hard link to nothing", []tarEntry{hard("h", "none")}, TarOptions{}, NotFound, nil},
		{"hard link to itself", []tarEntry{file("f", "x"), hard("f", "f")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) { get(t, d+"/f") }},
		{"written hard link leaves the other", []tarEntry{file("f", "old"), hard("h", "f"), file("h", "new")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			if get(t, d+"/f") != "old" || get(t, d+"/h") != "new" {
				t.Error("wrote through a link")
			}
		}},
		{"setuid, setgid and sticky", []tarEntry{moded(file("f", "x"), 0o6755), folder("d", 0o3777)}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			f, _ := os.Stat(d + "/f")
			g, _ := os.Stat(d + "/d")
			if f.Mode() != 0o755 || g.Mode() != 0o777|fs.ModeDir {
				t.Error(f.Mode(), g.Mode())
			}
		}},
		{"devices and FIFOs", []tarEntry{special("c", tar.TypeChar), special("b", tar.TypeBlock), special("p", tar.TypeFifo), file("f", "x")}, TarOptions{}, "", func(t *testing.T, d string, s Stats) {
			only(t, d, "f")
			if !slices.Equal(s.Skipped, []Note{{"c", "device"}, {"b", "device"}, {"p", "fifo"}}) || s.SkippedCount != 3 {
				t.Errorf("%+v", s)
			}
		}},
		{"under a file", []tarEntry{file("f", "x"), file("f/x", "x")}, TarOptions{}, NotDir, nil},
		{"file over a full directory", []tarEntry{file("d/x", "x"), file("d", "x")}, TarOptions{}, NotEmpty, nil},
		{"duplicates: the last one counts", []tarEntry{file("f", "1"), file("f", "22"), file("f", "3")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			if get(t, d+"/f") != "3" {
				t.Error(get(t, d+"/f"))
			}
		}},
		{"exclusive", []tarEntry{folder("d", 0o755), folder("d", 0o755), file("f", "1"), file("f", "2")}, TarOptions{Exclusive: true}, Exists, nil},
		{"strange names", []tarEntry{file("new\nline", "x"), file("\xff\xfe", "x"), file("$(x)'\"", "x")}, TarOptions{}, "", func(t *testing.T, d string, _ Stats) {
			only(t, d, "new\nline", "\xff\xfe", "$(x)'\"")
		}},
		{"long name", []tarEntry{file(long, "x")}, TarOptions{}, Invalid, nil},
		{"long path", []tarEntry{file(strings.Repeat("d/", 3000)+"f", "x")}, TarOptions{}, Invalid, nil},
		{"long link target", []tarEntry{link("l", strings.Repeat("d/", 3000))}, TarOptions{}, Invalid, nil},
		{"too many bytes", []tarEntry{file("a", "12345"), file("b", "12345")}, TarOptions{MaxBytes: 9}, TooLarge, func(t *testing.T, d string, _ Stats) { only(t, d, "a") }},
		{"too many entries", []tarEntry{file("a", ""), special("b", tar.TypeFifo), file("c", "")}, TarOptions{MaxEntries: 2}, TooMany, nil},
		{"file named as the directory itself", []tarEntry{file("./.", "x")}, TarOptions{}, Invalid, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := switched(t)
			base := dir(t)
			outside := base + "/outside"
			put(t, outside+"/victim", "victim")
			put(t, base+"/victim", "victim")
			must(t, os.Chmod(outside, 0o777))
			must(t, os.Mkdir(base+"/d", 0o755))
			must(t, os.Chown(base+"/d", testUID, testGID))
			for i := range c.entries {
				c.entries[i].Linkname = strings.ReplaceAll(c.entries[i].Linkname, "OUTSIDE", outside)
			}
			stats, err := f.TarIn(context.Background(), base, "d", tarOf(t, c.entries...), c.opts)
			wantKind(t, err, c.kind)
			if c.check != nil {
				c.check(t, base+"/d", stats)
			}
			only(t, base, "d", "outside", "victim")
			only(t, outside, "victim")
			if get(t, outside+"/victim") != "victim" || get(t, base+"/victim") != "victim" {
				t.Error("wrote outside")
			}
			if fi, _ := os.Stat(outside); fi.Mode().Perm() != 0o777 {
				t.Error("changed the mode outside")
			}
		})
	}
}

// TestTarInKeepsOwners unpacks files of several users, as the guest does with a snapshot.
func TestTarInKeepsOwners(t *testing.T) {
	testneed.Root(t, "giving files away")
	of := func(e tarEntry, uid int) tarEntry {
		e.Uid, e.Gid = uid, uid+1
		return e
	}
	dir := t.TempDir()
	archive := tarOf(t, of(folder("d", 0o1777), 33), of(moded(file("d/f", "text"), 0o4640), 5), of(link("d/l", "f"), 6))
	_, err := New(Options{}).TarIn(t.Context(), dir, "/", archive, TarOptions{Owners: true})
	must(t, err)
	for name, want := range map[string]string{"d": "33:34 1777", "d/f": "5:6 640", "d/l": "6:7 777"} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, name), &st))
		if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestTarInBadArchives(t *testing.T) {
	f, ctx := plain(), context.Background()
	big := tarOf(t, file("big", strings.Repeat("x", 200_000)), file("small", "x")).Bytes()
	small := tarOf(t, file("small", "xyz")).Bytes()
	for name, c := range map[string]struct {
		data []byte
		kind Kind
		left []string
	}{
		"empty":               {nil, "", nil},
		"no archive":          {bytes.Repeat([]byte("junk"), 1000), Invalid, nil},
		"cut in a big file":   {big[:100_000], Invalid, nil},
		"cut in a small file": {small[:514], Invalid, nil},
		"cut in a header":     {small[:100], Invalid, nil},
		"size of an exabyte":  {withSize(big, 1<<60), TooLarge, nil},
		"size beyond the end": {withSize(small, 60_000), Invalid, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t)
			_, err := f.TarIn(ctx, d, "", bytes.NewReader(c.data), TarOptions{})
			wantKind(t, err, c.kind)
			only(t, d, c.left...)
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	d := dir(t)
	_, err := f.TarIn(ctx, d, "", io.MultiReader(bytes.NewReader(big[:1000]), readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })), TarOptions{})
	wantKind(t, err, Cancelled)
	only(t, d)
	_, err = f.TarIn(context.Background(), d, "none", bytes.NewReader(small), TarOptions{})
	wantKind(t, err, NotFound)
	_, err = f.TarIn(context.Background(), d, "../x", bytes.NewReader(small), TarOptions{MkdirParents: true})
	wantKind(t, err, Escapes)
}

// withSize changes the size in the first header, in base 256, as GNU tar encodes large sizes.
func withSize(archive []byte, size int64) []byte {
	b := bytes.Clone(archive)
	field := b[124:136]
	clear(field)
	field[0] = 0x80
	for i := range 8 {
		field[11-i] = byte(size >> (8 * i))
	}
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestTarOut(t *testing.T) {
	f, d, ctx := plain(), dir(t), context.Background()
	put(t, d+"/a/file", "content")
	put(t, d+"/b/other", "other")
	must(t, os.Link(d+"/a/file", d+"/a/hard"))
	must(t, os.Symlink("/etc/passwd", d+"/a/link"))
	must(t, unix.Mkfifo(d+"/a/fifo", 0o666))
	must(t, os.Mkdir(d+"/a/empty", 0o711))

	names := func(paths ...string) (got []string, s Stats) {
		var b bytes.Buffer
		s, err := f.TarOut(ctx, d, paths, &b, TarOptions{})
		must(t, err)
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err == io.EOF {
				return got, s
			}
			must(t, err)
			got = append(got, h.Name)
			switch h.Name {
			case "a/hard":
				if h.Typeflag != tar.TypeLink || h.Linkname != "a/file" {
					t.Errorf("%+v", h)
				}
			case "a/link":
				if h.Linkname != "/etc/passwd" {
					t.Errorf("%+v", h)
				}
			}
		}
	}
	got, s := names("a")
	if !slices.Equal(got, []string{"a/", "a/empty/", "a/file", "a/hard", "a/link"}) || !slices.Equal(s.Skipped, []Note{{"a/fifo", "fifo"}}) {
		t.Errorf("%q %+v", got, s)
	}
	got, _ = names("/a/file", "b/../b/other")
	if !slices.Equal(got, []string{"a/file", "b/other"}) {
		t.Errorf("%q", got)
	}
	if got, s = names("/"); len(got) != 7 || s.Entries != 7 {
		t.Errorf("%q %+v", got, s)
	}
	_, err := f.TarOut(ctx, d, []string{"none"}, io.Discard, TarOptions{})
	wantKind(t, err, NotFound)
	_, err = f.TarOut(ctx, d, []string{"../" + filepath.Base(d)}, io.Discard, TarOptions{})
	wantKind(t, err, Escapes)
	_, err = f.TarOut(ctx, d, []string{"a"}, io.Discard, TarOptions{MaxBytes: 3})
	wantKind(t, err, TooLarge)
	_, err = f.TarOut(ctx, d, []string{"a"}, io.Discard, TarOptions{MaxEntries: 3})
	wantKind(t, err, TooMany)
}

func TestTarOutOfChangingFiles(t *testing.T) {
	const size = 4 * chunk
	for name, change := range map[string]func(string) error{
		"shrinks":  func(p string) error { return os.Truncate(p, 10) },
		"grows":    func(p string) error { return os.Truncate(p, 10*size) },
		"vanishes": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			f, d := plain(), dir(t)
			put(t, d+"/a", strings.Repeat("x", size))
			put(t, d+"/b", "b")
			var b bytes.Buffer
			done := false
			w := writerFunc(func(p []byte) (int, error) {
				if !done {
					done = true
					must(t, change(d+"/a"))
				}
				return b.Write(p)
			})
			s, err := f.TarOut(context.Background(), d, []string{""}, w, TarOptions{})
			must(t, err)
			if name != "vanishes" && !slices.Equal(s.Changed, []string{"a"}) {
				t.Errorf("%+v", s)
			}
			r := tar.NewReader(&b)
			h, err := r.Next()
			must(t, err)
			if n, err := io.Copy(io.Discard, r); err != nil || n != size || h.Size != size {
				t.Error(n, err)
			}
			if h, err = r.Next(); err != nil || h.Name != "b" {
				t.Error(h, err)
			}
		})
	}
}

func FuzzTarIn(f *testing.F) {
	for _, entries := range [][]tarEntry{
		{file("a", "x"), folder("d", 0o755), file("d/x", "x")},
		{link("l", ".."), file("l/x", "x")},
		{link("l", "/tmp"), file("l/x", "x"), hard("h", "l/x")},
		{folder("a/b", 0o755), link("a/b/up", "../.."), link("l", "a/b/up/.."), file("l/x", "x")},
		{hard("h", "../x"), file("h", "y")},
		{special("p", tar.TypeFifo), special("c", tar.TypeChar), moded(file("s", ""), 0o6777)},
		{file("../x", "x"), file("/x", "x")},
		{file(strings.Repeat("long/", 60)+"x", "x"), file("\xff\n", "x")},
	} {
		f.Add(tarOf(f, entries...).Bytes())
	}
	f.Add(withSize(tarOf(f, file("f", "xyz")).Bytes(), 1<<50))
	base := f.TempDir()
	put(f, base+"/x", "outside")
	fsys := plain()
	f.Fuzz(func(t *testing.T, data []byte) {
		must(t, os.RemoveAll(base+"/d"))
		must(t, os.Mkdir(base+"/d", 0o755))
		_, err := fsys.TarIn(context.Background(), base, "d", bytes.NewReader(data), TarOptions{MaxBytes: 1 << 20, MaxEntries: 100})
		if KindOf(err) == Internal {
			t.Errorf("not classified: %v", err)
		}
		only(t, base, "d", "x")
		if get(t, base+"/x") != "outside" {
			t.Fatal("wrote outside")
		}
		must(t, filepath.WalkDir(base+"/d", func(p string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := e.Info()
			if err == nil && fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
				t.Errorf("%q is %v", p, fi.Mode())
			}
			return err
		}))
	})
}
