package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

const (
	// pingLimit is the longest time the guest may take to answer during an attack.
	pingLimit = time.Second
	// pingWait is the time after which a guest counts as not answering.
	pingWait = 20 * time.Second
	// pingPause is the time between two pings during an attack.
	pingPause = 50 * time.Millisecond
	// quietTime is how long the neighbour is pinged without an attack, for a comparison.
	quietTime = 250 * time.Millisecond
	// openWait is how long making a sandbox may take, including its template.
	openWait = 60 * time.Second
	// hostSecretEnv is an environment variable of the test, which represents the host.
	hostSecretEnv = "RECLUSE_ATTACK_HOST_SECRET"
	// memory is the limit of the attacked sandboxes. It is small, so that bombs fill it quickly.
	memory = 256 << 20
)

// hostSecret must never be visible inside. Its value is random, so that it cannot be there by chance.
var hostSecret = fmt.Sprintf("host-secret-%d-%d", os.Getpid(), time.Now().UnixNano())

var (
	backend sandbox.Backend
	missing error // why there is no backend
	dataDir string

	sharedOnce sync.Once
	sharedBox  *sandbox.Sandbox // for attacks that leave nothing behind
	sharedErr  error

	neighbourOnce sync.Once
	neighbourBox  *sandbox.Sandbox // never attacked; must not be affected
	neighbourErr  error
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv(serverEnv) != "" {
		fmt.Fprintln(os.Stderr, server())
		return 1
	}
	var err error
	if dataDir, err = os.MkdirTemp("", "recluse-attack-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dataDir) }()
	if err := os.Setenv(hostSecretEnv, hostSecret); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	missing = prepare()
	code := m.Run()
	outside.close()
	for _, sb := range []*sandbox.Sandbox{sharedBox, neighbourBox} {
		if sb == nil {
			continue
		}
		if err := sb.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close:", err)
			code = max(code, 1)
		}
	}
	if backend != nil {
		if left, err := backend.List(context.Background()); err != nil || len(left) > 0 {
			fmt.Fprintln(os.Stderr, "left behind:", left, err)
			code = max(code, 1)
		}
		if c, ok := backend.(io.Closer); ok {
			_ = c.Close() // the tests have ended
		}
	}
	if err := sandboxtest.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func prepare() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: limits on memory and processors cannot be tried")
	}
	if dockertest.Chosen() {
		return prepareDocker()
	}
	if onMachine() {
		return prepareMachines()
	}
	b, err := gvisor.New(gvisor.Options{DataDir: dataDir, CacheDir: dataDir, Network: outside.options()})
	if err != nil {
		return err
	}
	backend = b
	return nil
}

// onHostKernel reports whether the attacked sandboxes are containers on the host's own kernel.
func onHostKernel(t *testing.T) bool {
	t.Helper()
	need(t)
	return backend.Capabilities(t.Context()).Isolation == sandbox.IsolationContainer && !onMachine()
}

// need skips the test if a prerequisite is missing. In CI it fails the test.
func need(t *testing.T) {
	t.Helper()
	testneed.Sandboxes(t)
	if missing == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("the attacks cannot run: ", missing)
	}
	t.Skip("THE ATTACKS DO NOT RUN: ", missing)
}

func open(t *testing.T, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	t.Helper()
	need(t)
	ctx, cancel := context.WithTimeout(context.Background(), openWait)
	defer cancel()
	return sandbox.Open(ctx, backend, spec)
}

// shared returns a sandbox that other tests also use.
func shared(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	need(t)
	sharedOnce.Do(func() { sharedBox, sharedErr = open(t, small()) })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return sharedBox
}

func neighbour(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	need(t)
	neighbourOnce.Do(func() {
		if neighbourBox, neighbourErr = open(t, small()); neighbourErr == nil {
			_, neighbourErr = neighbourBox.Cell(t.Context(), sandbox.Cell{Code: "quiet = 'neighbour'"})
		}
	})
	if neighbourErr != nil {
		t.Fatal(neighbourErr)
	}
	return neighbourBox
}

