package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Mistakes of similar software that no other test covers. The table is in docs/backends/docker.md.

func TestAContainerThatCannotStartLeavesNothing(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.HostConfig = []byte(`{"Sysctls": {"kernel.nonesuch": "1"}}`) })
	if sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{}); err == nil {
		t.Error("it started:", sb.ID(), sb.Close())
	}
	if left := docker(t, "ps", "-aq", "--filter", "label=dev.recluse.instance="+b.instance); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

func TestSecretsAndCodeAreInNoCommandLine(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{Env: map[string]string{"KEY": "flaw-of-the-spec"}})
	v, err := sb.Cell(t.Context(), sandbox.Cell{RunOptions: sandbox.RunOptions{Env: map[string]string{"MORE": "flaw-of-the-cell"}}, Code: `
import os
mine = "flaw-in-" + "the-code"
(os.environ["KEY"], os.environ["MORE"])`})
	if err != nil || v.Result.Text() != "('flaw-of-the-spec', 'flaw-of-the-cell')" {
		t.Fatalf("%v, %v", v, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(lines) == 0 {
		t.Fatal(lines, err)
	}
	for _, name := range lines {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), "flaw-of-") || strings.Contains(string(text), "flaw-in-") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestMountsThatGetAroundAListAreRefused(t *testing.T) {
	b := newBackend(t, nil)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"/", "//", "/etc/", "//etc", "/usr/../etc", "/proc/self/root", "/proc/1", "/sys/kernel", "/run", "/var", "/var/run", "/root", "/dev", link, filepath.Join(link, "ssl")} {
		sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: host, Path: "/mnt/x"}}})
		if code := v1.CodeOf(err); code != v1.CodeMountRefused && code != v1.CodeInvalidSpec {
			t.Errorf("%s: %v", host, err)
		}
		if err == nil {
			_ = sb.Close()
		}
	}
}

func TestProgramsRunFromHome(t *testing.T) {
	sb := open(t, newBackend(t, nil), sandbox.Spec{})
	if got := shell(t, sb, "cp /bin/echo ~/mine && ~/mine runs"); got != "runs\n" {
		t.Error(got)
	}
}

func TestOutputThatJustFitsIsNotCalledCut(t *testing.T) {
	sb := open(t, newBackend(t, nil), sandbox.Spec{})
	for _, n := range []int{1024, 1025} {
		v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", "print('é' * 512, end='x' if " + map[bool]string{true: "True", false: "False"}[n == 1025] + " else '')"}, RunOptions: sandbox.RunOptions{InlineBytes: 1024}})
		if err != nil || !v.OK() {
			t.Fatal(v, err)
		}
		if v.Stdout.Produced != int64(n) || v.Stdout.Kept() != 1024 {
			t.Errorf("of %d bytes %d are counted and %d kept", n, v.Stdout.Produced, v.Stdout.Kept())
		}
		if n == 1024 && v.Stdout.String() != strings.Repeat("é", 512) {
			t.Errorf("it is %q", v.Stdout.String())
		}
	}
}

func TestAStopThatFailsIsTold(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Host = "unix:///nowhere/docker.sock" })
	if err := b.Stop(t.Context(), "d-0123456789ab"); v1.CodeOf(err) != v1.CodeBackendMissing {
		t.Errorf("got %v", err)
	}
	if _, err := b.List(t.Context()); v1.CodeOf(err) != v1.CodeBackendMissing {
		t.Errorf("list: got %v", err)
	}
	// If there never was a Docker engine, the list is empty, without an error.
	b = newBackend(t, func(o *Options) { o.Host, o.Instance = "unix:///nowhere/docker.sock", "" })
	if all, err := b.List(t.Context()); len(all) > 0 || err != nil {
		t.Errorf("list without an engine: %v, %v", all, err)
	}
	if err := b.own.MarkUsed(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.List(t.Context()); v1.CodeOf(err) != v1.CodeBackendMissing {
		t.Errorf("list of an instance that has made something: %v", err)
	}
}
