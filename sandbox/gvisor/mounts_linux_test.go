//go:build linux

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAnOrdinaryUsersMountsAreReadOnly(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.AsUser = true
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, err = sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data", Writable: true}}})
	wantCode(t, err, v1.CodeNotSupported)
}

func TestMounts(t *testing.T) {
	testneed.Root(t, "a writable mount")
	b := testBackend(t)
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "data"), []byte("42"), 0o644)); err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data"}, {Host: dir, Path: "/mnt/out", Writable: true}}})
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "cat /data/data; touch /data/x 2>/dev/null || echo ' read-only'; echo made > /mnt/out/made"})
	if err != nil || v.Stdout.String() != "42 read-only\n" || !v.OK() {
		t.Fatalf("%v %v %s %s", v, err, v.Stdout, v.Stderr)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(got) != "made\n" {
		t.Errorf("%q %v", got, err)
	}
	_, err = sandbox.Open(t.Context(), b, sandbox.Spec{User: "nobody"})
	wantCode(t, err, v1.CodeNotSupported)
	for _, bad := range []string{"/", "/etc", "//etc", "/proc", "/root", "/var/../etc", "/run"} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: bad, Path: "/data"}}})
		wantError(t, err, v1.CodeMountRefused, "mounting this path is not allowed", "made for sharing")
	}
	for bad, want := range map[string][2]string{
		"relative":                      {"mounting this path is not allowed", "use an absolute path"},
		filepath.Join(dir, "not there"): {"it does not exist", "create it first"},
	} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: bad, Path: "/data"}}})
		wantError(t, err, v1.CodeMountRefused, want[0], want[1])
	}
	for _, bad := range []string{"/", "/etc", "/usr/lib", "data", "/proc/x", "/home/user/x", "/tmp"} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: bad}}})
		wantCode(t, err, v1.CodeInvalidSpec)
	}
}

// bareRoot makes a root file system with one static program and nothing else.
func bareRoot(t *testing.T) string {
	t.Helper()
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "recluse-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "app"), 0o755)); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, guest.Path, filepath.Join(dir, "app", "program"))
	return dir
}

func TestARootWithoutShellAndPython(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{RootFS: bareRoot(t)})
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"/app/program"}})
	if err != nil || v.ExitCode != 2 || !strings.Contains(v.Stderr.String(), "only recluse starts this program") {
		t.Fatalf("%v %v %s", v, err, v.Stderr)
	}
	toldInTime(t, func() {
		_, err := sb.Run(t.Context(), sandbox.Command{Shell: "true"})
		wantCode(t, err, v1.CodeNoShell)
	})
	toldInTime(t, func() {
		_, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1"})
		wantCode(t, err, v1.CodeNoPython)
	})
	v, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"nothing"}})
	if err != nil || v.ExitCode != 127 {
		t.Errorf("%v %v", v, err)
	}
}

func TestRootsThatCannotBe(t *testing.T) {
	b := testBackend(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const name = "use a directory that contains a system"
	for what, c := range map[string]struct {
		spec            sandbox.Spec
		code            v1.Code
		message, remedy string
	}{
		"nothing there":       {sandbox.Spec{RootFS: "/does/not/exist"}, v1.CodeRootFS, "/does/not/exist cannot be used", "create it first"},
		"a file":              {sandbox.Spec{RootFS: file}, v1.CodeRootFS, "cannot be used", name},
		"all of the host":     {sandbox.Spec{RootFS: "/"}, v1.CodeRootFS, "cannot be used", "made for sharing"},
		"an empty directory":  {sandbox.Spec{RootFS: t.TempDir()}, v1.CodeRootFS, "cannot be used", name},
		"an empty archive":    {sandbox.Spec{Image: "tar:" + file}, v1.CodeInvalidSpec, "contains neither manifest.json nor index.json", "docker-save"},
		"no archive":          {sandbox.Spec{Image: "/none.tar"}, v1.CodeImageNotFound, "none.tar\" not found", "check the path"},
		"too little memory":   {sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 20}}, v1.CodeInvalidSpec, "memory of 1 MiB", ""},
		"less than nothing":   {sandbox.Spec{Limits: sandbox.Limits{CPUs: -1}}, v1.CodeInvalidSpec, "-1 cpus", ""},
		"too few processes":   {sandbox.Spec{Limits: sandbox.Limits{Processes: 1}}, v1.CodeInvalidSpec, "1 processes", ""},
		"more disk than room": {sandbox.Spec{ReadOnly: true, Limits: sandbox.Limits{Memory: 1 << 28, Disk: 1 << 30}}, v1.CodeInvalidSpec, "disk of", ""},
	} {
		t.Run(what, func(t *testing.T) {
			toldInTime(t, func() {
				_, err := sandbox.Open(t.Context(), b, c.spec)
				wantError(t, err, c.code, c.message, c.remedy)
			})
		})
	}
}

// TestAMountKeepsItsOwner mounts directories of the host where programs install, which get another owner otherwise.
func TestAMountKeepsItsOwner(t *testing.T) {
	testneed.Root(t, "changing owners")
	b := testBackend(t)
	for _, path := range []string{"/opt", "/srv"} {
		dir := t.TempDir()
		below := filepath.Join(dir, "bin")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: path, Writable: true}}})
		sh(t, sb, "stat "+path+"/bin")
		for _, name := range []string{dir, below} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
				t.Errorf("mounted on %s, %s has another owner", path, name)
			}
		}
	}
}
