package mcpclients

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
	programs  string // directory with recluse, engine and guest
	buildOnce = sync.OnceValue(build)
)

// build builds recluse for all tests.
func build() (err error) {
	programs, err = testbin.Installed()
	return err
}

// The npm packages of the clients of other projects.
const (
	inspectorPackage   = "@modelcontextprotocol/inspector@2.12.0"
	conformancePackage = "@modelcontextprotocol/conformance@0.1.16"
	nodePackage        = "node@22.23.3" // the conformance suite needs a newer version than most distributions have
)

// testTimeout is the timeout of a server and of each client.
const testTimeout = 4 * time.Minute

var installing sync.Mutex

// node returns a directory in which the packages above are installed.
func node(t *testing.T) string {
	t.Helper()
	testneed.Sandboxes(t)
	installing.Lock()
	defer installing.Unlock()
	return testneed.NPM(t, nodePackage, inspectorPackage, conformancePackage)
}

// testServer is a recluse server that listens on TCP, with its own home directory.
type testServer struct {
	program string
	env     []string
	url     string
	key     string // key of callers over HTTP; empty: none
}

// serve starts a server with further environment variables and flags.
func serve(t *testing.T, more ...string) *testServer {
	t.Helper()
	testneed.Sandboxes(t)
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	shared := filepath.Join(programs, "shared")
	if err := testbin.ShareTemplates(shared, filepath.Join(dir, ".local", "share")); err != nil {
		t.Fatal(err)
	}
	p := &testServer{program: filepath.Join(programs, "recluse")}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	p.env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="+shared, "XDG_RUNTIME_DIR=", "RECLUSE_ENV=",
		"RECLUSE_BACKEND_ORDER=gvisor", // a single backend is not probed before its first use
		"RECLUSE_POOL_ENABLED=false")
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
		end := exec.Command(p.program, "session", "end", "--all") // sessions outlive the server
		end.Env = p.env
		if out, err := end.CombinedOutput(); err != nil {
			t.Errorf("end the sessions: %v: %s", err, out)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "143") {
			t.Errorf("the server failed: %v", err)
		}
	})
	if p.url == "" {
		t.Fatal("the server does not listen")
	}
	return p
}
