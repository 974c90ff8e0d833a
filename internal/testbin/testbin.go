// Package testbin gives tests the engine and the guest: those that RECLUSE_ENGINE and
// RECLUSE_GUEST name, or freshly built ones.
package testbin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/recluse-dev/recluse/internal/bundle"
)

const module = "github.com/recluse-dev/recluse"

var build = sync.OnceValues(func() ([2]bundle.Program, error) {
	var out [2]bundle.Program
	for i, p := range []struct{ env, name string }{{"RECLUSE_ENGINE", bundle.EngineName}, {"RECLUSE_GUEST", bundle.GuestName}} {
		path := os.Getenv(p.env)
		if path == "" {
			dir := filepath.Join(os.TempDir(), "recluse-testbin")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return out, err
			}
			path = filepath.Join(dir, p.name)
			cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, module+"/cmd/"+p.name)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if text, err := cmd.CombinedOutput(); err != nil {
				return out, fmt.Errorf("build %s: %w: %s", p.name, err, text)
			}
		}
		f, err := os.Open(path)
		if err != nil {
			return out, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return out, err
		}
		out[i] = bundle.Program{Path: path, Hash: hex.EncodeToString(h.Sum(nil)), Origin: "test"}
	}
	return out, nil
})

// Programs gives the engine and the guest, built once per test program.
func Programs() (engine, guest bundle.Program, err error) {
	p, err := build()
	return p[0], p[1], err
}
