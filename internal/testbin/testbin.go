// Package testbin provides tests with recluse, the engine and the guest: the programs in RECLUSE_BIN, RECLUSE_ENGINE
// and RECLUSE_GUEST, or newly built ones.
package testbin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/bundle"
)

const module = "github.com/recluse-dev/recluse"

var (
	// Engine returns the engine, built at most once per test program.
	Engine = sync.OnceValues(func() (bundle.Program, error) { return find("RECLUSE_ENGINE", bundle.EngineName) })
	// Guest returns the guest, built at most once per test program.
	Guest = sync.OnceValues(func() (bundle.Program, error) { return find("RECLUSE_GUEST", bundle.GuestName) })
)

// Programs returns the engine and the guest.
func Programs() (engine, guest bundle.Program, err error) {
	if engine, err = Engine(); err == nil {
		guest, err = Guest()
	}
	return engine, guest, err
}

func find(variable, name string) (bundle.Program, error) {
	path := os.Getenv(variable)
	if path == "" {
		dir := filepath.Join(os.TempDir(), "recluse-testbin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return bundle.Program{}, err
		}
		path = filepath.Join(dir, name)
		cmd := exec.CommandContext(context.Background(),
			"go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, module+"/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return bundle.Program{}, fmt.Errorf("build %s: %w: %s", name, err, text)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return bundle.Program{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return bundle.Program{}, err
	}
	return bundle.Program{Path: path, Hash: hex.EncodeToString(h.Sum(nil)), Origin: "test"}, nil
}

// buildWait is how long the build of recluse may take on a busy machine.
const buildWait = 4 * time.Minute

// Installed returns a new directory with recluse, the engine and the guest. It is for tests in which another program
// starts recluse: such programs pass on little of their environment, so recluse has to find engine and guest beside
// itself. The caller removes the directory.
func Installed() (dir string, err error) {
	engine, guest, err := Programs()
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "recluse-installed-"); err != nil {
		return "", err
	}
	for _, tool := range []string{engine.Path, guest.Path} {
		if err := os.Symlink(tool, filepath.Join(dir, filepath.Base(tool))); err != nil {
			return dir, err
		}
	}
	if built := os.Getenv("RECLUSE_BIN"); built != "" {
		return dir, os.Symlink(built, filepath.Join(dir, "recluse"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildWait)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", dir, module+"/cmd/recluse")
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build recluse: %w: %s", err, out)
	}
	return dir, nil
}

// ShareTemplates makes the user with a data directory ($XDG_DATA_HOME) use the root file systems and templates in the
// directory shared, because making them takes longer than most tests. Call it before the user's first sandbox.
func ShareTemplates(shared, data string) error {
	own := filepath.Join(data, "recluse", "gvisor")
	err := os.MkdirAll(own, 0o700)
	for _, name := range []string{"roots", "templates"} {
		dir := filepath.Join(shared, name)
		err = errors.Join(err, os.MkdirAll(dir, 0o700), os.Symlink(dir, filepath.Join(own, name)))
	}
	return err
}
