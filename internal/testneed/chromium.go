package testneed

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// chromiumWait is how long Chromium may take for one page.
const chromiumWait = 2 * time.Minute

// Chromium opens a page, a file or a URL of this machine, in Chromium without a window, and returns its stdout. The
// flags say what to do with the page, such as --dump-dom.
func Chromium(t testing.TB, page string, flags ...string) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		Lacking(t, "Chromium", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), chromiumWait)
	defer cancel()
	args := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
		"--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(),
	}, flags...)
	if !strings.Contains(page, "://") {
		page = "file://" + filepath.ToSlash(page)
	}
	cmd := exec.CommandContext(ctx, program, append(args, page)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("chromium: %v\n%s", err, log.String())
	}
	return out.String()
}
