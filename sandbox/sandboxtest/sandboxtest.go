// Package sandboxtest is the feature suite of sandboxes, written once against sandbox.Backend. Every backend must pass
// it: a test of the backend calls Run. If the backend's capabilities exclude a feature, the suite expects the error
// not_supported instead.
//
// Each feature has tags for what it depends on: the guest, the backend or the HTTP API. In make test, one backend runs
// all features, and the others run the features that may differ. In make test-all, every backend runs all features.
package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// Options are the options of Run.
type Options struct {
	// Spec is the base of the specs of all sandboxes of the suite.
	Spec sandbox.Spec
	// KillGuest kills the guest of a running sandbox, as the host's kernel might. Nil: that feature is reported as
	// skipped.
	KillGuest func(t *testing.T, sb *sandbox.Sandbox)
	// EndUnknown is set if the host's kernel does not report how a process ended that is not a child of this program.
	// The suite then also accepts sandbox_lost as the error of a killed guest.
	EndUnknown bool
	// Leftovers returns what the host still holds of sandboxes that have ended: processes, directories, mounts.
	Leftovers func(t *testing.T, ids []string) []string
	// Open makes machines without the library, e.g. over HTTP. Features of the library alone are then reported as
	// skipped. Nil: the suite uses the library.
	Open func(ctx context.Context, spec sandbox.Spec) (Owned, error)
	// Plain is set if the guest is an ordinary user, who cannot make directories at the root.
	Plain bool
	// SizeUnknown is set if the backend does not know the size of its snapshots.
	SizeUnknown bool
	// Restart restarts the program through which the machines of Open are used. It is the counterpart of detaching
	// and attaching with the library.
	Restart func(t *testing.T)
	// Without has features that are covered elsewhere, with the reason. They are reported as skipped.
	Without map[string]string
	// Many is how many sandboxes are made at once; 0: 50 in make test-all, else 16.
	Many int
	// Scope selects features by what they depend on.
	Scope Scope
	// Only names the groups to run; empty: all.
	Only []string
	// Serial runs the tests one after the other.
	Serial bool
}

// maxWait is the timeout of every wait for something that must happen. It is long because test machines can be slow,
// not because a step may take that long.
const maxWait = 30 * time.Second

// hostSecret is in this program's environment and must not be visible inside.
const hostSecret = "do not tell anybody"

// sigUSR1 is SIGUSR1 of Linux. A sandbox has Linux's numbers on every host.
const sigUSR1 = syscall.Signal(10)

// suite is one run of the feature suite.
type suite struct {
	backend func(t *testing.T) sandbox.Backend
	caps    sandbox.Capabilities
	opts    Options
}

// tag is what a feature depends on. It decides which backends test the feature in make test.
type tag uint8

const (
	inGuest   tag = 1 << iota // depends on the guest alone, which is the same program everywhere
	onBackend                 // depends on the backend: its kernel, limits, users, files, stream or records
	overHTTP                  // depends on the HTTP API
)

// Scope selects features. In make test-all every scope is Everything.
type Scope uint8

// The scopes.
const (
	Everything      Scope = iota
	BackendFeatures       // features that may differ between backends
	// MachineFeatures are the BackendFeatures that make, limit, attach, copy and end a machine. They suffice for a
	// combination of kernel and engine if other tests cover the kernel and the engine separately.
	MachineFeatures
	HTTPFeatures // features that depend on the HTTP API
)

// has reports whether a feature of a group is in the scope.
func (s Scope) has(f feature, group string) bool {
	if testneed.AllTests() {
		return true
	}
	switch s {
	case MachineFeatures:
		return f.tags&onBackend != 0 && slices.Contains([]string{"limits", "attachments", "snapshots", "disk", "volumes", "root", "life"}, group)
	case BackendFeatures:
		return f.tags&onBackend != 0
	case HTTPFeatures:
		return f.tags&overHTTP != 0
	default:
		return true
	}
}

type feature struct {
	name string
	tags tag
	test func(t *testing.T, s *suite)
}

