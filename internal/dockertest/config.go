package dockertest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/docker/cli/cli/config"
)

// Config sets an empty configuration of the docker command for the duration of a test, and returns its directory.
func Config(t *testing.T) string {
	t.Helper()
	dir, before := t.TempDir(), config.Dir()
	config.SetDir(dir)
	t.Cleanup(func() { config.SetDir(before) })
	for _, v := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		t.Setenv(v, "")
	}
	return dir
}

// WriteContext writes a context into a configuration in the format of the docker command, and returns the directory of
// its keys.
func WriteContext(t *testing.T, dir, name, host string) (keys string) {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	meta, keys := filepath.Join(dir, "contexts", "meta", id), filepath.Join(dir, "contexts", "tls", id, "docker")
	text, err := json.Marshal(
		map[string]any{"Name": name, "Endpoints": map[string]any{"docker": map[string]any{"Host": host}}},
	)
	if err = errors.Join(err, os.MkdirAll(meta, 0o700), os.MkdirAll(keys, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(meta, "meta.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return keys
}
