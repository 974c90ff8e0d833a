package dockerengine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/system"
	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheEngineIsChosenAsTheDockerCommandDoes(t *testing.T) {
	dir := dockertest.Config(t)
	dockertest.WriteContext(t, dir, "office", "unix:///office.sock")
	dockertest.WriteContext(t, dir, "lab", "unix:///lab.sock")
	check := func(name string, o Options, want string) {
		t.Helper()
		if at, err := endpoint(o); err != nil || at.Host != want {
			t.Errorf("%s: %q, %v, want %q", name, at.Host, err, want)
		}
	}
	check("no setting", Options{}, "")
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"currentContext": "office"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	check("the current context", Options{}, "unix:///office.sock")
	t.Setenv("DOCKER_CONTEXT", "lab")
	check("DOCKER_CONTEXT", Options{}, "unix:///lab.sock")
	t.Setenv("DOCKER_HOST", "tcp://1.2.3.4:5")
	check("DOCKER_HOST before DOCKER_CONTEXT", Options{}, "tcp://1.2.3.4:5")
	check("a context in the options", Options{Context: "office"}, "unix:///office.sock")
	check("a host in the options", Options{Host: "ssh://me@there", Context: "office"}, "ssh://me@there")
	if _, err := endpoint(Options{Context: "moon"}); err == nil || !strings.Contains(err.Error(), `"moon"`) {
		t.Errorf("missing context: %v", err)
	}
}

func TestARuntimeIsWhatItsProgramIs(t *testing.T) {
	for name, c := range map[string]struct {
		runtime string
		is      system.Runtime
		want    sandbox.Isolation
	}{
		"runc":                            {"runc", system.Runtime{Path: "runc"}, sandbox.IsolationContainer},
		"crun":                            {"crun", system.Runtime{Path: "/usr/bin/crun"}, sandbox.IsolationContainer},
		"runsc":                           {"runsc", system.Runtime{Path: "/usr/local/bin/runsc"}, sandbox.IsolationKernel},
		"our engine":                      {"mine", system.Runtime{Path: "/usr/local/bin/recluse-engine"}, sandbox.IsolationKernel},
		"runc that is called runsc":       {"runsc", system.Runtime{Path: "/usr/bin/runc"}, sandbox.IsolationContainer},
		"runc that is called kata":        {"kata", system.Runtime{Path: "runc"}, sandbox.IsolationContainer},
		"runc in a directory of runsc's":  {"runsc", system.Runtime{Path: "/opt/runsc/runc"}, sandbox.IsolationContainer},
		"a shim that no list names":       {"io.containerd.runsc.v1", system.Runtime{}, sandbox.IsolationKernel},
		"a name without a program":        {"runsc", system.Runtime{}, sandbox.IsolationKernel},
		"a shim":                          {"gv", system.Runtime{Type: "io.containerd.runsc.v1"}, sandbox.IsolationKernel},
		"runc's shim that is called kata": {"kata", system.Runtime{Type: "io.containerd.runc.v2"}, sandbox.IsolationContainer},
		"runc's shim with runsc":          {"x", system.Runtime{Type: "io.containerd.runc.v2", Options: map[string]any{"BinaryName": "/usr/bin/runsc"}}, sandbox.IsolationKernel},
		"kata's shim":                     {"kata", system.Runtime{Type: "io.containerd.kata.v2"}, sandbox.IsolationVM},
		"an unknown runtime":              {"youki", system.Runtime{Path: "/usr/bin/youki"}, sandbox.IsolationContainer},
	} {
		if got := isolationOf(c.runtime, c.is); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
