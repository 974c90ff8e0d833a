// Package dockertest gives tests and measurements a Docker engine: the one that RECLUSE_TEST_DOCKER_HOST names, or a private one of their
// own, with its own socket and data, which ends with them; and Podman's service, where a test is about that.
package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Variable names an engine to use instead of a private one.
const Variable = "RECLUSE_TEST_DOCKER_HOST"

// OwnedVariable says that this engine was started for the tests, by scripts/test.sh: it has our runsc, and the image that one test program
// builds is there for the next.
const OwnedVariable = "RECLUSE_TEST_DOCKER_OWNED"

// Image is under what name tests keep the image that they build from this machine.
const Image = "recluse-test:latest"

// ErrMissing says that there is no engine on this machine, or that nobody may start one.
var ErrMissing = errors.New("no Docker engine can be started")

// missingStatus is how the script says so.
const missingStatus = 3

// Engine is a running engine.
type Engine struct {
	Host string // its address

	stop func() error // of a private one
}

// Owned reports whether the engine was started for tests.
func Owned() bool { return os.Getenv(Variable) == "" || os.Getenv(OwnedVariable) != "" }

// Prepare builds the image of the tests, unless an earlier test program has built it in an engine that was started for all of them.
func (e *Engine) Prepare(ctx context.Context, build func(ctx context.Context, host string) error) error {
	if os.Getenv(OwnedVariable) != "" && exec.CommandContext(ctx, "docker", "-H", e.Host, "image", "inspect", Image).Run() == nil {
		return nil
	}
	return build(ctx, e.Host)
}

// Start gives an engine. A private one has the program runsc as its runtime of that name, if it is given.
func Start(ctx context.Context, runsc string) (*Engine, error) {
	if host := os.Getenv(Variable); host != "" {
		return &Engine{Host: host}, nil
	}
	script, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "recluse-docker-") // short: a socket's name has a hundred bytes
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, script, "start", dir, runsc).Output()
	if err != nil {
		failed := fmt.Errorf("start an engine: %w", err)
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			text := strings.TrimSpace(string(e.Stderr))
			if e.ExitCode() == missingStatus {
				return nil, errors.Join(fmt.Errorf("%w: %s", ErrMissing, text), os.RemoveAll(dir))
			}
			failed = fmt.Errorf("start an engine: %w: %s", err, text)
		}
		return nil, errors.Join(failed, stopScript(dir))
	}
	return &Engine{Host: strings.TrimSpace(string(out)), stop: func() error { return stopScript(dir) }}, nil
}

// Stop ends a private engine with everything in it.
func (e *Engine) Stop() error {
	if e.stop == nil {
		return nil
	}
	return e.stop()
}

func stopScript(dir string) error {
	script, err := find()
	if err != nil {
		return err
	}
	if text, err := exec.CommandContext(context.Background(), script, "stop", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("stop the engine: %w: %s", err, text)
	}
	return nil
}

// find looks for the script in the module's root, above the directory in which a test or program was started.
func find() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		script := filepath.Join(dir, "scripts", "docker-engine.sh")
		if _, err := os.Stat(script); err == nil {
			return script, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("scripts/docker-engine.sh is not above the working directory")
		}
		dir = up
	}
}
