package dockertest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
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
	Tests   []string                                     // names of tests
	Skip    string                                       // a pattern of tests below them that are left out
	Podman  bool                                         // on Podman's service instead
}

func (s Suite) engine(ctx context.Context) (*Engine, error) {
	if s.Podman {
		return StartPodman(ctx)
	}
	return Start(ctx, s.Runsc)
}

// Rerun starts this test program once more, with an engine, for the tests of a suite. Where there is no engine it skips, and in CI fails.
func Rerun(t *testing.T, s Suite) {
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.v", "-test.run=^(" + strings.Join(s.Tests, "|") + ")$"}
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
	if err != nil || testing.Verbose() {
		t.Log(text)
	}
	if err != nil {
		t.Error(err)
	}
	for _, name := range s.Tests {
		if !strings.Contains(text, "--- PASS: "+name+" (") && !strings.Contains(text, "--- FAIL: "+name+" (") {
			t.Errorf("%s was not run, or skipped", name)
		}
	}
}
