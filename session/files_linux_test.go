package session

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestFilesOfASession(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	ctx, f := t.Context(), s.Files().Below("/home/user")
	noError := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	noError("make a directory", f.Mkdir(ctx, "a/b", sandbox.MkdirOptions{Parents: true}))
	_, err := f.Write(ctx, "a/one", strings.NewReader("1"), sandbox.WriteOptions{})
	noError("write", err)
	noError("write", f.WriteAll(ctx, "a/two", []byte("22"), sandbox.WriteOptions{}))
	if sleeps(k.b) { // the next call wakes it
		noError("hibernate", s.Hibernate(ctx))
	}
	var got bytes.Buffer
	_, err = f.Read(ctx, "a/two", &got)
	noError("read", err)
	want(t, "content", got.String(), "22")
	data, err := f.Below("a").ReadAll(ctx, "one")
	noError("read below a directory", err)
	want(t, "content below a directory", string(data), "1")
	info, err := f.Stat(ctx, "a/two")
	if err != nil || info.Size != 2 {
		t.Errorf("stat: %+v, %v", info, err)
	}
	var listed []string
	for i, err := range f.List(ctx, "a", sandbox.ListOptions{}) {
		noError("list", err)
		listed = append(listed, i.Path)
	}
	want(t, "list", strings.Join(listed, " "), "/a/b /a/one /a/two")
	page, err := f.Page(ctx, "a", sandbox.ListOptions{}, "", 2)
	if err != nil || len(page.Files) != 2 || page.Next == "" {
		t.Errorf("first page: %+v, %v", page, err)
	}
	noError("move", f.Move(ctx, "a/one", "a/b/one", sandbox.MoveOptions{Exclusive: true}))
	var archive bytes.Buffer
	_, err = f.Download(ctx, &archive, "a")
	noError("download", err)
	noError("remove", f.Remove(ctx, "a", sandbox.RemoveOptions{Recursive: true}))
	_, err = f.Upload(ctx, ".", &archive, sandbox.TarOptions{})
	noError("upload", err)
	data, err = f.ReadAll(ctx, "a/b/one")
	noError("read what was unpacked", err)
	want(t, "content of what was unpacked", string(data), "1")
	_, err = f.ReadAll(ctx, "missing")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read a missing file: %v", err)
	}
	for _, err := range f.List(ctx, "missing", sandbox.ListOptions{}) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("list a missing directory: %v", err)
		}
	}
}

func TestASessionThatIsKeptAwakeDoesNotHibernate(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	release, err := s.KeepAwake(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if sleeps(k.b) {
		wantCode(t, "hibernate", s.Hibernate(t.Context()), v1.CodeBusy)
	}
	want(t, "state", string(s.Info().State), string(v1.StateExecuting))
	release()
	want(t, "state afterwards", string(s.Info().State), string(v1.StateReady))
}
