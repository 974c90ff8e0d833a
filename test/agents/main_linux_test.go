package agents

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if programs != "" {
			_ = os.RemoveAll(programs)
		}
		os.Exit(code)
	}))
}

// patience bounds an installation, and a run of an agent.
const patience = 4 * time.Minute

var (
	programs string // directory with recluse, engine and guest
	built    = sync.OnceValue(build)
)

// build makes recluse once for all tests, with its parts beside it: agents do not hand on the whole environment.
func build() error {
	engine, guest, err := testbin.Programs()
	if err != nil {
		return err
	}
	if programs, err = os.MkdirTemp("", "recluse-agents-"); err != nil {
		return err
	}
	for _, tool := range []string{engine.Path, guest.Path} {
		if err := os.Symlink(tool, filepath.Join(programs, filepath.Base(tool))); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-o", programs, "github.com/recluse-dev/recluse/cmd/recluse").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// packages are the agents, and the Node.js that Claude Code wants. A change needs a new directory in install.
var packages = []string{"@anthropic-ai/claude-code@2.1.197", "opencode-ai@1.18.33", "@openai/codex@0.166.0", "node@22"}

var install = sync.OnceValues(func() (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "recluse-test", "agents-1")
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund"}, packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, os.WriteFile(done, nil, 0o644)
})

// installed returns the directory with the agents' programs. It is kept for the next time.
func installed(t *testing.T) string {
	t.Helper()
	dir, err := install()
	if err != nil {
		testneed.Lacking(t, "packages from npm", err)
	}
	return filepath.Join(dir, "node_modules", ".bin")
}
