// Package install tests what users install: the one file that make build makes, and the library in another program.
package install

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const runWait = 4 * time.Minute // including builds, on a busy machine

// run runs a program with an environment that contains only its home directory and PATH.
func run(t *testing.T, home, path, program string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"HOME=" + home, "PATH=" + path}
	out, err := cmd.Output()
	if err != nil {
		why := ""
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			why = string(e.Stderr)
		}
		t.Fatalf("%s %v: %v\n%s%s", filepath.Base(program), args, err, out, why)
	}
	return out
}

// place copies a program into a directory.
func place(t *testing.T, program, dir string) string {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, filepath.Base(program))
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestOneFile checks that bin/recluse runs the demo on a machine without other files of ours.
func TestOneFile(t *testing.T) {
	testneed.Sandboxes(t)
	built := os.Getenv("RECLUSE_BIN")
	if built == "" {
		testneed.Lacking(t, "RECLUSE_BIN is not set to the program of make build; make test sets it")
	}
	home := t.TempDir()
	recluse := place(t, built, t.TempDir())
	var version struct{ Engine, Guest struct{ Origin string } }
	if err := json.Unmarshal(run(t, home, "", recluse, "version", "--json"), &version); err != nil {
		t.Fatal(err)
	}
	if version.Engine.Origin != "embedded" || version.Guest.Origin != "embedded" {
		t.Errorf("unexpected engine and guest: %+v", version)
	}
	var demo struct {
		Steps []struct {
			Title, Skipped string
			OK             bool
		}
	}
	out := run(t, home, "", recluse, "demo", "--json")
	if err := json.Unmarshal(out, &demo); err != nil {
		t.Fatal(err)
	}
	if len(demo.Steps) != 8 {
		t.Errorf("%d steps:\n%s", len(demo.Steps), out)
	}
	for _, s := range demo.Steps {
		if !s.OK || s.Skipped != "" {
			t.Errorf("step %q failed:\n%s", s.Title, out)
		}
	}
}

// TestLibrary builds the example as a program of another module, without make. It finds engine and guest beside the
// program or on PATH.
func TestLibrary(t *testing.T) {
	testneed.Sandboxes(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	module := t.TempDir()
	for to, from := range map[string]string{"main.go": "examples/quickstart/main.go", "go.sum": "go.sum"} {
		b, err := os.ReadFile(filepath.Join(root, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(module, to), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	mod := "module example.org/agent\n\ngo 1.26\n\nrequire github.com/recluse-dev/recluse v0.0.0\n\nreplace github.com/recluse-dev/recluse => " + root + "\n"
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(mod), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runWait)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", "agent", ".")
	build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := regexp.MustCompile(`^value:   '285, on Linux [^']+'\nverdict: timed out after [0-9.]+s\nfile:    so far\n$`)
	for name, beside := range map[string]bool{"beside the program": true, "on PATH": false} {
		t.Run(name, func(t *testing.T) {
			dir, path := t.TempDir(), t.TempDir()
			agent, tools := place(t, filepath.Join(module, "agent"), dir), path
			if beside {
				tools, path = dir, ""
			}
			place(t, engine.Path, tools)
			place(t, guest.Path, tools)
			if out := run(t, t.TempDir(), path, agent); !want.Match(out) {
				t.Errorf("%s\nwant %s", out, want)
			}
		})
	}
}
