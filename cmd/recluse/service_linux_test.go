package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	unitFile = "../../contrib/recluse.service"
	systemd  = "/lib/systemd/systemd"
)

func TestTheUnitIsUnderstood(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		lacking(t, "systemd is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "recluse.service")
	text := bytes.ReplaceAll(read(t, unitFile), []byte("/usr/local/bin/recluse "), []byte(self+" ")) // which is not installed here
	if err := os.WriteFile(unit, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || len(out) > 0 { // what it does not know it passes over, with a word
		t.Errorf("%v: %s", err, out)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// manager is systemd as it looks after the services of one user.
type manager struct {
	t   *testing.T
	env []string
}

// newManager starts one that knows our unit. It wants to believe that it runs on a system of systemd's, so it gets a /run of its own.
func newManager(t *testing.T, unit string) *manager {
	t.Helper()
	if _, err := os.Stat(systemd); err != nil || os.Getuid() != 0 {
		lacking(t, "systemd is not installed, or cannot be run by this user")
	}
	home, err := os.MkdirTemp("", "rsd") // short, for its sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	units := filepath.Join(home, "systemd", "user")
	if err := os.MkdirAll(units, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(units, "recluse.service"), []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, env: append(os.Environ(), "XDG_RUNTIME_DIR="+home, "XDG_CONFIG_HOME="+home, "DBUS_SESSION_BUS_ADDRESS=")}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "+systemd+" --user --unit=basic.target --log-target=console")
	var log bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = m.env, &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it has been asked to leave
		if t.Failed() {
			t.Logf("systemd said: %s", log.String())
		}
	})
	w := &world{t: t}
	w.await("systemd answers", func() bool { _, err := m.ctl("show", "--property=Version"); return err == nil })
	return m
}

func (m *manager) ctl(args ...string) (string, error) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "systemctl", append([]string{"--user", "--no-pager"}, args...)...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (m *manager) must(args ...string) string {
	m.t.Helper()
	out, err := m.ctl(args...)
	if err != nil {
		m.t.Fatalf("systemctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// pid is that of the server; 0: none.
func (m *manager) pid() int {
	m.t.Helper()
	n, err := strconv.Atoi(m.must("show", "--value", "--property=MainPID", "recluse"))
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// unitOf is our unit as a user installs it: without the directories of the system, and with this test as the program.
func unitOf(t *testing.T, w *world) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(filepath.Dir(w.data), "config.yaml")
	if err := os.WriteFile(config, []byte("server:\n  listen: 127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(read(t, unitFile))) {
		name, _, _ := strings.Cut(line, "=")
		switch name {
		case "StateDirectory", "CacheDirectory", "ConfigurationDirectory", "StateDirectoryMode", "CacheDirectoryMode":
			continue
		case "ExecStart":
			line = "ExecStart=" + self + " serve --config " + config + "\n"
		case "Environment":
			line = "Environment=RECLUSE_ENV=production " + asRecluse + "=1 " + strings.Join(w.env, " ") + "\n"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// sweepCgroups removes, once everything has ended, the empty cgroups that systemd leaves where there were none.
func sweepCgroups(t *testing.T) {
	t.Helper()
	var made []string
	for _, name := range []string{"app.slice/recluse.service", "app.slice", "init.scope"} { // the inner one first
		for _, tree := range []string{"systemd", "unified"} {
			path := filepath.Join("/sys/fs/cgroup", tree, name)
			if _, err := os.Stat(path); os.IsNotExist(err) {
				made = append(made, path)
			}
		}
	}
	t.Cleanup(func() {
		for _, path := range made {
			_ = os.Remove(path) // only what is empty goes
		}
	})
}

func TestTheUnitUnderSystemd(t *testing.T) {
	t.Parallel()
	sweepCgroups(t)
	w := newWorld(t)
	for _, name := range []string{"RECLUSE_ENGINE", "RECLUSE_GUEST"} { // systemd hands nothing on
		if value := os.Getenv(name); value != "" {
			w.env = append(w.env, name+"="+value)
		}
	}
	m := newManager(t, unitOf(t, w))
	m.must("start", "recluse") // returns once the server has said that it is ready
	first := m.pid()
	w.expect("", "exec", "--session", "work", "--python", "x = 40")
	w.expect("41\n", "exec", "--session", "work", "--python", "x += 1; x")

	m.must("restart", "recluse") // as for an upgrade
	second := m.pid()
	if second == 0 || second == first {
		t.Errorf("the server was %d and is %d", first, second)
	}
	w.expect("42\n", "exec", "--session", "work", "--python", "x += 1; x")

	if err := syscall.Kill(second, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.await("systemd starts it again", func() bool {
		now := m.pid()
		return now != 0 && now != second && m.must("show", "--value", "--property=ActiveState", "recluse") == "active"
	})
	w.expect("43\n", "exec", "--session", "work", "--python", "x += 1; x")

	m.must("stop", "recluse")
	if n := len(w.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes have outlived the service", n)
	}
	w.expect("44\n", "exec", "--session", "work", "--python", "x += 1; x") // by a server of the command line's own
}
