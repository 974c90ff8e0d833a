package mcp

import (
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		testbin.Remove()
		os.Exit(code)
	}))
}

// The npm packages of the clients of other projects.
const (
	inspectorPackage   = "@modelcontextprotocol/inspector@2.12.0"
	conformancePackage = "@modelcontextprotocol/conformance@0.1.16"
	nodePackage        = "node@22.23.3" // the conformance suite needs a newer version than most distributions have
)

// testTimeout is the timeout of each client.
const testTimeout = 4 * time.Minute

var installing sync.Mutex

// node returns a directory in which the packages above are installed.
func node(t *testing.T) string {
	t.Helper()
	testneed.Sandboxes(t)
	installing.Lock()
	defer installing.Unlock()
	return testneed.NPM(t, nodePackage, inspectorPackage, conformancePackage)
}

// testServer is a recluse server that listens on TCP, with its own home directory.
type testServer struct {
	*testbin.Server
	url string
	key string // key of callers over HTTP; empty: none
}

// serve starts a server with further environment variables and flags.
func serve(t *testing.T, more ...string) *testServer {
	t.Helper()
	testneed.Sandboxes(t)
	s, err := testbin.NewServer(t.TempDir(), more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &testServer{Server: s, url: "http://" + s.Address}
}
