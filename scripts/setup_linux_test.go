package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSetupSaysWhatIsMissing runs the script on a machine that has almost no programs. Nothing is installed, because
// apt-get is a fake.
func TestSetupSaysWhatIsMissing(t *testing.T) {
	const (
		user, root = "#!/bin/sh\necho 1000\n", "#!/bin/sh\necho 0\n"
		works      = "#!/bin/sh\necho never shown\n"
		fails      = "#!/bin/sh\necho no network\nexit 100\n"
	)
	for name, c := range map[string]struct {
		programs map[string]string
		ci       string
		status   int
		says     []string
	}{
		"without Go": {
			map[string]string{"id": user}, "", 1, []string{"not on PATH", "https://go.dev/dl/"},
		},
		"as an ordinary user": {
			map[string]string{"id": user, "go": works, "apt-get": fails},
			"", 0,
			[]string{
				"these packages are missing; installing them requires root", "\n    gcc: go test -race\n",
				"\n    apt-get install -y --no-install-recommends ", " gcc ", "continuing without them",
			},
		},
		"as an ordinary user in CI": {
			map[string]string{"id": user, "go": works},
			"true", 1,
			[]string{"these packages are missing", "gcc: go test -race"},
		},
		"as root": {
			map[string]string{"id": root, "go": works, "apt-get": works}, "", 0, []string{"==> installing ", "gcc: go test -race"},
		},
		"as root, when it fails": {
			map[string]string{"id": root, "go": works, "apt-get": fails},
			"", 0,
			[]string{"==> installing ", "no network", "these packages could not be installed: ", "continuing without them"},
		},
		"as root in CI, when it fails": {
			map[string]string{"id": root, "go": works, "apt-get": fails},
			"true", 1,
			[]string{"no network", "these packages could not be installed: "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for program, text := range c.programs {
				if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, program := range []string{"mktemp", "rm", "tail"} {
				path, err := exec.LookPath(program)
				if err == nil {
					err = os.Symlink(path, filepath.Join(dir, program))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			bash, err := exec.LookPath("bash")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), bash, "setup.sh", "test")
			cmd.Env = []string{"PATH=" + dir, "TMPDIR=" + dir, "CI=" + c.ci}
			out, err := cmd.CombinedOutput()
			if e, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || cmd.ProcessState.ExitCode() != c.status {
				t.Errorf("ended with %v, %v; want status %d", err, e, c.status)
			}
			for _, words := range c.says {
				if !strings.Contains(string(out), words) {
					t.Errorf("the output lacks %q:\n%s", words, out)
				}
			}
			if strings.Contains(string(out), "never shown") {
				t.Errorf("the output contains that of a successful apt-get:\n%s", out)
			}
		})
	}
}
