package dockertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// BackendVariable is the environment variable that Rerun sets to the backend that the test program tests.
const BackendVariable = "RECLUSE_TEST_BACKEND"

// RuntimeVariable is the environment variable that Rerun sets to the runtime of the Docker engine to test with.
const RuntimeVariable = "RECLUSE_TEST_DOCKER_RUNTIME"

// Chosen reports whether this test program was started by Rerun, for Docker.
func Chosen() bool { return os.Getenv(BackendVariable) == onDocker }

// onDocker is the value of BackendVariable if a suite names no other backend.
const onDocker = "docker"

// Suite is a part of a test program that must also pass on Docker, or on another backend.
type Suite struct {
	Backend string                                       // value of BackendVariable; empty: docker. Others have no engine
	Runsc   string                                       // program of the runtime runsc
	Runtime string                                       // runtime to test with; empty: the Docker engine's default
	Prepare func(ctx context.Context, host string) error // builds the image; nil: the test program does
	Tests   []string                                     // names of tests; empty: all tests of this program
	Left    map[string]string                            // tests that are excluded, each with the reason
	// Differ are the tests whose mechanism differs on the backend. make test runs only these, make test-all runs all
	// tests. Empty: all tests differ.
	Differ []string
	Skip   string // pattern of subtests that are excluded
	Podman bool   // use Podman's service instead of a Docker engine
	Serial bool   // tests do not run in parallel
}

func (s Suite) engine(ctx context.Context) (*Engine, error) {
	if s.Podman {
		return StartPodman(ctx)
	}
	return Start(ctx, s.Runsc)
}

// Share starts the Docker engine of a suite and prepares it for every Rerun below this test. Without an engine it skips
// the test; in CI the test fails.
func Share(t *testing.T, s Suite) {
	t.Helper()
	t.Setenv(Variable, start(t, s).Host)
}

// start returns an engine that is ready. It is stopped at the end of the test.
func start(t *testing.T, s Suite) *Engine {
	t.Helper()
	if os.Getenv(BackendVariable) != "" {
		t.Skip("this test program was started by Rerun")
	}
	testneed.Sandboxes(t)
	if s.Backend != "" {
		return &Engine{}
	}
	e, err := s.engine(t.Context())
	if errors.Is(err, ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if s.Prepare != nil {
		if err := e.Prepare(t.Context(), s.Prepare); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// names returns the tests of a suite that have to run. Tests are excluded only explicitly and with a reason, so a new
// test is included by default.
func (s Suite) names(ctx context.Context, self, caller string) ([]string, error) {
	all := s.Tests
	if len(all) == 0 {
		text, err := exec.CommandContext(ctx, self, "-test.list=^Test").Output()
		if err != nil {
			return nil, fmt.Errorf("list tests: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") && name != caller {
				all = append(all, name)
			}
		}
	}
	for name, reason := range s.Left {
		if reason == "" || !slices.Contains(all, name) {
			return nil, fmt.Errorf("excluded test %s: it must exist and have a reason, which is %q", name, reason)
		}
	}
	for _, name := range s.Differ {
		if _, left := s.Left[name]; left || !slices.Contains(all, name) {
			return nil, fmt.Errorf("unknown test %s", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		_, left := s.Left[name]
		return left || len(s.Differ) > 0 && !testneed.AllTests() && !slices.Contains(s.Differ, name)
	}), nil
}

// Rerun starts this test program again, with an engine, for the tests of a suite. Without an engine it skips the test;
// in CI the test fails.
func Rerun(t *testing.T, s Suite) {
	t.Helper()
	e := start(t, s)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	caller, _, _ := strings.Cut(t.Name(), "/")
	tests, err := s.names(t.Context(), self, caller)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.v", "-test.run=^(" + strings.Join(tests, "|") + ")$"}
	if s.Serial {
		args = append(args, "-test.parallel=1")
	}
	if s.Skip != "" {
		args = append(args, "-test.skip="+s.Skip)
	}
	if end, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(end.Add(-5*time.Second)).String())
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(),
		BackendVariable+"="+cmp.Or(s.Backend, onDocker), RuntimeVariable+"="+s.Runtime, Variable+"="+e.Host)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	text := out.String()
	if testing.Verbose() && os.Getenv("CI") == "" { // in CI, the output of passed tests would hide that of failed ones
		t.Log(text)
	}
	results := byTest(text)
	if err != nil {
		t.Errorf("%v\n%s", err, results.failed())
	}
	for _, name := range tests {
		if end := results.ends[name]; end != "PASS" && end != "FAIL" {
			t.Errorf("%s did not run, or was skipped\n%s", name, tail(results.lines[name]))
		}
	}
}

// keptLines is the number of lines that are printed of a failed test.
const keptLines = 60

// output is the output of a test program with -test.v.
type output struct {
	lines map[string][]string // by test
	ends  map[string]string   // by test: PASS, FAIL or SKIP
	bad   []string            // failed tests, in order
	last  []string            // output since the program itself failed; if nothing failed, the end of the output
}

var (
	// runs matches the line before the output of a test.
	runs = regexp.MustCompile(`^=== (?:RUN|CONT|NAME|PAUSE) +(\S+)$`)
	// ended matches the result of a test.
	ended = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	// broke matches the output of a program that fails outside of its tests.
	broke = regexp.MustCompile(`^(?:panic: |fatal error: |goleak: |Found \d+ data race|signal: )`)
)

func byTest(text string) *output {
	o := &output{lines: map[string][]string{}, ends: map[string]string{}}
	test := ""
	for line := range strings.Lines(text) {
		if o.last != nil || broke.MatchString(line) {
			o.last = append(o.last, line)
		}
		if m := runs.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			test = m[1]
			continue
		}
		if m := ended.FindStringSubmatch(line); m != nil {
			test, o.ends[m[2]] = m[2], m[1]
			if m[1] == "FAIL" {
				o.bad = append(o.bad, m[2])
			}
		}
		o.lines[test] = append(o.lines[test], line)
	}
	if o.last == nil && len(o.bad) == 0 {
		all := slices.Collect(strings.Lines(text))
		o.last = all[max(0, len(all)-keptLines):]
	}
	return o
}

// failed returns the output of the failed tests, and that of the program if it failed itself.
func (o *output) failed() string {
	var b strings.Builder
	for _, name := range o.bad {
		fmt.Fprintf(&b, "%s:\n%s", name, tail(o.lines[name]))
	}
	b.WriteString(strings.Join(o.last[:min(len(o.last), keptLines)], ""))
	return b.String()
}

func tail(lines []string) string { return strings.Join(lines[max(0, len(lines)-keptLines):], "") }
