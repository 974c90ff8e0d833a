package agents

import (
	"os"
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
		testbin.Remove()
		os.Exit(code)
	}))
}

// agentTimeout is the timeout of a run of an agent.
const agentTimeout = 4 * time.Minute

// packages are the agents, and the Node.js that Claude Code requires.
var packages = []string{"@anthropic-ai/claude-code@2.1.197", "opencode-ai@1.18.33", "@openai/codex@0.166.0", "node@22.23.3"}

var installing sync.Mutex

// installed installs the agents and returns the directory with their programs.
func installed(t *testing.T) string {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	return filepath.Join(testneed.NPM(t, packages...), "node_modules", ".bin")
}