// Run runs the suite. It calls newBackend for every test; newBackend may return the same backend each time. Most
// features are parallel tests, which end after Run has returned. Code that must run after them belongs in a Cleanup.
func Run(t *testing.T, newBackend func(t *testing.T) sandbox.Backend, opts Options) {
	if opts.Many == 0 {
		opts.Many = 50
		if !testneed.AllTests() {
			opts.Many = 16
		}
	}
	t.Setenv("RECLUSE_TEST_SECRET", hostSecret)
	b := newBackend(t)
	if h := b.Health(t.Context()); !h.OK {
		t.Fatalf("the %s backend is not healthy: %s (%s)", b.Name(), h.Reason, h.Remedy)
	}
	s := &suite{backend: newBackend, caps: b.Capabilities(t.Context()), opts: opts}
	for _, g := range []struct {
		name     string
		features []feature
		serial   bool // its features measure something, or must be the only load of the machine
	}{
		{"life", life, true},
		{"commands", slices.Concat(commands, commandTraces, users, ports), false},
		{"endings", slices.Concat(endings, leftBehind), false},
		{"output", outputs, false},
		{"files", fileFeatures, false},
		{"cells", slices.Concat(cells, cellOutputs, cellCalls, cellTraces, interpreters, notebook), false},
		{"network", network, false},
		{"attachments", attachments, false},
		{"limits", limits, false},
		{"disk", disks, false},
		{"volumes", volumes, false},
		{"root", roots, false},
		{"snapshots", snapshots, false},
	} {
		if len(opts.Only) > 0 && !slices.Contains(opts.Only, g.name) {
			continue
		}
		parallel := !g.serial && !opts.Serial
		t.Run(g.name, func(t *testing.T) {
			if parallel { // also with the other groups, so that a slow feature does not delay them
				t.Parallel()
			}
			for _, f := range g.features {
				if !opts.Scope.has(f, g.name) {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					if why := opts.Without[f.name]; why != "" {
						t.Skip("SKIPPED: " + why)
					}
					f.test(t, s)
				})
			}
		})
	}
}

// slots limits how many cases of runConcurrently run at once, in all features together.
var slots = make(chan struct{}, 8)

// runConcurrently runs the cases of a feature concurrently, because they mostly wait. In a serial suite it runs them
// one after the other.
func (s *suite) runConcurrently(t *testing.T, cases map[string]func(t *testing.T)) {
	t.Helper()
	var wg sync.WaitGroup
	for name, test := range cases {
		if s.opts.Serial {
			t.Run(name, test)
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(name, test)
		})
	}
	wg.Wait()
}

// open makes a machine from the suite's spec with changes. The machine ends with the test.
func (s *suite) open(t *testing.T, changes ...func(*sandbox.Spec)) Owned {
	t.Helper()
	spec := s.opts.Spec
	for _, change := range changes {
		change(&spec)
	}
	return s.mustOpen(t, s.backend(t), spec)
}

// python is open for a test of cells. It skips the test if the backend has no Python.
func (s *suite) python(t *testing.T, changes ...func(*sandbox.Spec)) Owned {
	t.Helper()
	s.needPython(t)
	return s.open(t, changes...)
}

// openFiles makes a machine for a test of files. It also returns the file system below the home directory.
func (s *suite) openFiles(t *testing.T) (Machine, sandbox.FileSystem, context.Context) {
	t.Helper()
	sb := s.open(t)
	return sb, files(sb, home(t, sb)), t.Context()
}

// needPython skips the test if the backend has no Python. In CI the test fails instead.
func (s *suite) needPython(t *testing.T) {
	t.Helper()
	if !s.caps.Python {
		if os.Getenv("CI") != "" {
			t.Fatal("this backend has no Python in its default root file system, so cells cannot be tested")
		}
		t.Skip("SKIPPED: this backend has no Python in its default root file system")
	}
}

// run runs a command and returns its verdict. An error fails the test.
func run(t *testing.T, sb Machine, c sandbox.Command) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Run(t.Context(), c)
	if err != nil {
		t.Fatalf("run %s%q: %v", c.Shell, c.Args, err)
	}
	return v
}

// shell runs a script that must succeed and returns its stdout.
func shell(t *testing.T, sb Machine, script string) string {
	t.Helper()
	v := run(t, sb, sandbox.Command{Shell: script})
	if !v.OK() {
		t.Fatalf("%s: %s\nstdout: %s\nstderr: %s", script, v, v.Stdout, v.Stderr)
	}
	return v.Stdout.String()
}

// cell runs code in a cell and returns the verdict. An error fails the test.
func cell(t *testing.T, sb Machine, code string) *sandbox.Verdict {
	t.Helper()
	return runCell(t, sb, sandbox.Cell{Code: code})
}

func runCell(t *testing.T, sb Machine, c sandbox.Cell) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Cell(t.Context(), c)
	if err != nil {
		t.Fatalf("cell %.200q: %v", c.Code, err)
	}
	return v
}

