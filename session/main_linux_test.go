package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// shared is the directory in which the backends of all tests keep programs, root file systems and templates, because
// making them takes seconds.
var shared string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if dir := os.Getenv(childEnv); dir != "" {
		return child(dir)
	}
	engine, guest, err := testbin.Programs()
	if err == nil {
		err = errors.Join(os.Setenv("RECLUSE_ENGINE", engine.Path), os.Setenv("RECLUSE_GUEST", guest.Path))
	}
	if err == nil {
		shared, err = os.MkdirTemp("", "recluse-sessions-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared) }()
	code := m.Run()
	closeDockerBackends()
	if b, err := newBackend(shared); err == nil {
		for _, i := range list(b) {
			// an engine may finish only now what was asked for then
			if _, killed := tookOver.Load(i.Labels[labelInstance]); !killed || !dockertest.Chosen() {
				fmt.Fprintln(os.Stderr, "left behind:", i.ID, i.Labels)
				code = max(code, 1)
			}
			_ = b.Stop(context.Background(), i.ID)
		}
	}
	closeDockerBackends()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func list(b sandbox.Backend) []sandbox.Info {
	all, err := b.List(context.Background())
	if err != nil {
		panic(err)
	}
	return all
}

// bench is a manager with a real store on a real backend, which backend_linux_test.go chooses. It can be killed and
// restarted.
type bench struct {
	t    *testing.T
	dir  string
	b    sandbox.Backend
	opts Options
	m    *Manager

	tookOver bool // where a manager was killed
}

func newBench(t *testing.T, opts Options) *bench {
	t.Helper()
	return newBenchIn(t, t.TempDir(), opts)
}

// realBackend returns the backend that is tested, for a test that starts sandboxes.
func realBackend(t testing.TB) sandbox.Backend {
	t.Helper()
	testneed.Sandboxes(t)
	b, err := newBackend(shared)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newBenchIn returns a bench whose store is in a directory.
func newBenchIn(t *testing.T, dir string, opts Options) *bench {
	t.Helper()
	testneed.Parallel(t)
	b := realBackend(t)
	k := &bench{t: t, dir: dir, b: b, opts: opts}
	k.opts.Backends, k.opts.DataDir, k.opts.Require.AllowContainer = []sandbox.Backend{b}, k.dir, true
	if os.Getenv("RECLUSE_TEST_LOG") == "" {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.start()
	t.Cleanup(k.close)
	return k
}

// choose makes a manager use its only backend without a probe. On a busy machine the probe may take longer than its
// timeout.
func choose(m *Manager) {
	m.backendMu.Lock()
	defer m.backendMu.Unlock()
	m.chosen = m.opts.Backends[0]
	m.fit[m.chosen.Name()] = true
}

// onFailpoint calls f at the failpoints of every manager, so the test runs alone. Call it before the bench is made.
func onFailpoint(t *testing.T, f func(name string)) {
	t.Helper()
	testneed.Alone(t)
	old := failpoint
	failpoint = f
	t.Cleanup(func() { failpoint = old })
}

// quick sets options for sandboxes on demand and a frequent reaper.
func quick() Options { return Options{NoPool: true, reapEvery: 20 * time.Millisecond} }

func (k *bench) start() {
	k.t.Helper()
	m, err := New(k.t.Context(), k.opts)
	if err != nil {
		k.t.Fatal(err)
	}
	choose(m)
	k.m = m
}

// restart detaches the manager and starts another one.
func (k *bench) restart() {
	k.t.Helper()
	if err := k.m.Detach(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
	k.start()
}

func (k *bench) close() {
	k.t.Helper()
	known := map[string]bool{}
	for _, s := range k.m.sessions() {
		known[s.Info().Sandbox] = true
	}
	if err := k.m.Close(); err != nil {
		k.t.Error(err)
	}
	for _, i := range list(k.b) {
		if i.Labels[labelInstance] == k.m.instance && (known[i.ID] || !k.late(i)) {
			k.t.Errorf("sandbox %s is left, of session %s", i.ID, i.Labels[labelSession])
			_ = k.b.Stop(context.Background(), i.ID)
		}
	}
}

func (k *bench) open(name string) *Session {
	k.t.Helper()
	s, _, err := k.m.Open(k.t.Context(), Key{Name: name}, OpenOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

func (k *bench) get(name string) *Session {
	k.t.Helper()
	s, err := k.m.Get(k.t.Context(), Key{Name: name})
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// sandboxes returns the number of sandboxes of this manager.
func (k *bench) sandboxes() int {
	n := 0
	for _, i := range list(k.b) {
		if i.Labels[labelInstance] == k.m.instance {
			n++
		}
	}
	return n
}

// images returns the number of images of this manager.
func (k *bench) images() int {
	k.t.Helper()
	all, err := k.b.Snapshots(context.WithoutCancel(k.t.Context())) // also when the test is over
	if err != nil {
		k.t.Fatal(err)
	}
	n := 0
	for _, i := range all {
		if i.Labels[labelInstance] == k.m.instance {
			n++
		}
	}
	return n
}

// py runs a cell and returns its result or output.
func py(t *testing.T, s *Session, code string) string {
	t.Helper()
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	if v.Error != nil {
		t.Fatal(v.Error.Traceback)
	}
	if v.Result != nil {
		return v.Result.Text()
	}
	return strings.TrimSpace(v.Stdout.String())
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}

func wantCode(t *testing.T, what string, err error, code v1.Code) {
	t.Helper()
	if v1.CodeOf(err) != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	awaitBehind(t, 0, what, f)
}

// awaitBehind is await for a condition that may become true only after a while.
func awaitBehind(t *testing.T, while time.Duration, what string, f func() bool) {
	t.Helper()
	// an engine has more to do for each thing, and on a busy machine takes many times as long
	bound := while + time.Duration(number(20, 60))*time.Second
	testneed.AwaitFor(t, bound, what, f)
}

func (k *bench) awaitState(s *Session, state State) {
	k.t.Helper()
	await(k.t, "state "+string(state), func() bool { return s.Info().State == state })
}
