package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/doctor"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestDocker uses a Docker engine from the command line, first with its own runtime, then with recluse-engine.
func TestDocker(t *testing.T) {
	ready(t)
	t.Setenv(dockertest.Variable, "") // use a private engine, because the test changes its configuration
	e, err := dockertest.Start(t.Context(), "")
	if errors.Is(err, dockertest.ErrMissing) {
		testneed.Lacking(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Dir(strings.TrimPrefix(e.Host, "unix://"))
	t.Setenv("DOCKER_HOST", e.Host)
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	must := func(args ...string) string {
		t.Helper()
		r := run(t, "", args...)
		if r.status != 0 {
			t.Fatalf("recluse %v: %+v", args, r)
		}
		return r.stdout
	}
	refused := func(part string, args ...string) {
		t.Helper()
		if r := run(t, "", args...); r.status != statusFailure || !strings.Contains(r.stderr, part) {
			t.Errorf("recluse %v: %+v, want %q", args, r, part)
		}
	}
	if got := must("image", "from-host", "--tag", "mine"); got != "mine\n" {
		t.Errorf("%q", got)
	}
	refused("the pull policy is never", "exec", "--backend", "docker", "--image", "recluse-nonesuch", "--pull", "never", "true")
	refused("one of missing, always, never", "exec", "--backend", "docker", "--pull", "sometimes", "true")
	refused("configuration of their server", "exec", "--session", "x", "--pull", "always", "true")
	t.Setenv("RECLUSE_DOCKER_IMAGE", "mine")
	t.Setenv("RECLUSE_DOCKER_PULL", "never")
	kernel := []string{"exec", "--backend", "docker", "--python", "import platform; print(platform.release())"}
	if got := must(kernel...); strings.TrimSpace(got) != doctor.HostKernel() {
		t.Errorf("runc's kernel is %q", got)
	}
	const whoami = "id -u; cat /proc/self/oom_score_adj; basename $SHELL; ulimit -n; hostname"
	if got := must("exec", "--backend", "docker", "--user", "nobody", "--oom-score-adj", "700", "--shell", "dash", "--open-files", "99", "--hostname", "mine", "--", "sh", "-c", whoami); got != "65534\n700\ndash\n99\nmine\n" {
		t.Errorf("the flags of the sandbox made %q", got)
	}
	refused("docker.unsafe_root", "exec", "--backend", "docker", "--user", "root", "true")
	began := strconv.FormatInt(time.Now().UnixNano(), 10)
	must("exec", "--backend", "docker", "true")
	if got := containersSince(t, e.Host, began); len(got) != 1 {
		t.Errorf("one command made %q", got)
	}
	// The docker backend is tried after gVisor, and needs its own consent.
	if got := must("doctor", "--backend", "docker"); !strings.Contains(got, "isolation: container") || !strings.Contains(got, "runtime runc of ") {
		t.Errorf("doctor: %s", got)
	}

	file := filepath.Join(dir, "daemon.json")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	install := []string{"install-runtime", "--daemon-config", file, "--program", os.Getenv("RECLUSE_ENGINE")}
	if os.Getenv("RECLUSE_ENGINE") == "" {
		testneed.Lacking(t, "RECLUSE_ENGINE does not name the engine")
	}
	if got := must(append(install, "--dry-run")...); !strings.Contains(got, `"runsc"`) {
		t.Errorf("dry run: %s", got)
	}
	refused("no terminal to ask", install...)
	if now, err := os.ReadFile(file); err != nil || string(now) != string(before) {
		t.Fatalf("the file was changed: %s, %v", now, err)
	}
	if got := must(append(install, "--yes")...); !strings.Contains(got, "systemctl reload docker") {
		t.Errorf("%s", got)
	}
	reload := func() {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	awaitDoctor := func(part string) {
		t.Helper()
		var got string
		for end := time.Now().Add(30 * time.Second); !strings.Contains(got, part); got = must("doctor", "--backend", "docker") {
			if time.Now().After(end) {
				t.Fatalf("doctor never says %q: %s", part, got)
			}
		}
	}
	reload()
	awaitDoctor("runtime runsc of ")
	if got := must(kernel...); strings.TrimSpace(got) == doctor.HostKernel() {
		t.Errorf("runsc's kernel is %q", got)
	}
	if got := must("install-runtime", "--daemon-config", file, "--undo", "--yes"); !strings.Contains(got, "written") {
		t.Errorf("%s", got)
	}
	reload()
	awaitDoctor("runtime runc of ")
	if now, err := os.ReadFile(file); err != nil || strings.Contains(string(now), "runsc") || !strings.Contains(string(now), "data-root") {
		t.Errorf("after the undoing: %s, %v", now, err)
	}
	kept, err := filepath.Glob(file + ".before-recluse-*")
	if err != nil || len(kept) == 0 {
		t.Errorf("no copy of the file was kept: %v", err)
	}
}

// containersSince returns the names of containers that were made since a moment, in nanoseconds.
func containersSince(t *testing.T, host, since string) []string {
	t.Helper()
	seconds := func(nano string) string { return nano[:len(nano)-9] + "." + nano[len(nano)-9:] }
	until := strconv.FormatInt(time.Now().UnixNano(), 10)
	out, err := exec.CommandContext(t.Context(), "docker", "-H", host, "events", "--since", seconds(since), "--until", seconds(until), "--filter", "event=create", "--filter", "type=container",
		"--format", "{{.Actor.Attributes.name}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}
