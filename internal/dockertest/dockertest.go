// Package dockertest provides tests and benchmarks with a Docker engine: the one in RECLUSE_TEST_DOCKER_HOST, or a
// private one with its own socket and data, which is stopped after the tests. For tests about Podman, it starts
// Podman's service.
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

// Variable is the environment variable with the address of a Docker engine to use instead of a private one.
const Variable = "RECLUSE_TEST_DOCKER_HOST"

// OwnedVariable is the environment variable that scripts/test.sh sets if it has started the Docker engine for the
// tests. That engine has our runsc, and keeps the image that one test program builds for the next.
const OwnedVariable = "RECLUSE_TEST_DOCKER_OWNED"

// Image is the name of the image that tests build from this machine.
const Image = "recluse-test:latest"

// ErrMissing means that this machine has no Docker engine, or that this user may not start one.
var ErrMissing = errors.New("no Docker engine can be started")

// missingStatus is the exit status of the script that means ErrMissing.
const missingStatus = 3

// Engine is a running Docker engine.
type Engine struct {
	Host string // address of the engine

	stop func() error // stops a private engine; nil for others
}

// Owned reports whether the Docker engine was started for the tests.
func Owned() bool { return os.Getenv(Variable) == "" || os.Getenv(OwnedVariable) != "" }

// Prepare builds the image of the tests, unless the engine was started for all test programs and an earlier one has
// built the image.
func (e *Engine) Prepare(ctx context.Context, build func(ctx context.Context, host string) error) error {
	inspect := exec.CommandContext(ctx, "docker", "-H", e.Host, "image", "inspect", Image)
	if os.Getenv(OwnedVariable) != "" && inspect.Run() == nil {
		return nil
	}
	return build(ctx, e.Host)
}

// Start returns a running Docker engine. If runsc is not empty, a private engine has that program as its runtime runsc.
func Start(ctx context.Context, runsc string) (*Engine, error) {
	if host := os.Getenv(Variable); host != "" {
		return &Engine{Host: host}, nil
	}
	script, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "recluse-docker-") // short, because the path of a socket is limited to about 100 bytes
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, script, "start", dir, runsc).Output()
	if err != nil {
		failed := fmt.Errorf("start Docker engine: %w", err)
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			text := strings.TrimSpace(string(e.Stderr))
			if e.ExitCode() == missingStatus {
				return nil, errors.Join(fmt.Errorf("%w: %s", ErrMissing, text), os.RemoveAll(dir))
			}
			failed = fmt.Errorf("start Docker engine: %w: %s", err, text)
		}
		return nil, errors.Join(failed, stopScript(dir))
	}
	return &Engine{Host: strings.TrimSpace(string(out)), stop: func() error { return stopScript(dir) }}, nil
}

// Stop stops a private engine and removes everything in it.
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
		return fmt.Errorf("stop Docker engine: %w: %s", err, text)
	}
	return nil
}

// find returns the path of the script. It searches the working directory and its parents, because the script is in the
// module's root.
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
			return "", errors.New("scripts/docker-engine.sh not found in the working directory or above")
		}
		dir = up
	}
}
