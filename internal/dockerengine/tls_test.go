package dockerengine

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
)

// A connection that must be verified never uses plain text: without keys Open fails, as the docker command does.
func TestVerifiedEngineNeedsKeys(t *testing.T) {
	dir := dockertest.Config(t)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", "")
	_, err := Open(Options{Host: "tcp://127.0.0.1:2375"})
	if v1.CodeOf(err) != v1.CodeBackendMissing || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(Options{Host: "unix:///nowhere.sock"}); err != nil {
		t.Errorf("a socket needs no keys: %v", err)
	}
}