// okCell runs code that must succeed in a cell.
func okCell(t *testing.T, sb Machine, code string) *sandbox.Verdict {
	t.Helper()
	v := cell(t, sb, code)
	succeeded(t, v)
	return v
}

// succeeded fails the test unless the verdict is a success.
func succeeded(t *testing.T, v *sandbox.Verdict) {
	t.Helper()
	if !v.OK() {
		t.Fatalf("%s\nstdout: %s\nstderr: %s\nerror: %s", v, v.Stdout, v.Stderr, explainError(v))
	}
}

func explainError(v *sandbox.Verdict) string {
	if v.Error == nil {
		return "none"
	}
	return v.Error.Name + ": " + v.Error.Value + "\n" + v.Error.Traceback
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %#v, want %#v", what, got, want)
	}
}

func contains(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s lacks %q:\n%s", what, part, text)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails reports a test error unless err has the code.
func fails(t *testing.T, what string, err error, code v1.Code) {
	t.Helper()
	if got := v1.CodeOf(err); got != code {
		t.Errorf("%s: error code %q (%v), want %q", what, got, err, code)
	}
}

// recorder keeps everything written to it. A test can wait for a part of it.
type recorder struct {
	mu      sync.Mutex
	buf     bytes.Buffer  // guarded by mu
	changed chan struct{} // guarded by mu; closed at the next write
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	return r.buf.Write(p)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// await waits until the written data contains part.
func (r *recorder) await(t *testing.T, part string) {
	t.Helper()
	timeout := time.After(maxWait)
	for {
		r.mu.Lock()
		found := strings.Contains(r.buf.String(), part)
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("timeout: no %q in the output %.2000q", part, r.String())
		}
	}
}

// outcome is the result of a call that inBackground runs.
type outcome struct {
	v   *sandbox.Verdict
	err error
}

// inBackground makes a call, such as Machine.Run of a command, in a goroutine. The channel receives its outcome.
func inBackground[T any](
	ctx context.Context, call func(context.Context, T) (*sandbox.Verdict, error), arg T,
) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		v, err := call(ctx, arg)
		c <- outcome{v, err}
	}()
	return c
}

// followOf returns Machine.Follow of one operation, for inBackground.
func followOf(sb Machine, id string) func(context.Context, sandbox.FollowOptions) (*sandbox.Verdict, error) {
	return func(ctx context.Context, o sandbox.FollowOptions) (*sandbox.Verdict, error) {
		return sb.Follow(ctx, id, o)
	}
}

// await returns the next value of a channel. It fails the test after maxWait.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(maxWait):
		t.Fatalf("timeout after %s: %s", maxWait, what)
		panic("unreachable")
	}
}

// verdictOf waits for the outcome of a background call and returns its verdict. An error fails the test.
func verdictOf(t *testing.T, c <-chan outcome) *sandbox.Verdict {
	t.Helper()
	o := await(t, "a verdict", c)
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.v
}

// livingPIDs returns those of the pids inside the sandbox that are alive, without zombies.
func livingPIDs(t *testing.T, sb Machine, pids []int) []int {
	t.Helper()
	var script strings.Builder
	for _, p := range pids {
		fmt.Fprintf(&script, "grep -qs '^State:.[^ZX]' /proc/%d/status && echo %d\n", p, p)
	}
	script.WriteString("true")
	return numbers(t, shell(t, sb, script.String()))
}

// numbers parses numbers that are separated by white space.
func numbers(t *testing.T, text string) []int {
	t.Helper()
	var out []int
	for _, w := range strings.Fields(text) {
		n, err := strconv.Atoi(w)
		if err != nil {
			t.Fatalf("%q is not a number, in %q", w, text)
		}
		out = append(out, n)
	}
	return out
}

// pidsIn returns the pids that processes of a test have written to a file. It waits until there are want of them.
func pidsIn(t *testing.T, sb Machine, file string, want int) []int {
	t.Helper()
	var pids []int
	testneed.Await(t, fmt.Sprintf("%d pids in %s", want, file), func() bool {
		pids = numbers(t, shell(t, sb, "cat "+file+" 2>/dev/null; true"))
		return len(pids) >= want
	})
	return pids
}

// home returns the directory in which commands start.
func home(t *testing.T, sb Machine) string {
	t.Helper()
	dir := strings.TrimSuffix(shell(t, sb, "pwd"), "\n")
	if len(dir) < 2 || dir[0] != '/' {
		// Tests write and remove files below it, and the local backend does not isolate the host.
		t.Fatalf("the home directory is %q", dir)
	}
	return dir
}

// cancelledContext returns a cancelled ctx.
func cancelledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