// small returns the spec of an attacked sandbox.
func small() sandbox.Spec {
	l := sandbox.Limits{Memory: memory, Disk: 256 << 20, Processes: 128, OpenFiles: 512}
	if dockertest.Chosen() {
		l.Disk = 0 // the memory of a container holds its files: the default is what fits
	}
	spec := sandbox.Spec{Limits: l}
	if isRoot() {
		spec.User, spec.Env = "root", map[string]string{"HOME": v1.DefaultHome}
	}
	return spec
}

// fresh returns a sandbox that only this test uses.
func fresh(t *testing.T, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	sb, err := open(t, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return sb
}

// run runs a command, and fails the test if there is no verdict.
func run(t *testing.T, sb *sandbox.Sandbox, c sandbox.Command) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Run(t.Context(), c)
	if err != nil {
		noVerdict(t, err)
	}
	return v
}

// memoryTries is the number of sandboxes that a part about memory may use if Docker starts gVisor. There gVisor's
// kernel has no CPU share of its own, so on a busy machine the guest may be too slow, and the host's kernel kills
// first. A loss must be reported as such, no other sandbox may be affected, and one of the sandboxes must survive.
const memoryTries = 3

var aboutMemory sync.Map // names of parts

// memoryPart runs a part of a test whose bombs fill the memory.
func memoryPart(t *testing.T, name string, attack func(t *testing.T)) {
	t.Helper()
	for range memoryTries {
		again := false
		t.Run(name, func(t *testing.T) {
			aboutMemory.Store(t.Name(), true)
			defer func() { again = t.Skipped() }()
			attack(t)
		})
		if !again {
			return
		}
	}
	t.Errorf("%s: %d sandboxes were lost", name, memoryTries)
}

// lost reports whether a sandbox is lost and another one may be tried.
func lost(t *testing.T, err error) bool {
	t.Helper()
	_, part := aboutMemory.Load(t.Name())
	code := v1.CodeOf(err)
	return part && dockertest.Chosen() && !onHostKernel(t) && (code == v1.CodeSandboxLost || code == v1.CodeGuestLost)
}

// late reports whether a guest in a container may answer late. On gVisor in Docker, its kernel has no CPU share of its
// own. On the host's kernel, every process that allocates memory has to search for free memory, the guest among a
// hundred others. In an emulated machine, the guest shares the only processor with all of them.
func late(t *testing.T) bool {
	t.Helper()
	if onMachine() {
		return true
	}
	searched := []string{"TestMemoryBombs/a_hundred_small_processes", "TestBystandersOfAMemoryBomb/of_several"}
	return dockertest.Chosen() && (!onHostKernel(t) || slices.Contains(searched, t.Name()))
}

// noVerdict ends a part of a test. If the sandbox is lost and that is allowed, the part is tried again.
func noVerdict(t *testing.T, err error) {
	t.Helper()
	if lost(t, err) {
		t.Skip("LOST: ", err)
	}
	t.Fatalf("no verdict: %v", err)
}

// sh returns the output of a script on both streams, however it ended.
func sh(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v := run(t, sb, sandbox.Command{Shell: "exec 2>&1\n" + script, RunOptions: sandbox.RunOptions{InlineBytes: 1 << 20}})
	return v.Stdout.String()
}

// cell runs Python in the session's interpreter.
func cell(t *testing.T, sb *sandbox.Sandbox, c sandbox.Cell) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Cell(t.Context(), c)
	if err != nil {
		noVerdict(t, err)
	}
	return v
}

// py runs Python code that must not fail, and returns its output.
func py(t *testing.T, sb *sandbox.Sandbox, code string) string {
	t.Helper()
	v := cell(t, sb, sandbox.Cell{Code: code})
	if v.Error != nil {
		t.Fatalf("the attack's own code failed: %s", v.Error.Traceback)
	}
	if !v.OK() {
		t.Fatalf("cell %s: %s%s", v, v.Stdout, v.Stderr)
	}
	return v.Stdout.String()
}

