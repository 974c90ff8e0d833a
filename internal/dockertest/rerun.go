package dockertest

import (
	"bytes"
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

// BackendVariable tells a test program that was started by Rerun which backend it tests.
const BackendVariable = "RECLUSE_TEST_BACKEND"

// RuntimeVariable tells it which runtime of the engine.
const RuntimeVariable = "RECLUSE_TEST_DOCKER_RUNTIME"

// Chosen says whether this test program was started by Rerun.
func Chosen() bool { return os.Getenv(BackendVariable) == "docker" }

// Suite is a part of a test program that is to pass on Docker too.
type Suite struct {
	Runsc   string                                       // the program of the runtime runsc
	Runtime string                                       // to test with; empty: the engine's own
	Prepare func(ctx context.Context, host string) error // builds the image; nil: the program does
	Tests   []string                                     // names of tests; empty: all of this program's
	Left    map[string]string                            // those of them that are left out, each with its reason
	Differ  []string                                     // the tests whose mechanism differs here: make test runs these, make test-all every one; empty: all differ
	Skip    string                                       // a pattern of tests below them that are left out
	Podman  bool                                         // on Podman's service instead
}

func (s Suite) engine(ctx context.Context) (*Engine, error) {
	if s.Podman {
		return StartPodman(ctx)
	}
	return Start(ctx, s.Runsc)
}

// Share starts a suite's engine and prepares it for every Rerun below this test. Where there is no engine it skips, and in CI fails.
func Share(t *testing.T, s Suite) {
	t.Helper()
	t.Setenv(Variable, start(t, s).Host)
}

// start gives an engine that is ready, and ends with the test.
func start(t *testing.T, s Suite) *Engine {
	t.Helper()
	if Chosen() {
		t.Skip("this is the program that was started for it")
	}
	testneed.Sandboxes(t)
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

// names gives the tests that a suite is to run. Only what is written down with a reason is left out, so a new test joins by itself.
func (s Suite) names(ctx context.Context, self, caller string) ([]string, error) {
	all := s.Tests
	if len(all) == 0 {
		text, err := exec.CommandContext(ctx, self, "-test.list=^Test").Output()
		if err != nil {
			return nil, fmt.Errorf("list the tests: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") && name != caller {
				all = append(all, name)
			}
		}
	}
	for name, reason := range s.Left {
		if reason == "" || !slices.Contains(all, name) {
			return nil, fmt.Errorf("%s is left out for the reason %q, and has to be one of the tests", name, reason)
		}
	}
	for _, name := range s.Differ {
		if _, left := s.Left[name]; left || !slices.Contains(all, name) {
			return nil, fmt.Errorf("%s is not one of the tests", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		_, left := s.Left[name]
		return left || len(s.Differ) > 0 && !testneed.AllTests() && !slices.Contains(s.Differ, name)
	}), nil
}

// Rerun starts this test program once more, with an engine, for the tests of a suite. Where there is no engine it skips, and in CI fails.
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
	if s.Skip != "" {
		args = append(args, "-test.skip="+s.Skip)
	}
	if end, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(end.Add(-5*time.Second)).String())
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), BackendVariable+"=docker", RuntimeVariable+"="+s.Runtime, Variable+"="+e.Host)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	text := out.String()
	if testing.Verbose() && os.Getenv("CI") == "" { // there what failed must not be lost among what did not
		t.Log(text)
	}
	lines := byTest(text)
	if err != nil {
		t.Errorf("%v\n%s", err, lines.failed())
	}
	for _, name := range tests {
		if end := lines.ends[name]; end != "PASS" && end != "FAIL" {
			t.Errorf("%s was not run, or skipped\n%s", name, tail(lines.said[name]))
		}
	}
}

// keptLines is how much of a test that failed is told.
const keptLines = 60

// output is what a test program with -test.v has written.
type output struct {
	said map[string][]string // by test
	ends map[string]string   // by test: PASS, FAIL or SKIP
	bad  []string            // what failed, in order
	last []string            // from where the program itself failed, or nil; the end, if nothing did
}

var (
	// runs begins what a test writes.
	runs = regexp.MustCompile(`^=== (?:RUN|CONT|NAME|PAUSE) +(\S+)$`)
	// ended tells of one.
	ended = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	// broke is how a program fails beside its tests.
	broke = regexp.MustCompile(`^(?:panic: |fatal error: |goleak: |Found \d+ data race|signal: )`)
)

func byTest(text string) *output {
	o := &output{said: map[string][]string{}, ends: map[string]string{}}
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
		o.said[test] = append(o.said[test], line)
	}
	if o.last == nil && len(o.bad) == 0 {
		all := slices.Collect(strings.Lines(text))
		o.last = all[max(0, len(all)-keptLines):]
	}
	return o
}

// failed is what the tests that failed have written, and the program when it did.
func (o *output) failed() string {
	var b strings.Builder
	for _, name := range o.bad {
		fmt.Fprintf(&b, "%s:\n%s", name, tail(o.said[name]))
	}
	b.WriteString(strings.Join(o.last[:min(len(o.last), keptLines)], ""))
	return b.String()
}

func tail(lines []string) string { return strings.Join(lines[max(0, len(lines)-keptLines):], "") }
