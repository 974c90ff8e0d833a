package e2b

import (
	"bufio"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// The npm packages of the SDKs, and the oldest versions that work.
var (
	packages = []string{"e2b@2.51.0", "@e2b/code-interpreter@2.8.0"}
	floor    = []string{"e2b@2.7.0", "@e2b/code-interpreter@2.7.0"}
)

// testTimeout is the timeout of each script.
const testTimeout = 4 * time.Minute

var installing sync.Mutex

// sdks returns a directory in which packages are installed.
func sdks(t *testing.T, names []string) string {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		testneed.Lacking(t, "node", err)
	}
	installing.Lock()
	defer installing.Unlock()
	return testneed.NPM(t, names...)
}

// testServer is a recluse server with the API of E2B, and with its own home directory.
type testServer struct {
	*testbin.Server
	t    *testing.T
	vars map[string]string // the variables that it prints
}

// serve starts a server with further environment variables.
func serve(t *testing.T, more ...string) *testServer {
	t.Helper()
	testneed.Sandboxes(t)
	s, err := testbin.NewServer(t.TempDir(), append([]string{"--e2b"}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &testServer{Server: s, t: t, vars: s.Exports}
}

// node runs a script of testdata with the SDKs, and returns its output.
func (s *testServer) node(sdk, script string, env ...string) string {
	s.t.Helper()
	return s.run(sdk, []string{script}, env)
}

// eval runs code with the SDKs, and returns its output.
func (s *testServer) eval(sdk, code string) string {
	s.t.Helper()
	return s.run(sdk, []string{"-e", code}, nil)
}

func (s *testServer) run(sdk string, args, env []string) string {
	s.t.Helper()
	return s.runUntil(sdk, args, env, "", nil)
}

// runUntil is run that calls then when the program has printed a line.
func (s *testServer) runUntil(sdk string, args, env []string, line string, then func()) string {
	s.t.Helper()
	dir := s.t.TempDir()
	if err := os.Symlink(filepath.Join(sdk, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		s.t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	for _, name := range slices.Sorted(maps.Keys(s.vars)) {
		cmd.Env = append(cmd.Env, name+"="+s.vars[name])
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewReader(out); ; {
		l, err := lines.ReadString('\n')
		text.WriteString(l)
		if then != nil && strings.TrimSpace(l) == line {
			then()
			then = nil
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil || then != nil {
		s.t.Fatalf("%s: %v\n%s", args, err, text.String())
	}
	return text.String()
}
