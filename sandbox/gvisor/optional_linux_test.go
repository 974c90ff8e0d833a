//go:build linux

package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAPausedSandboxDoesNothingUntilItIsResumed(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "x = 41")
	for range 2 { // twice is no error
		if err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := sb.Ping(ctx); err == nil {
		t.Error("a paused sandbox answered")
	}
	for range 2 {
		if err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := cell(t, sb, "x + 1").Result.Text(); got != "42" {
		t.Errorf("after resuming x + 1 is %s", got)
	}
}

func TestLabelsCanBeChanged(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{Labels: map[string]string{"a": "1"}})
	if err := b.Label(t.Context(), sb.ID(), map[string]string{"b": "2"}); err != nil {
		t.Fatal(err)
	}
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.ID == sb.ID() && (i.Labels["b"] != "2" || i.Labels["a"] != "") {
			t.Errorf("labels are %v", i.Labels)
		}
	}
	if err := b.Label(t.Context(), "snothere", nil); v1.CodeOf(err) != v1.CodeNotFound {
		t.Errorf("labels of a missing sandbox: %v", err)
	}
}

func TestSharedFiles(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	dir := sharedDir(t)
	for name, mode := range map[string]os.FileMode{"open.txt": 0o644, "closed.txt": 0o600} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("of "+name), mode); err != nil {
			t.Fatal(err)
		}
		inside, err := sb.Share(t.Context(), file, "a/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if got := cell(t, sb, `open("`+inside+`").read()`).Result.Text(); got != "'of "+name+"'" {
			t.Errorf("%s inside contains %s", name, got)
		}
		if _, err := sb.Share(t.Context(), file, "a/"+name); v1.CodeOf(err) != v1.CodeFileExists {
			t.Errorf("shared a second time: %v", err)
		}
	}
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "echo x > /shared/a/open.txt || touch /shared/new"})
	if err != nil || v.ExitCode == 0 {
		t.Errorf("shared files can be written: %v, %v", v, err)
	}
	cell(t, sb, `f = open("/shared/a/open.txt"); f.read(3)`)
	copies, err := sb.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer copies[0].Close()
	if err := sb.Close(); err != nil { // the copy has its own files
		t.Fatal(err)
	}
	if got := cell(t, copies[0], `f.read() + open("/shared/a/closed.txt").read()`).Result.Text(); got != "'open.txtof closed.txt'" {
		t.Errorf("the files in the copy contain %s", got)
	}
}

func TestWhatCannotBeShared(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	dir := sharedDir(t)
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		why, file, name string
		want            v1.Code
	}{
		{"a directory", dir, "d", v1.CodeFileNotRegular},
		{"a device", "/dev/null", "n", v1.CodeFileNotRegular},
		{"nothing", filepath.Join(dir, "none"), "n", v1.CodeFileNotFound},
		{"a name that leaves", file, "../f", v1.CodePathInvalid},
		{"an absolute name", file, "/f", v1.CodePathInvalid},
		{"no name", file, "", v1.CodePathInvalid},
	} {
		if _, err := sb.Share(t.Context(), c.file, c.name); v1.CodeOf(err) != c.want {
			t.Errorf("%s: %v", c.why, err)
		}
	}
}
