package testneed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// npmWait is how long an installation may take.
const npmWait = 4 * time.Minute

// NPM returns a directory in which packages from npm are installed, each with its version. The directory is kept for
// the next run of the tests. Only one test of a program may call NPM at a time for the same packages.
func NPM(t testing.TB, packages ...string) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		Lacking(t, "npm", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		Lacking(t, "a cache directory", err)
	}
	sum := sha256.Sum256([]byte(strings.Join(packages, " ")))
	dir := filepath.Join(cache, "recluse-test", "npm-"+hex.EncodeToString(sum[:6]))
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), npmWait)
	defer cancel()
	cmd := exec.CommandContext(
		ctx,
		npm,
		append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund"}, packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("%s", out)
		Lacking(t, "packages from npm", err)
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
