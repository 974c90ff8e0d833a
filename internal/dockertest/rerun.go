package dockertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
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
	if testing.Short() {
		t.Skip("starts an engine")
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
		if err := s.Prepare(t.Context(), e.Host); err != nil {
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
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { _, left := s.Left[name]; return left }), nil
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
	if err != nil {
		t.Errorf("%v\n%s", err, failed(text))
	}
	for _, name := range tests {
		if !strings.Contains(text, "--- PASS: "+name+" (") && !strings.Contains(text, "--- FAIL: "+name+" (") {
			t.Errorf("%s was not run, or skipped", name)
		}
	}
}

// keptLines is how much of a test that failed is told.
const keptLines = 60

// failed picks what the tests that failed have written out of a whole output, or its end when none says so.
func failed(text string) string {
	said := map[string][]string{} // by test
	var bad, all []string
	test := ""
	for line := range strings.Lines(text) {
		all = append(all, line)
		plain := strings.TrimSpace(line)
		if after, ok := strings.CutPrefix(plain, "=== "); ok {
			if f := strings.Fields(after); len(f) == 2 {
				test = f[1]
			}
			continue
		}
		if after, ok := strings.CutPrefix(plain, "--- FAIL: "); ok {
			bad = append(bad, strings.Fields(after)[0])
		}
		if strings.HasPrefix(plain, "--- ") { // what is logged is told below it when it is not the test that runs
			test = strings.Fields(strings.TrimLeft(plain, "- ") + " ?")[1]
		}
		said[test] = append(said[test], line)
	}
	if len(bad) == 0 {
		return tail(all)
	}
	var b strings.Builder
	for _, name := range bad {
		fmt.Fprintf(&b, "%s:\n%s", name, tail(said[name]))
	}
	return b.String()
}

func tail(lines []string) string { return strings.Join(lines[max(0, len(lines)-keptLines):], "") }
