package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// asQuickstart makes the test's program be the example itself.
const asQuickstart = "RECLUSE_TEST_AS_QUICKSTART"

func TestMain(m *testing.M) {
	if os.Getenv(asQuickstart) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestQuickstart(t *testing.T) {
	testneed.Sandboxes(t)
	engine, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second) // on a busy machine
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), asQuickstart+"=1", "RECLUSE_ENGINE="+engine.Path, "RECLUSE_GUEST="+guest.Path, "XDG_DATA_HOME="+dir, "XDG_CACHE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	want := regexp.MustCompile(`^value:   '285, on Linux [^']+'\nverdict: timed out after [0-9.]+s\nfile:    so far\n$`)
	if err != nil || !want.Match(out) {
		t.Errorf("%v\n%s\nwant %s", err, out, want)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "recluse", "gvisor", "sandboxes")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
