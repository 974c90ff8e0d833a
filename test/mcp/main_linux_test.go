package mcp

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
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

var (
	programs string // directory with recluse, engine and guest
	built    = sync.OnceValue(build)
)

// build makes recluse once for all tests.
func build() (err error) {
	programs, err = testbin.Installed()
	return err
}

// The programs of others that speak to ours.
const (
	inspectorPackage   = "@modelcontextprotocol/inspector@2.12.0"
	conformancePackage = "@modelcontextprotocol/conformance@0.1.16"
	nodePackage        = "node@22.23.3" // the conformance suite needs one that is newer than most distributions'
)

const patience = 4 * time.Minute

var installing sync.Mutex

// node returns a directory in which the packages above are installed.
func node(t *testing.T) string {
	t.Helper()
	testneed.Sandboxes(t)
	installing.Lock()
	defer installing.Unlock()
	return testneed.NPM(t, nodePackage, inspectorPackage, conformancePackage)
}

// place is a recluse of its own, with a server that listens.
type place struct {
	program string
	env     []string
	url     string
	key     string // that its callers over HTTP send; empty: none
}

// serve starts a server, with some more environment, or flags.
func serve(t *testing.T, more ...string) *place {
	t.Helper()
	testneed.Sandboxes(t)
	if err := built(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &place{program: filepath.Join(programs, "recluse")}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	p.env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=", "XDG_RUNTIME_DIR=", "RECLUSE_ENV=",
		"RECLUSE_BACKEND_ORDER=gvisor") // the one that is there; one that has nobody beside it is not asked first whether it works
	args := []string{"serve", "--listen", "127.0.0.1:0"}
	for _, m := range more {
		if strings.HasPrefix(m, "--") {
			args = append(args, m)
		} else {
			p.env = append(p.env, m)
		}
	}
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Env = p.env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for p.url == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "listening on http://"); ok {
			p.url = "http://" + strings.TrimSpace(rest)
		}
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		for lines.Scan() {
		}
	}()
	t.Cleanup(func() {
		end := exec.Command(p.program, "session", "end", "--all") // a server that is stopped leaves them to the next
		end.Env = p.env
		if out, err := end.CombinedOutput(); err != nil {
			t.Errorf("ending the sessions: %v: %s", err, out)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "143") {
			t.Errorf("the server: %v", err)
		}
	})
	if p.url == "" {
		t.Fatal("the server does not listen")
	}
	return p
}
