package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/demo"
)

// nobody is the uid of the unprivileged user in tests.
const nobody = 65534

func TestDemo(t *testing.T) {
	ready(t)
	got := run(t, "", "demo")
	if got.status != 0 || !strings.Contains(got.stdout, "nothing is left") {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
}

// demoSteps is how many steps the demo has.
const demoSteps = 8

// checkDemo checks that all steps of a demo succeeded, and that exactly the given steps were skipped.
func checkDemo(t *testing.T, got result, backend string, skipped ...int) {
	t.Helper()
	var d demo.Result
	if err := json.Unmarshal([]byte(got.stdout), &d); err != nil {
		t.Fatalf("%v in %q, stderr %q", err, got.stdout, got.stderr)
	}
	if got.status != 0 || d.Backend != backend || !d.OK || d.Took <= 0 || len(d.Steps) != demoSteps {
		t.Errorf("status %d: %s%s", got.status, got.stdout, got.stderr)
	}
	for i, s := range d.Steps {
		cannot := slices.Contains(skipped, i+1)
		if s.Title == "" || !s.OK || s.Took <= 0 || cannot != (s.Skipped != "") || !cannot && len(s.Lines) == 0 {
			t.Errorf("step %d: %+v", i+1, s)
		}
	}
}

func TestDemoJSON(t *testing.T) {
	ready(t)
	t.Run("gvisor", func(t *testing.T) {
		checkDemo(t, run(t, "", "demo", "--json", "--backend", "gvisor"), "gvisor")
	})
	t.Run("local", func(t *testing.T) {
		// No kernel of its own, no snapshots, no forks.
		checkDemo(t, run(t, "", "demo", "--json", "--backend", "local", "--allow-no-isolation"), "local", 2, 6, 7, 8)
	})
}

func TestDemoAsOrdinaryUser(t *testing.T) {
	ready(t)
	cmd := commandAsUser(t, "demo", "--json")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	checkDemo(t, result{status(t, err), out.String(), errs.String()}, "gvisor")
	sandboxes := filepath.Join(cmd.Dir, ".local", "share", "recluse", "gvisor", "sandboxes")
	if left, err := os.ReadDir(sandboxes); err != nil || len(left) > 0 {
		t.Errorf("%v, left in %s: %v", err, sandboxes, left)
	}
}

// commandAsUser returns recluse as an unprivileged user, with copies of its programs in the home of that user, who
// cannot read those of root.
func commandAsUser(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	engine, err := bundle.Engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	guest, err := bundle.Guest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "recluse-user-") // other users cannot read t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	cmd := command(t, args...)
	for name, from := range map[string]string{"recluse": cmd.Path, "engine": engine.Path, "guest": guest.Path} {
		if out, err := exec.CommandContext(t.Context(), "install", "-m", "755", "--", from, filepath.Join(home, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd.Path, cmd.Dir = filepath.Join(home, "recluse"), home
	// Without the environment of root, all directories are below the home.
	cmd.Env = []string{
		asRecluse + "=1", "HOME=" + home, "TMPDIR=" + home, "PATH=/usr/bin:/bin",
		"RECLUSE_ENGINE=" + filepath.Join(home, "engine"), "RECLUSE_GUEST=" + filepath.Join(home, "guest"),
	}
	if os.Getuid() != 0 {
		return cmd // the test does not run as root
	}
	if err := errors.Join(os.Chmod(home, 0o755), os.Chown(home, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}
