package mcpclients

import (
	"context"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"

	recluse "github.com/recluse-dev/recluse/internal/mcp"
)

// TestConformance runs the official suite against the HTTP transport. The suite requires special tools, resources and
// prompts that are useless for agents, so the test serves them with a server of its own.
func TestConformance(t *testing.T) {
	dir := node(t)
	transport := recluse.NewTransport(fixture())
	srv := httptest.NewServer(transport)
	defer srv.Close()
	defer transport.Close()
	defer srv.CloseClientConnections()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", "node"),
		filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"), "server", "--url", srv.URL)
	cmd.Dir = t.TempDir() // the suite writes its results into the working directory
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
