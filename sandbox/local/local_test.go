//go:build linux

package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// guestPath is a guest built from this tree.
var guestPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "recluse-local-")
	if err == nil {
		guestPath = filepath.Join(dir, "recluse-guest")
		cmd := exec.Command("go", "build", "-o", guestPath, "github.com/recluse-dev/recluse/cmd/recluse-guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the guest:", err)
		os.Exit(1)
	}
	// A developer's own PATH may lead to wrappers; the suite wants the system's programs.
	_ = os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func TestFeatures(t *testing.T) {
	dir := t.TempDir()
	b := local.New(local.Options{Dir: dir, GuestPath: guestPath})
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{})
}
