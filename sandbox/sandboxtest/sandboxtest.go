// Package sandboxtest is the feature suite of a sandbox, written once against sandbox.Backend. A new backend calls Run
// from a test of its own and has to pass. Where the backend's capabilities exclude a feature, the suite expects the typed
// refusal instead.
//
// Each feature is tagged with what it depends on: the guest, the backend or the HTTP API. One backend runs everything in
// make test; the others run the features that may differ. In make test-all every backend runs everything.
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

// Options is what the suite cannot know by itself.
type Options struct {
	// Spec is the base of every sandbox of the suite.
	Spec sandbox.Spec
	// KillGuest kills the guest of a running sandbox, as the host's kernel might. Nil: that test is left out, loudly.
	KillGuest func(t *testing.T, sb *sandbox.Sandbox)
	// EndUntold says that this host's kernel does not tell how a process ended that is no child of ours, so that a killed guest may be told as a
	// lost sandbox.
	EndUntold bool
	// Leftovers names whatever the host still holds of sandboxes that have ended: processes, directories, mounts.
	Leftovers func(t *testing.T, ids []string) []string
	// Open makes machines in another way than through the library, e.g. over HTTP. What is about the library alone is then left out,
	// loudly. Nil: through the library.
	Open func(ctx context.Context, spec sandbox.Spec) (Owned, error)
	// Restart ends and starts whatever machines of Open are reached through, as a host program detaches and another one attaches.
	Restart func(t *testing.T)
	// Without names features that are otherwise here, with the reason; they are left out, loudly.
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

// patience bounds every wait for something that must happen. It is long because machines are slow, not because
// anything here may take that long.
const patience = 30 * time.Second

// hostSecret stands in this program's environment and must not be seen inside.
const hostSecret = "do not tell anybody"

// sigUSR1 is Linux's, which is what a sandbox has, whatever the host.
const sigUSR1 = syscall.Signal(10)

type suite struct {
	backend func(t *testing.T) sandbox.Backend
	caps    sandbox.Capabilities
	opts    Options
}

// tag says what a feature depends on, and so where it has to be tested in make test.
type tag uint8

const (
	inGuest   tag = 1 << iota // on the guest alone, which is the same program everywhere
	onBackend                 // on the backend: its kernel, limits, users, files, stream or records
	overHTTP                  // on what crosses the HTTP API
)

// Scope selects features. In make test-all every scope is Everything.
type Scope uint8

// The scopes.
const (
	Everything      Scope = iota
	BackendFeatures       // features that may differ from one backend to another
	MachineFeatures       // those of them that make, limit, attach, copy and end a machine: for a pair of kernel and engine that are each proved elsewhere
	HTTPFeatures          // features that cross the HTTP API
)

func (s Scope) has(f feature, group string) bool {
	if testneed.AllTests() {
		return true
	}
	switch s {
	case MachineFeatures:
		return f.tags&onBackend != 0 && slices.Contains([]string{"limits", "attachments", "snapshots", "life"}, group)
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

// Run runs the whole suite. newBackend is called for every test; it may give the same one each time. Most features are parallel tests, which end after
// Run has returned: what has to happen after them belongs in a Cleanup.
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
		serial   bool // it measures, or needs the machine for itself
	}{
		{"life", life, true},
		{"commands", slices.Concat(commands, commandTraces, users), false},
		{"endings", slices.Concat(endings, leftBehind), false},
		{"output", outputs, false},
		{"files", fileFeatures, false},
		{"cells", slices.Concat(cells, cellOutputs, cellCalls, cellTraces, interpreters, notebook), false},
		{"attachments", attachments, false},
		{"limits", limits, false},
		{"snapshots", snapshots, false},
	} {
		if len(opts.Only) > 0 && !slices.Contains(opts.Only, g.name) {
			continue
		}
		parallel := !g.serial && !opts.Serial
		t.Run(g.name, func(t *testing.T) {
			if parallel { // with the other groups, so that a slow feature holds up none of them
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

// slots bounds how many cases of atOnce run, whatever features they belong to.
var slots = make(chan struct{}, 8)

// atOnce runs the cases of a feature beside each other, unless the suite is serial: they wait more than they work.
func (s *suite) atOnce(t *testing.T, cases map[string]func(t *testing.T)) {
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

// open makes a sandbox that ends with the test, with changes to the suite's spec.
func (s *suite) open(t *testing.T, changes ...func(*sandbox.Spec)) Owned {
	t.Helper()
	spec := s.opts.Spec
	for _, change := range changes {
		change(&spec)
	}
	return s.own(t, s.backend(t), spec)
}

// python makes a sandbox for a test of cells.
func (s *suite) python(t *testing.T, changes ...func(*sandbox.Spec)) Owned {
	t.Helper()
	s.needPython(t)
	return s.open(t, changes...)
}

// openFiles makes a sandbox for a test of files, which are those below its home directory.
func (s *suite) openFiles(t *testing.T) (Machine, sandbox.FileSystem, context.Context) {
	t.Helper()
	sb := s.open(t)
	return sb, files(sb, home(t, sb)), t.Context()
}

func (s *suite) needPython(t *testing.T) {
	t.Helper()
	if !s.caps.Python {
		if os.Getenv("CI") != "" {
			t.Fatal("this backend has no Python in its default root file system, and cells would go untested")
		}
		t.Skip("SKIPPED: this backend has no Python in its default root file system")
	}
}

// run runs a command that must give a verdict.
func run(t *testing.T, sb Machine, c sandbox.Command) *sandbox.Verdict {
	t.Helper()
	v, err := sb.Run(t.Context(), c)
	if err != nil {
		t.Fatalf("run %s%q: %v", c.Shell, c.Args, err)
	}
	return v
}

// shell runs a script that must succeed and gives its output.
func shell(t *testing.T, sb Machine, script string) string {
	t.Helper()
	v := run(t, sb, sandbox.Command{Shell: script})
	if !v.OK() {
		t.Fatalf("%s: %s\nstdout: %s\nstderr: %s", script, v, v.Stdout, v.Stderr)
	}
	return v.Stdout.String()
}

// cell runs code that must give a verdict.
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

// okCell runs code that must succeed.
func okCell(t *testing.T, sb Machine, code string) *sandbox.Verdict {
	t.Helper()
	v := cell(t, sb, code)
	succeeded(t, v)
	return v
}

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

// fails asks for an error of a code.
func fails(t *testing.T, what string, err error, code v1.Code) {
	t.Helper()
	if got := v1.CodeOf(err); got != code {
		t.Errorf("%s: the error is %q (%v), want %q", what, got, err, code)
	}
}

// recorder keeps what is written and lets a test wait for a part of it.
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

// await waits until the output holds part.
func (r *recorder) await(t *testing.T, part string) {
	t.Helper()
	timeout := time.After(patience)
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
			t.Fatalf("%q did not come; there is %.2000q", part, r.String())
		}
	}
}

// outcome is the end of something that runs beside the test.
type outcome struct {
	v   *sandbox.Verdict
	err error
}

// beside runs something, such as Machine.Run of a command, while the test goes on.
func beside[T any](ctx context.Context, run func(context.Context, T) (*sandbox.Verdict, error), what T) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		v, err := run(ctx, what)
		c <- outcome{v, err}
	}()
	return c
}

// followed is Machine.Follow of one operation, for beside.
func followed(sb Machine, id string) func(context.Context, sandbox.FollowOptions) (*sandbox.Verdict, error) {
	return func(ctx context.Context, o sandbox.FollowOptions) (*sandbox.Verdict, error) {
		return sb.Follow(ctx, id, o)
	}
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s in vain: %s", patience, what)
		panic("unreachable")
	}
}

// verdictOf waits for something beside the test that must give a verdict.
func verdictOf(t *testing.T, c <-chan outcome) *sandbox.Verdict {
	t.Helper()
	o := await(t, "a verdict", c)
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.v
}

// living gives those of the pids inside the sandbox that are alive, zombies not counted.
func living(t *testing.T, sb Machine, pids []int) []int {
	t.Helper()
	var script strings.Builder
	for _, p := range pids {
		fmt.Fprintf(&script, "grep -qs '^State:.[^ZX]' /proc/%d/status && echo %d\n", p, p)
	}
	script.WriteString("true")
	return numbers(t, shell(t, sb, script.String()))
}

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

// pidsIn reads the pids that processes of a test have written to a file.
func pidsIn(t *testing.T, sb Machine, file string, want int) []int {
	t.Helper()
	var pids []int
	testneed.Await(t, fmt.Sprintf("%d pids in %s", want, file), func() bool {
		pids = numbers(t, shell(t, sb, "cat "+file+" 2>/dev/null; true"))
		return len(pids) >= want
	})
	return pids
}

// home is where commands start.
func home(t *testing.T, sb Machine) string {
	t.Helper()
	dir := strings.TrimSuffix(shell(t, sb, "pwd"), "\n")
	if len(dir) < 2 || dir[0] != '/' {
		t.Fatalf("the home directory is %q", dir) // tests write and remove below it, and not every backend is a cage
	}
	return dir
}

// cancelled gives a context that is over.
func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
