package mcp

import (
	"context"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"

	recluse "github.com/recluse-dev/recluse/internal/mcp"
)

// TestConformance runs the official suite against our way of serving HTTP. What the suite looks for are tools, resources and prompts
// of its own, which no agent wants: they are served by a program that exists in this test only.
func TestConformance(t *testing.T) {
	dir := node(t)
	transport := recluse.NewTransport(fixture())
	srv := httptest.NewServer(transport)
	defer srv.Close()
	defer transport.Close()
	defer srv.CloseClientConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", "node"),
		filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"), "server", "--url", srv.URL)
	cmd.Dir = t.TempDir() // it writes its results beside itself
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
