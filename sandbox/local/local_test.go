//go:build linux

package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) {
			if err := syscall.Kill(pidOf(t, b, sb.ID()), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Leftovers: func(t *testing.T, ids []string) []string { return leftovers(t, dir, ids) },
	})
	entries, err := os.ReadDir(filepath.Join(dir, local.Name))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

func pidOf(t *testing.T, b sandbox.Backend, id string) int {
	t.Helper()
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.ID == id {
			return i.PID
		}
	}
	t.Fatalf("%s is not listed", id)
	return 0
}

// leftovers names the directories of sandboxes that are still there, and the processes that know of them.
func leftovers(t *testing.T, dir string, ids []string) []string {
	t.Helper()
	var left []string
	for _, id := range ids {
		if _, err := os.Stat(filepath.Join(dir, local.Name, id)); err == nil {
			left = append(left, id)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		env, _ := os.ReadFile(p + "/environ") // one that has gone has none
		cwd, _ := os.Readlink(p + "/cwd")
		for _, id := range ids {
			if strings.Contains(string(env), id) || strings.Contains(cwd, id) {
				name, _ := os.ReadFile(p + "/comm")
				left = append(left, p+" "+string(name))
			}
		}
	}
	return left
}
