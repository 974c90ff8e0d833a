package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestVolumesOnTheCommandLine(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "in")
	if err := os.WriteFile(file, []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must("volume", "create", "data", "--size", "16m")
	w.must("cp", file, "volume:data/file")
	if got := w.must("exec", "--volume", "data:/data", "--", "sh", "-c", "cat /data/file; touch /data/x 2>/dev/null || echo read-only"); got != "text\nread-only\n" {
		t.Errorf("%q", got)
	}
	w.must("exec", "--volume", "data:/data:rw", "--", "sh", "-c", "echo more >> /data/file")
	if got := w.must("cp", "volume:data/file", "-"); got != "text\nmore\n" {
		t.Errorf("%q", got)
	}
	withMCP(t, w, "echo by a model >> /data/file")
	if got := w.must("cp", "volume:data/file", "-"); got != "text\nmore\nby a model\n" {
		t.Errorf("%q", got)
	}
	w.must("session", "open", "work", "--volume", "data:/data:rw")
	if got := w.must("volume", "show", "data"); !strings.Contains(got, "16 MiB") || !strings.Contains(got, "work (rw)") {
		t.Errorf("%s", got)
	}
	if r := w.run("", "volume", "delete", "data"); r.status == 0 || !strings.Contains(r.stderr, "in use by session work") {
		t.Errorf("%+v", r)
	}
	w.must("session", "end", "work")
	w.must("volume", "delete", "data")
	if r := w.run("", "exec", "--volume", "data:/data", "--", "true"); !strings.Contains(r.stderr, "volume \"data\" not found") {
		t.Errorf("%+v", r)
	}
}

// withMCP runs a command by the tool of an MCP server whose user offers the volume.
func withMCP(t *testing.T, w *world, command string) {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.CommandTransport{Command: w.command("mcp", "--volume", "data:/data:rw")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_bash", Arguments: map[string]any{"command": command}})
	if err != nil || res.IsError {
		t.Errorf("%+v, %v", res, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAVolumeWithADamagedRecordIsShownAndDeleted(t *testing.T) {
	testneed.Root(t, "a volume with a limit")
	t.Parallel()
	w := newWorld(t)
	w.must("volume", "create", "data", "--size", "16m")
	records, err := filepath.Glob(filepath.Join(w.data, "*", "volumes", "default", "data", "volume.json"))
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	if err := os.Truncate(records[0], 10); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"list", "show"} {
		args := []string{"volume", verb, "data"}
		if verb == "list" {
			args = args[:2]
		}
		if got := w.must(args...); !strings.Contains(got, "unreadable") {
			t.Errorf("%s: %s", verb, got)
		}
	}
	if got := w.must("du", "--all"); strings.Count(got, "default/data") != 1 {
		t.Errorf("%s", got)
	}
	w.must("volume", "delete", "data")
	w.must("volume", "create", "data", "--size", "16m")
	w.must("volume", "delete", "data")
}