// siege runs attack while guest and neighbour must answer pings in time. Afterwards the session must be unchanged: the
// same interpreter with its variables, and commands run.
func siege(t *testing.T, sb *sandbox.Sandbox, attack func()) {
	t.Helper()
	const token = "kept = ['through', 'everything']"
	if v := cell(t, sb, sandbox.Cell{Code: token}); !v.OK() {
		t.Fatalf("before the attack: %s", v)
	}
	underSiege(t, sb, attack)
	if t.Failed() {
		return
	}
	if v := run(t, sb, sandbox.Command{Args: []string{"echo", "alive"}}); v.Stdout.String() != "alive\n" {
		t.Errorf("a command after the attack: %s, %q, %q", v, v.Stdout, v.Stderr)
	}
	v := cell(t, sb, sandbox.Cell{Code: "print(*kept)"})
	if v.Stdout.String() != "through everything\n" {
		t.Errorf("the interpreter's variables are lost: %s %q %+v", v, v.Stdout, v.Error)
	}
}

// underSiege is siege without a session whose state must survive. With a nil sandbox, only the neighbour is watched.
func underSiege(t *testing.T, sb *sandbox.Sandbox, attack func()) {
	t.Helper()
	other := neighbour(t)
	quiet := quietPings(t, other, quietTime)
	began := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var guest, beside []ping
	if sb != nil {
		wg.Go(func() { guest = pings(t, "guest", sb, stop) })
	}
	wg.Go(func() { beside = pings(t, "neighbour", other, stop) })
	defer func() { // also when the attack ends the test
		wg.Wait()
		t.Logf("slowest pings: guest %s, neighbour %s", slowest(guest).Round(time.Millisecond), slowest(beside).Round(time.Millisecond))
		if took := slowest(beside); took > pingLimit+slowest(quiet) && !dockertest.Chosen() {
			// The machine may have become busy for another reason. Without the attack, the neighbour is as late then.
			quiet = quietPings(t, other, min(time.Since(began), pingWait))
			if machine := slowest(quiet); took > pingLimit+machine {
				t.Errorf("neighbour answered after %s, and without the attack after %s", took, machine)
			}
		}
		for _, p := range guest {
			// The neighbour is idle. If it is also late at that time, the machine is busy, and the guest is not at
			// fault.
			if machine := slowest(meanwhile(beside, p)); p.took > pingLimit+machine && !late(t) {
				t.Errorf("guest answered after %s, and its neighbour after %s", p.took, machine)
			}
		}
		if v, err := other.Cell(t.Context(), sandbox.Cell{Code: "quiet"}); err != nil || v.Result.Text() != "'neighbour'" {
			t.Errorf("the neighbour's session was affected: %v, %v", v, err)
		}
	}()
	defer close(stop)
	attack()
}

// ping is one round trip to a guest.
type ping struct {
	began time.Time
	took  time.Duration
}

// pings pings a guest repeatedly.
func pings(t *testing.T, name string, box *sandbox.Sandbox, stop <-chan struct{}) (all []ping) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), pingWait)
		began := time.Now()
		err := box.Ping(ctx)
		all = append(all, ping{began, time.Since(began)})
		cancel()
		if err != nil {
			if name != "guest" || !lost(t, err) {
				t.Errorf("%s does not answer: %v", name, err)
			}
			return all
		}
		select {
		case <-stop:
			return all
		case <-time.After(pingPause):
		}
	}
}

// quietPings pings the neighbour for a time without an attack. How late it answers depends on the machine alone.
func quietPings(t *testing.T, other *sandbox.Sandbox, during time.Duration) []ping {
	t.Helper()
	stop := make(chan struct{})
	timer := time.AfterFunc(during, func() { close(stop) })
	defer timer.Stop()
	return pings(t, "neighbour", other, stop)
}

func slowest(all []ping) (took time.Duration) {
	for _, p := range all {
		took = max(took, p.took)
	}
	return took
}

// meanwhile returns the pings that overlap with another one, or ended just before it.
func meanwhile(all []ping, p ping) (some []ping) {
	for _, q := range all {
		if q.began.Before(p.began.Add(p.took)) && q.began.Add(q.took+pingPause).After(p.began) {
			some = append(some, q)
		}
	}
	return some
}

// contains fails the test if text lacks one of the words.
func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("want %q in:\n%s", w, text)
		}
	}
}

// lacks fails the test if text contains one of the words.
func lacks(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if w != "" && strings.Contains(text, w) {
			t.Errorf("did not want %q in:\n%s", w, text)
		}
	}
}
