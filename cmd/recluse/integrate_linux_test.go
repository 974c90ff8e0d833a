package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestIntegrateAndBack(t *testing.T) {
	home, dir := t.TempDir(), project(t)
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", filepath.Join(home, "data"))
	settings := filepath.Join(dir, ".claude", "settings.local.json")
	if err := os.MkdirAll(filepath.Dir(settings), 0o755); err != nil {
		t.Fatal(err)
	}
	const mine = "{\n  // mine\n  \"model\": \"opus\"\n}\n"
	if err := os.WriteFile(settings, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(b)
	}
	integrate := func(args ...string) result {
		t.Helper()
		got := run(t, "", append([]string{"integrate", "claude-code", "--project", dir}, args...)...)
		if got.status != 0 {
			t.Fatalf("%+v", got)
		}
		return got
	}
	if got := integrate("--bash", "--dry-run"); !strings.Contains(got.stdout, "would be changed") || !strings.Contains(got.stdout, "+ ") || read(settings) != mine {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, ".mcp.json")); err == nil {
		t.Error("a dry run has made a file")
	}
	if integrate(); read(settings) != mine || !strings.Contains(read(filepath.Join(dir, ".mcp.json")), "recluse") {
		t.Errorf("without --bash: %s and %s", read(settings), read(filepath.Join(dir, ".mcp.json")))
	}
	got := integrate("--bash", "--auto-approve")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"// mine", self, "hook --agent claude-code", "--permission allow"} {
		if !strings.Contains(read(settings), want) {
			t.Errorf("%q is missing: %s", want, read(settings))
		}
	}
	_, backup, _ := strings.Cut(got.stdout, "backup: ")
	if backup, _, _ = strings.Cut(backup, "\n"); read(backup) != mine {
		t.Errorf("backup %q: %s", backup, read(backup))
	}
	if got := integrate("--bash", "--auto-approve"); !strings.Contains(got.stderr, "nothing to change") {
		t.Errorf("%+v", got)
	}
	integrate("--undo")
	if read(settings) != mine {
		t.Errorf("%s", read(settings))
	}
	if got := run(t, "", "integrate", "emacs", "--project", dir); got.status != statusFailure || !strings.Contains(got.stderr, "claude-code, opencode, codex, cursor") {
		t.Errorf("%+v", got)
	}
	if got := run(t, "", "integrate", "codex", "--project", dir, "--auto-approve", "--bash"); got.status != statusFailure || !strings.Contains(got.stderr, "--auto-approve") {
		t.Errorf("%+v", got)
	}
}

func TestIntegrateRefusesAProjectThatASandboxCannotWriteTo(t *testing.T) {
	testneed.Root(t, "a project below /root, and one of root's")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_DATA_HOME", "")
	rooted, err := os.MkdirTemp("/root", "recluse-project-")
	if err != nil {
		testneed.Lacking(t, err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(rooted) })
	owned := project(t)
	if err := os.Chown(owned, 0, 0); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{
		t.TempDir(): {"same path", "move the project"},
		rooted:      {"/root", "backend.allow_mounts"},
		owned:       {"belongs to root", "chown -R 1000:1000 '" + owned + "'"},
	} {
		got := run(t, "", "integrate", "claude-code", "--project", dir, "--bash")
		for _, w := range want {
			if got.status != statusFailure || !strings.Contains(got.stderr, w) {
				t.Errorf("%s: no %q: %+v", dir, w, got)
			}
		}
		if left, _ := os.ReadDir(filepath.Join(dir, ".claude")); len(left) > 0 {
			t.Errorf("%s: left %v", dir, left)
		}
		if got := run(t, "", "integrate", "claude-code", "--project", dir); got.status != 0 {
			t.Errorf("%s: without --bash: %+v", dir, got)
		}
	}
}
