package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// names are unusual file names that occur in practice.
var names = []string{"plain", "with space", "new\nline", "quote'\"$(x)`", "-rf", "...", "%2e%2e", "\xff\xfe invalid", "ünïcödé", "tab\t", "back\\slash", strings.Repeat("l", 255)}

var fileFeatures = []feature{
	{"a file is written, described and read", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		data := bytes.Repeat([]byte{0, 1, 2, 0xff, '\n'}, 200_000)
		info, err := f.Write(ctx, "a/b/c.bin", bytes.NewReader(data), sandbox.WriteOptions{Parents: true, Mode: 0o640})
		noError(t, err)
		same(t, "size", info.Size, int64(len(data)))
		same(t, "sum", info.SHA256, fmt.Sprintf("%x", sha256.Sum256(data)))
		same(t, "name", info.Name, "a/b/c.bin")
		info, err = f.Stat(ctx, "a/b/c.bin")
		noError(t, err)
		same(t, "size", info.Size, int64(len(data)))
		same(t, "kind", info.Kind, "file")
		same(t, "mode", info.Mode.Perm(), fs.FileMode(0o640))
		got, err := f.ReadAll(ctx, "a/b/c.bin")
		noError(t, err)
		if !bytes.Equal(got, data) {
			t.Error("the content read differs from the content written")
		}
		var part bytes.Buffer
		_, err = f.ReadRange(ctx, "a/b/c.bin", 5, 10, &part)
		noError(t, err)
		same(t, "a range", part.String(), string(data[5:15]))
		same(t, "its owner can read it", shell(t, sb, "wc -c < a/b/c.bin"), "1000000\n")
	}},
	{"relative paths begin in the working directory, and writing replaces", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		f, ctx, dir := sb.Files(), t.Context(), strings.TrimSpace(shell(t, sb, "pwd"))
		noError(t, f.Mkdir(ctx, "sub", sandbox.MkdirOptions{}))
		for _, content := range []string{"one", "two"} {
			noError(t, f.WriteAll(ctx, "sub/rel", []byte(content), sandbox.WriteOptions{}))
		}
		fails(t, "exclusive", f.WriteAll(ctx, "sub/rel", nil, sandbox.WriteOptions{Exclusive: true}), v1.CodeFileExists)
		same(t, "a command there", shell(t, sb, "cat sub/rel"), "two")
		v, err := sb.Run(ctx, sandbox.Command{Shell: "pwd; cat rel", Dir: "sub"})
		noError(t, err)
		same(t, "a relative directory", v.Stdout.String(), dir+"/sub\ntwo")
		for _, name := range []string{"sub/rel", "./sub/../sub/rel", dir + "/sub/rel", "../" + path.Base(dir) + "/sub/rel"} {
			got, err := f.ReadAll(ctx, name)
			noError(t, err)
			same(t, name, string(got), "two")
		}
		for name, at := range map[string]string{"": dir, ".": dir, "sub": dir + "/sub"} {
			info, err := f.Stat(ctx, name)
			noError(t, err)
			same(t, "the path of "+name, info.Path, at)
		}
		below := f.Below("sub")
		for _, name := range []string{"rel", "/rel"} {
			got, err := below.ReadAll(ctx, name)
			noError(t, err)
			same(t, "below: "+name, string(got), "two")
		}
		_, err = below.Stat(ctx, "../rel")
		fails(t, "out of it", err, v1.CodePathEscapes)
		_, err = below.Below("..").Stat(ctx, "sub")
		fails(t, "out of it by another root", err, v1.CodeFileNotFound)
	}},
	{"an empty file is a file", overHTTP, func(t *testing.T, s *suite) {
		_, f, _ := s.openFiles(t)
		noError(t, f.WriteAll(t.Context(), "empty", nil, sandbox.WriteOptions{}))
		got, err := f.ReadAll(t.Context(), "empty")
		noError(t, err)
		same(t, "size", len(got), 0)
	}},
	{"a write is whole or not at all", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		noError(t, f.WriteAll(ctx, "file", []byte("old"), sandbox.WriteOptions{}))
		broken := io.MultiReader(strings.NewReader(strings.Repeat("new", 100_000)), readerFunc(func([]byte) (int, error) { return 0, errors.New("the source broke") }))
		_, err := f.Write(ctx, "file", broken, sandbox.WriteOptions{})
		if err == nil || !strings.Contains(err.Error(), "the source broke") {
			t.Errorf("the error is %v", err)
		}
		cancellable, cancel := context.WithCancel(ctx)
		_, err = f.Write(cancellable, "file", readerFunc(func([]byte) (int, error) {
			cancel()
			<-cancellable.Done()
			return 0, cancellable.Err()
		}), sandbox.WriteOptions{})
		fails(t, "a cancelled write", err, v1.CodeCancelled)
		same(t, "content", shell(t, sb, "cat file"), "old")
		testneed.Await(t, "no other file in the directory", func() bool { return shell(t, sb, "ls -A") == "file\n" })
	}},
	{"a source is not read after a write has failed", overHTTP, func(t *testing.T, s *suite) {
		_, f, ctx := s.openFiles(t)
		noError(t, f.WriteAll(ctx, "file", nil, sandbox.WriteOptions{}))
		reads := 0 // without a lock, so that the race detector also finds a late read
		_, err := f.Write(ctx, "file", readerFunc(func(b []byte) (int, error) {
			reads++
			time.Sleep(20 * time.Millisecond) // so that the guest answers during this Read
			return len(b), nil
		}), sandbox.WriteOptions{Exclusive: true})
		fails(t, "exclusive", err, v1.CodeFileExists)
		then := reads
		time.Sleep(100 * time.Millisecond)
		same(t, "reads later", reads-then, 0)
	}},
	{"a source that gives nothing does not hold up a refusal", overHTTP, func(t *testing.T, s *suite) {
		_, f, _ := s.openFiles(t)
		noError(t, f.WriteAll(t.Context(), "file", nil, sandbox.WriteOptions{}))
		idle := make(chan struct{})
		defer close(idle)
		_, err := f.Write(t.Context(), "file", readerFunc(func([]byte) (int, error) {
			<-idle
			return 0, io.EOF
		}), sandbox.WriteOptions{Exclusive: true})
		fails(t, "exclusive", err, v1.CodeFileExists)
	}},
	{"a running reader keeps the file it has opened", inGuest, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		noError(t, f.WriteAll(ctx, "file", []byte("old\n"), sandbox.WriteOptions{}))
		id, err := sb.Start(ctx, sandbox.Command{Shell: "exec 3<file; echo open; until [ -e go ]; do sleep 0.02; done; cat <&3 file"})
		noError(t, err)
		testneed.Await(t, "the reader", func() bool { return operation(t, sb, id).Stdout > 0 })
		noError(t, f.WriteAll(ctx, "file", []byte("new\n"), sandbox.WriteOptions{}))
		noError(t, f.WriteAll(ctx, "go", nil, sandbox.WriteOptions{}))
		var out recorder
		_, err = sb.Follow(ctx, id, sandbox.FollowOptions{Stdout: &out})
		noError(t, err)
		same(t, "stdout", out.String(), "open\nnew\n") // cat with a name ignores its stdin, and the name is the new file
	}},
	{"write options hold", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		noError(t, f.WriteAll(ctx, "file", []byte("one"), sandbox.WriteOptions{Exclusive: true}))
		err := f.WriteAll(ctx, "file", []byte("two"), sandbox.WriteOptions{Exclusive: true})
		fails(t, "exclusive", err, v1.CodeFileExists)
		same(t, "a file that exists is fs.ErrExist", errors.Is(err, fs.ErrExist), true)
		noError(t, f.WriteAll(ctx, "file", []byte(" more"), sandbox.WriteOptions{Append: true}))
		same(t, "content", shell(t, sb, "cat file"), "one more")
		fails(t, "no parents", f.WriteAll(ctx, "no/such/file", nil, sandbox.WriteOptions{}), v1.CodeFileNotFound)
		shell(t, sb, "chmod 755 file")
		noError(t, f.WriteAll(ctx, "file", []byte("again"), sandbox.WriteOptions{}))
		info, err := f.Stat(ctx, "file")
		noError(t, err)
		same(t, "the mode stays", info.Mode.Perm(), fs.FileMode(0o755))
	}},
	{"directories are made, listed, moved and removed", overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		fails(t, "mkdir without parents", f.Mkdir(ctx, "a/b", sandbox.MkdirOptions{}), v1.CodeFileNotFound)
		noError(t, f.Mkdir(ctx, "a/b", sandbox.MkdirOptions{Parents: true}))
		noError(t, f.WriteAll(ctx, "a/b/x", []byte("x"), sandbox.WriteOptions{}))
		noError(t, f.WriteAll(ctx, "a/y", []byte("yy"), sandbox.WriteOptions{}))
		shell(t, sb, "ln -s y a/link; mkfifo a/pipe")
		kinds := map[string]string{}
		for i, err := range f.List(ctx, "a", sandbox.ListOptions{Recursive: true}) {
			noError(t, err)
			kinds[i.Path] = i.Kind
		}
		want := map[string]string{"/a/b": "dir", "/a/b/x": "file", "/a/link": "symlink", "/a/pipe": "fifo", "/a/y": "file"}
		if !maps.Equal(kinds, want) {
			t.Errorf("listed %v, want %v", kinds, want)
		}
		noError(t, f.Move(ctx, "a/y", "a/z", sandbox.MoveOptions{}))
		fails(t, "an exclusive move", f.Move(ctx, "a/z", "a/b/x", sandbox.MoveOptions{Exclusive: true}), v1.CodeFileExists)
		noError(t, f.Move(ctx, "a/z", "a/b/x", sandbox.MoveOptions{}))
		same(t, "content", shell(t, sb, "cat a/b/x"), "yy")
		fails(t, "remove a full directory", f.Remove(ctx, "a", sandbox.RemoveOptions{}), v1.CodeFileNotEmpty)
		fails(t, "remove a missing file", f.Remove(ctx, "nothing", sandbox.RemoveOptions{}), v1.CodeFileNotFound)
		noError(t, f.Remove(ctx, "a", sandbox.RemoveOptions{Recursive: true}))
		same(t, "what is left", shell(t, sb, "ls -A"), "")
	}},
	{"a listing tells how much of it could not be read", overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		shell(t, sb, "mkdir -p a/closed/deep a/open && touch a/open/x && chmod 000 a/closed")
		defer shell(t, sb, "chmod 700 a/closed")
		want := int64(1)
		if shell(t, sb, "id -u") == "0\n" {
			want = 0 // root reads everything
		}
		var unreadable int64
		for i, err := range f.List(ctx, "a", sandbox.ListOptions{Recursive: true, Unreadable: &unreadable}) {
			noError(t, err)
			if want > 0 && strings.HasPrefix(i.Path, "/a/closed/") {
				t.Errorf("%s was listed", i.Path)
			}
		}
		same(t, "unreadable", unreadable, want)
		unreadable = 0
		for _, err := range f.List(ctx, "a", sandbox.ListOptions{Unreadable: &unreadable}) {
			noError(t, err)
		}
		same(t, "what is not entered", unreadable, int64(0))
	}},
	{"a list of many files comes whole and in order", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		shell(t, sb, "mkdir many; cd many; seq -f %05g 1 3500 | xargs touch")
		var got []string
		for i, err := range files(sb, home(t, sb)).List(t.Context(), "many", sandbox.ListOptions{}) {
			noError(t, err)
			got = append(got, i.Path)
		}
		same(t, "files", len(got), 3500)
		if !slices.IsSorted(got) || len(slices.Compact(got)) != 3500 {
			t.Error("the files are not sorted, or have duplicates")
		}
	}},
	{"names may hold anything", overHTTP, func(t *testing.T, s *suite) {
		_, f, ctx := s.openFiles(t)
		for _, n := range names {
			noError(t, f.WriteAll(ctx, n, []byte(n), sandbox.WriteOptions{}))
		}
		var got []string
		for i, err := range f.List(ctx, ".", sandbox.ListOptions{}) {
			noError(t, err)
			got = append(got, i.Path)
			b, err := f.ReadAll(ctx, i.Path)
			noError(t, err)
			same(t, "content", "/"+string(b), i.Path)
		}
		var want []string
		for _, n := range slices.Sorted(slices.Values(names)) {
			want = append(want, "/"+n) // paths are relative to the directory of Below
		}
		if !slices.Equal(got, want) {
			t.Errorf("listed %q\nwant %q", got, want)
		}
		var archive bytes.Buffer
		_, err := f.Download(ctx, &archive, ".")
		noError(t, err)
		_, err = f.Upload(ctx, "copy", &archive, sandbox.TarOptions{Parents: true})
		noError(t, err)
		for _, n := range names {
			b, err := f.ReadAll(ctx, "copy/"+n)
			noError(t, err)
			same(t, "content of the copy", string(b), n)
			noError(t, f.Remove(ctx, n, sandbox.RemoveOptions{}))
		}
		for _, bad := range []string{"nul\x00", strings.Repeat("l", 256), strings.Repeat("d/", 3000) + "x"} {
			fails(t, fmt.Sprintf("%.20q", bad), f.WriteAll(ctx, bad, nil, sandbox.WriteOptions{}), v1.CodePathInvalid)
		}
	}},
	{"what is not a plain file is refused at once", overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		shell(t, sb, "mkfifo pipe; mkdir dir; ln -s dir/ link; ln -s loop loop")
		_, err := f.ReadAll(ctx, "pipe")
		fails(t, "read a FIFO", err, v1.CodeFileNotRegular)
		_, err = f.ReadAll(ctx, "dir")
		fails(t, "read a directory", err, v1.CodeFileIsDirectory)
		_, err = f.ReadAll(ctx, "nothing")
		fails(t, "read a missing file", err, v1.CodeFileNotFound)
		same(t, "a missing file is fs.ErrNotExist", errors.Is(err, fs.ErrNotExist), true)
		_, err = files(sb, "").ReadAll(ctx, "/dev/zero")
		fails(t, "read a device", err, v1.CodeFileNotRegular)
		_, err = f.ReadAll(ctx, "loop")
		if err == nil {
			t.Error("a link to itself was read")
		}
		var archive bytes.Buffer
		stats, err := f.Download(ctx, &archive, ".")
		noError(t, err)
		same(t, "skipped in the archive", stats.SkippedCount, 1)
		for _, e := range []string{"pipe"} {
			if len(stats.Skipped) != 1 || !strings.HasSuffix(string(stats.Skipped[0].Path), e) || stats.Skipped[0].Reason == "" {
				t.Errorf("skipped: %+v", stats.Skipped)
			}
		}
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"nothing leads out of the directory given to Below", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		h := home(t, sb)
		shell(t, sb, `mkdir -p box/sub; echo secret > secret; cd box; ln -s .. up; ln -s ../secret leak; ln -s "$HOME/secret" absolute; ln -s sub/../../secret two-steps; ln -s sub inside; echo fine > sub/fine`)
		f, ctx := files(sb, h+"/box"), t.Context()
		for _, p := range []string{"../secret", "sub/../../secret", "up/secret", "leak", "absolute", "two-steps", "inside/../../secret"} {
			_, err := f.ReadAll(ctx, p)
			fails(t, "read "+p, err, v1.CodePathEscapes)
		}
		for _, p := range []string{"../new", "up/new"} {
			fails(t, "write "+p, f.WriteAll(ctx, p, []byte("x"), sandbox.WriteOptions{Parents: true}), v1.CodePathEscapes)
			fails(t, "mkdir "+p, f.Mkdir(ctx, p, sandbox.MkdirOptions{Parents: true}), v1.CodePathEscapes)
		}
		fails(t, "move out", f.Move(ctx, "sub/fine", "../fine", sandbox.MoveOptions{}), v1.CodePathEscapes)
		fails(t, "remove outside", f.Remove(ctx, "up/secret", sandbox.RemoveOptions{Recursive: true}), v1.CodePathEscapes)
		b, err := f.ReadAll(ctx, "inside/fine")
		noError(t, err)
		same(t, "a link that stays inside", string(b), "fine\n")
		_, err = f.ReadAll(ctx, "/sub/fine")
		noError(t, err) // a leading slash is the directory of Below
		fails(t, "write through a link", f.WriteAll(ctx, "leak", []byte("mine"), sandbox.WriteOptions{}), v1.CodePathEscapes)
		same(t, "the file outside", shell(t, sb, "cat secret"), "secret\n")
	}},
	{"a tar stream goes in and comes out", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		in := map[string]string{"dir/one": "1", "dir/deep/two": strings.Repeat("22", 100_000), "three": ""}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		noError(t, w.WriteHeader(&tar.Header{Name: "dir/link", Typeflag: tar.TypeSymlink, Linkname: "one"}))
		for _, n := range slices.Sorted(maps.Keys(in)) {
			noError(t, w.WriteHeader(&tar.Header{Name: n, Mode: 0o600, Size: int64(len(in[n])), ModTime: time.Unix(1_000_000_000, 0)}))
			_, err := io.WriteString(w, in[n])
			noError(t, err)
		}
		noError(t, w.Close())
		stats, err := f.Upload(ctx, "up/here", bytes.NewReader(archive.Bytes()), sandbox.TarOptions{Parents: true})
		noError(t, err)
		same(t, "bytes", stats.Bytes, 200_001)
		same(t, "through the link", shell(t, sb, "cat up/here/dir/link"), "1")

		var back bytes.Buffer
		_, err = f.Download(ctx, &back, "up/here")
		noError(t, err)
		got := map[string]string{}
		for r := tar.NewReader(&back); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			noError(t, err)
			if h.Typeflag == tar.TypeReg {
				b, err := io.ReadAll(r)
				noError(t, err)
				_, name, _ := strings.Cut(h.Name, "here/")
				got[name] = string(b)
				same(t, "time of "+name, h.ModTime.Unix(), 1_000_000_000)
			}
		}
		if !maps.Equal(got, in) {
			t.Errorf("downloaded: %v", slices.Sorted(maps.Keys(got)))
		}
	}},
	{"a hostile archive stays where it is unpacked", overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		for _, c := range []struct {
			name    string
			entries []tar.Header
		}{
			{"dots", []tar.Header{{Name: "../out", Size: 1}}},
			{"absolute", []tar.Header{{Name: "/out", Size: 1}}},
			{"through a link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/out", Size: 1}}},
			{"hard link", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../secret"}}},
		} {
			t.Run(c.name, func(t *testing.T) {
				noError(t, f.WriteAll(ctx, "secret", []byte("s"), sandbox.WriteOptions{}))
				var archive bytes.Buffer
				w := tar.NewWriter(&archive)
				for _, h := range c.entries {
					h.Mode = 0o644
					noError(t, w.WriteHeader(&h))
					if h.Size > 0 {
						_, err := w.Write(make([]byte, h.Size))
						noError(t, err)
					}
				}
				noError(t, w.Close())
				_, err := f.Upload(ctx, "into", &archive, sandbox.TarOptions{Parents: true})
				if err != nil && v1.CodeOf(err) == v1.CodeInternal {
					t.Errorf("the error has no specific code: %v", err)
				}
				same(t, "outside", shell(t, sb, "ls -A; rm -rf into; test ! -e /out"), "into\nsecret\n")
				same(t, "links to the secret", shell(t, sb, "stat -c %h secret"), "1\n")
			})
		}
		_, err := f.Upload(ctx, "into", strings.NewReader("this is no archive, and long enough to be read as the head of one"+strings.Repeat(".", 1000)), sandbox.TarOptions{Parents: true})
		fails(t, "no archive", err, v1.CodePathInvalid)
		var big bytes.Buffer
		w := tar.NewWriter(&big)
		noError(t, w.WriteHeader(&tar.Header{Name: "big", Size: 1 << 20, Mode: 0o644}))
		_, err = w.Write(make([]byte, 1<<20))
		noError(t, err)
		noError(t, w.Close())
		_, err = f.Upload(ctx, "into", &big, sandbox.TarOptions{Parents: true, MaxBytes: 1 << 10})
		fails(t, "more than allowed", err, v1.CodeTooLarge)
	}},
	{"changes are told while they happen", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		noError(t, f.Mkdir(t.Context(), "watched", sandbox.MkdirOptions{}))
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := make(chan sandbox.FileEvent, 1000)
		ended := make(chan error, 1)
		go func() {
			ended <- f.Watch(ctx, "watched", sandbox.WatchOptions{Recursive: true}, func(e sandbox.FileEvent) error {
				events <- e
				return nil
			})
		}()
		seen := func(op, name string) {
			t.Helper()
			for {
				e := await(t, op+" "+name, events)
				if e.Op == op && strings.HasSuffix(e.Path, name) {
					return
				}
			}
		}
		seen("ready", "")
		shell(t, sb, "mkdir watched/sub")
		seen("create", "sub")
		shell(t, sb, "echo x > watched/sub/file")
		seen("create", "sub/file")
		shell(t, sb, "echo y >> watched/sub/file")
		seen("modify", "sub/file")
		shell(t, sb, "mv watched/sub/file watched/moved")
		seen("rename", "moved")
		shell(t, sb, "rm watched/moved")
		seen("remove", "moved")
		cancel()
		fails(t, "the end of a watch", await(t, "the end of the watch", ended), v1.CodeCancelled)

		stop := errors.New("enough")
		err := f.Watch(t.Context(), "watched", sandbox.WatchOptions{}, func(sandbox.FileEvent) error { return stop })
		if !errors.Is(err, stop) {
			t.Errorf("Watch returned %v instead of the callback's error", err)
		}
		err = f.Watch(t.Context(), "nothing", sandbox.WatchOptions{}, func(sandbox.FileEvent) error { return nil })
		fails(t, "watch a missing file", err, v1.CodeFileNotFound)
	}},
	{"a download that is given up harms nothing", overHTTP, func(t *testing.T, s *suite) {
		sb, f, ctx := s.openFiles(t)
		shell(t, sb, "head -c 30000000 /dev/zero > large")
		ctx, cancel := context.WithCancel(ctx)
		_, err := f.Read(ctx, "large", writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
		fails(t, "a cancelled read", err, v1.CodeCancelled)
		_, err = f.Read(t.Context(), "large", writerFunc(func([]byte) (int, error) { return 0, errors.New("full") }))
		if err == nil || !strings.Contains(err.Error(), "full") {
			t.Errorf("a writer that fails: %v", err)
		}
		var n counter
		_, err = f.Read(t.Context(), "large", &n)
		noError(t, err)
		same(t, "read in the end", n.Load(), 30_000_000)
	}},
}
