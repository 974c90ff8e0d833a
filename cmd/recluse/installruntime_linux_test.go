package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestInstallRuntimeWhereEverybodyHasIt installs to the default paths, in a mount namespace of the test.
func TestInstallRuntimeWhereEverybodyHasIt(t *testing.T) {
	ready(t)
	if os.Getuid() != 0 {
		testneed.Lacking(t, "only root has a mount namespace of its own")
	}
	engine, err := bundle.Engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	etc, bin := filepath.Join(dir, "etc"), filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(etc, 0o755), os.Mkdir(bin, 0o755)); err != nil {
		t.Fatal(err)
	}
	install := func(args ...string) result {
		t.Helper()
		cmd := command(t)
		script := `mount --bind "$1" /etc && mount --bind "$2" /usr/local/bin && shift 2 && exec "$@"`
		cmd.Args = append([]string{"sh", "-c", script, "sh", etc, bin, cmd.Path, "install-runtime"}, args...)
		cmd.Path = "/bin/sh"
		cmd.Env = append(cmd.Env, "RECLUSE_ENGINE="+engine.Path, "DOCKER_HOST=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // whose mounts Go makes private
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return result{status(t, err), out.String(), errs.String()}
	}
	file, program := filepath.Join(etc, "docker", "daemon.json"), filepath.Join(bin, bundle.EngineName)
	absent := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s there is %s: %v", when, path, err)
			}
		}
	}
	if r := install(); r.status != statusFailure || !strings.Contains(r.stderr, "no terminal to ask") {
		t.Errorf("without consent: %+v", r)
	}
	absent("without consent", file, program)
	for _, says := range []string{"written", "needs no change"} {
		if r := install("--yes"); r.status != 0 || !strings.Contains(r.stdout, says) {
			t.Fatalf("%+v, want %q", r, says)
		}
		var got struct {
			Runtimes map[string]struct{ Path string }
		}
		if text, err := os.ReadFile(file); err != nil || json.Unmarshal(text, &got) != nil || len(got.Runtimes) != 1 || got.Runtimes["runsc"].Path != "/usr/local/bin/recluse-engine" {
			t.Errorf("the engine's configuration: %s, %v", text, err)
		}
		want, err := os.ReadFile(engine.Path)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(program)
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("installed are %d bytes of %d, %v", len(have), len(want), err)
		}
		if fi, err := os.Stat(program); err == nil && fi.Mode().Perm() != 0o755 {
			t.Errorf("its mode is %v", fi.Mode())
		}
	}
	if r := install("--undo", "--yes"); r.status != 0 || !strings.Contains(r.stdout, "written") {
		t.Errorf("%+v", r)
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "runsc") {
		t.Errorf("after the undoing: %s, %v", text, err)
	}
	absent("after the undoing", program)
}
