package docker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// testImage is an image built from this machine.
const testImage = dockertest.Image

// Shared by all tests.
var (
	engineHost string // address of the Docker engine; empty: there is none
	guestPath  string
	noEngine   string // why there is no engine
)

func TestMain(m *testing.M) {
	if os.Getenv(makerEnv) != "" {
		make1()
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	engine, guest, err := testbin.Programs()
	if err != nil {
		fmt.Fprintln(os.Stderr, "programs for tests:", err)
		return 1
	}
	guestPath = guest.Path
	flag.Parse()
	if testing.Short() { // short tests do not need an engine
		return runTests(m)
	}
	e, err := dockertest.Start(context.Background(), engine.Path)
	if errors.Is(err, dockertest.ErrMissing) && os.Getenv("CI") != "true" {
		noEngine, err = err.Error(), nil
		fmt.Fprintf(os.Stderr, "\nSKIPPED: the tests that need a Docker engine: %s\n\n", noEngine)
	}
	if e != nil {
		engineHost = e.Host
		defer func() {
			if err := e.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		err = e.Prepare(context.Background(), buildImage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the Docker engine for tests:", err)
		return 1
	}
	return runTests(m)
}

func runTests(m *testing.M) int {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func buildImage(ctx context.Context, host string) error {
	b, err := New(Options{Host: host, Instance: "test-image", Dir: os.TempDir(), GuestPath: guestPath})
	if err != nil {
		return err
	}
	defer b.Close()
	return b.ImportHost(ctx, testImage)
}

// newBackend returns a backend with its own instance. At the end of the test it checks that nothing is left.
func newBackend(t *testing.T, change func(*Options)) *Backend {
	t.Helper()
	testneed.Sandboxes(t)
	if engineHost == "" {
		t.Skip("SKIPPED: " + noEngine)
	}
	o := Options{Host: engineHost, Image: testImage, Pull: PullNever, Dir: t.TempDir(), GuestPath: guestPath, Instance: "test-" + randomHex(4), Egress: sandboxtest.Network()}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	return sandboxtest.Use(t, b, err)
}

func open(t *testing.T, b *Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	return sandboxtest.Open(t, b, spec)
}

// docker runs the docker command with the engine of the tests, like another program would.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	testneed.Sandboxes(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", append([]string{"-H", engineHost}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// shell runs a script that must succeed and returns its output.
func shell(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: script})
	if err != nil || !v.OK() {
		t.Fatalf("%s: %v, %v\n%s", script, v, err, stderrOf(v))
	}
	return v.Stdout.String()
}

func stderrOf(v *sandbox.Verdict) string {
	if v == nil {
		return ""
	}
	return v.Stderr.String()
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("did not happen in time: %s", what)
	}
}

// leftovers returns what the Docker engine still has of sandboxes.
func leftovers(t *testing.T, ids []string) []string {
	t.Helper()
	var left []string
	for line := range strings.Lines(docker(t, "ps", "-a", "--format", "{{.Names}} {{.State}}")) {
		for _, id := range ids {
			if strings.Contains(line, id) {
				left = append(left, strings.TrimSpace(line))
			}
		}
	}
	return left
}

// makerEnv is the environment variable that makes this test program another program, which makes a sandbox and waits to
// be killed.
const makerEnv = "RECLUSE_TEST_MAKER"

func make1() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, instance, _ := strings.Cut(os.Getenv(makerEnv), "|")
	ctx := context.Background()
	b, err := New(Options{Host: os.Getenv(makerEnv + "_HOST"), Runtime: os.Getenv(makerEnv + "_RUNTIME"), Egress: sandboxtest.Network(), Image: testImage, Pull: PullNever, Dir: dir, GuestPath: os.Getenv(makerEnv + "_GUEST"), Instance: instance})
	if err != nil {
		fail(err)
	}
	spec := sandbox.Spec{Labels: map[string]string{"made": "elsewhere"}, Persist: os.Getenv(makerEnv+"_PERSIST") == "true"}
	if rule := os.Getenv(makerEnv + "_RULE"); rule != "" {
		spec.Network.Rules = []v1.NetworkRule{v1.NetworkRule(rule)}
	}
	sb, err := sandbox.Open(ctx, b, spec)
	if err != nil {
		fail(err)
	}
	if v, err := sb.Cell(ctx, sandbox.Cell{Code: "kept = 42"}); err != nil || !v.OK() {
		fail(fmt.Errorf("%v, %w", v, err))
	}
	if _, err := sb.Start(ctx, sandbox.Command{RunOptions: sandbox.RunOptions{ID: "counting"}, Shell: "i=0; until [ -e go ]; do i=$((i+1)); echo $i; sleep 0.01; done; echo end"}); err != nil {
		fail(err)
	}
	fmt.Println(sb.ID())
	select {}
}

// maker starts the other program and returns the sandbox it has made.
func maker(t *testing.T, b *Backend, persist bool, env ...string) (cmd *exec.Cmd, id string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Env = append(append(os.Environ(), env...), makerEnv+"="+b.dir+"|"+b.instance, makerEnv+"_GUEST="+guestPath, makerEnv+"_HOST="+engineHost, fmt.Sprintf("%s_PERSIST=%t", makerEnv, persist), makerEnv+"_RUNTIME="+b.opts.Runtime)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := fmt.Fscan(out, &id); err != nil {
		t.Fatalf("the other program made no sandbox: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.WithoutCancel(t.Context()), id); err != nil {
			t.Error(err)
		}
	})
	return cmd, id
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
