package dockersetup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestTheConfigurationOfAnEngine(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "/config")
	for host, want := range map[string]string{
		"":                                  "/etc/docker/daemon.json",
		"unix:///var/run/docker.sock":       "/etc/docker/daemon.json",
		"unix:///run/docker.sock":           "/etc/docker/daemon.json",
		"unix:///run/user/1000/docker.sock": "/config/docker/daemon.json",
	} {
		if got, err := daemonFile(host); err != nil || got != want {
			t.Errorf("%q: %q, %v", host, got, err)
		}
	}
	for host, says := range map[string]string{"tcp://1.2.3.4:5": "not on this machine", "unix:///elsewhere.sock": "--daemon-config"} {
		if _, err := daemonFile(host); v1.CodeOf(err) != v1.CodeInvalidRequest || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", host, err)
		}
	}
}

func TestARuntimeIsInstalledAndRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	r := Runtime{Name: "mine", File: file, Program: "/opt/engine"}
	i, err := r.Install(t.Context())
	if err != nil || !i.Needed() || i.Program != "/opt/engine" {
		t.Fatalf("%+v, %v", i, err)
	}
	if err := i.Apply(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "/opt/engine") {
		t.Errorf("%s, %v", text, err)
	}
	undo, err := r.Uninstall(t.Context())
	if err != nil || !undo.Needed() || undo.Backup == "" {
		t.Fatalf("%+v, %v", undo, err)
	}
	if err := undo.Apply(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "/opt/engine") {
		t.Errorf("%s, %v", text, err)
	}
}
