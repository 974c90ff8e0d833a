package dockerengine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/docker/cli/cli/config"
	"github.com/moby/moby/client"
)

// address is where an engine is.
type address struct {
	host    string // empty: the default socket
	tls     string // directory with ca.pem, cert.pem and key.pem; empty: none
	fromEnv bool   // whether DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count
}

// locate chooses as the docker command does: the options, DOCKER_HOST, DOCKER_CONTEXT, the context in use.
func locate(o Options) (address, error) {
	if o.Host != "" {
		return address{host: o.Host, fromEnv: true}, nil
	}
	name := o.Context
	if name == "" {
		if h := os.Getenv(client.EnvOverrideHost); h != "" {
			return address{host: h, fromEnv: true}, nil
		}
		name = os.Getenv("DOCKER_CONTEXT")
	}
	dir := config.Dir()
	if name == "" {
		f, err := config.Load(dir)
		if err != nil {
			return address{}, err
		}
		name = f.CurrentContext
	}
	if name == "" || name == "default" {
		return address{fromEnv: true}, nil
	}
	return readContext(dir, name)
}

// readContext reads a context where the docker command keeps it.
func readContext(dir, name string) (address, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	text, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return address{}, fmt.Errorf("unknown docker context %q", name)
		}
		return address{}, err
	}
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return address{}, fmt.Errorf("docker context %q: %w", name, err)
	}
	at := address{host: meta.Endpoints["docker"].Host}
	if at.host == "" {
		return address{}, fmt.Errorf("docker context %q names no engine", name)
	}
	tls := filepath.Join(dir, "contexts", "tls", id, "docker")
	if _, err := os.Stat(filepath.Join(tls, "cert.pem")); err == nil {
		at.tls = tls
	}
	return at, nil
}
