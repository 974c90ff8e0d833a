package e2b

import (
	"bufio"
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// The npm packages of the SDKs, and the oldest versions that work.
var (
	packages = []string{"e2b@2.51.0", "@e2b/code-interpreter@2.8.0"}
	floor    = []string{"e2b@2.7.0", "@e2b/code-interpreter@2.7.0"}
)

// testTimeout is the timeout of a server and of each script.
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
	t      *testing.T
	home   string
	env    []string          // of the server
	listen string            // host:port
	vars   map[string]string // the variables that it prints
	cmd    *exec.Cmd
	ended  chan struct{} // closed when its output has ended
}

// serve starts a server with further environment variables.
func serve(t *testing.T, more ...string) *testServer {
	t.Helper()
	testneed.Sandboxes(t)
	if err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	shared := filepath.Join(programs, "shared")
	if err := testbin.ShareTemplates(shared, filepath.Join(home, ".local", "share")); err != nil {
		t.Fatal(err)
	}
	s := &testServer{t: t, home: home, listen: "127.0.0.1:0", vars: map[string]string{}}
	s.env = append(append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME="+shared,
		"XDG_RUNTIME_DIR=", "RECLUSE_ENV=", "RECLUSE_BACKEND_ORDER=gvisor", "RECLUSE_POOL_ENABLED=false"), more...)
	s.start()
	t.Cleanup(func() {
		if out, err := s.recluse("session", "end", "--all"); err != nil { // sessions outlive the server
			t.Errorf("end the sessions: %v: %s", err, out)
		}
		s.stop(syscall.SIGTERM)
	})
	return s
}

// recluse runs a command on the server.
func (s *testServer) recluse(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "recluse"), args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// start starts the server and reads the variables that it prints.
func (s *testServer) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(programs, "recluse"), "serve", "--listen", s.listen, "--e2b")
	s.cmd.Env = s.env
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var seen []string
	for s.vars["E2B_SANDBOX_URL"] == "" && s.vars["E2B_DOMAIN"] == "" && lines.Scan() {
		seen = append(seen, lines.Text())
		if _, address, ok := strings.Cut(lines.Text(), "listening on "); ok {
			_, s.listen, _ = strings.Cut(address, "://")
		}
		if name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "="); ok && strings.HasPrefix(name, "E2B_") {
			s.vars[name] = value
		}
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		for lines.Scan() {
		}
	}()
	if s.vars["E2B_API_KEY"] == "" || s.vars["E2B_API_URL"] == "" && s.vars["E2B_DOMAIN"] == "" {
		s.t.Fatalf("the server printed %q", seen)
	}
	if _, _, err := net.SplitHostPort(s.listen); err != nil {
		s.t.Fatal(err)
	}
}

// stop ends the server with a signal.
func (s *testServer) stop(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig)
	<-s.ended
	err := s.cmd.Wait()
	if err != nil && sig != syscall.SIGKILL && !strings.Contains(err.Error(), "143") {
		s.t.Errorf("the server failed: %v", err)
	}
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
