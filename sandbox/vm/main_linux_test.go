package vm

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/internal/vmtest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	playMonitor()
	if dir := os.Getenv(makerEnv); dir != "" {
		makeForAnother(dir)
	}
	goleak.VerifyTestMain(m)
}

// sharedDir returns a data directory in which the setup has run.
var sharedDir = sync.OnceValues(func() (string, error) {
	return vmtest.Prepare(func(ctx context.Context, data, root string) error {
		b, err := newTestBackend(data)
		if err != nil {
			return err
		}
		defer b.Close()
		_, err = b.Setup(ctx, SetupOptions{RootFS: root})
		return err
	})
})

// monitorEnv is the environment variable with the monitor that runs the tests, with KVM (make test-kvm). Without it, QEMU
// emulates: the tests must not depend on the KVM of a machine.
const monitorEnv = "RECLUSE_TEST_MONITOR"

// testMonitor returns the name of the monitor that runs the tests.
func testMonitor() string { return cmp.Or(os.Getenv(monitorEnv), MonitorQEMU) }

// newTestBackend returns a backend with the monitor of the tests.
func newTestBackend(dir string, changes ...func(*Options)) (*Backend, error) {
	guest, err := testbin.Guest()
	if err != nil {
		return nil, err
	}
	o := Options{Monitor: testMonitor(), DataDir: dir, CacheDir: filepath.Join(dir, "cache"), Guest: guest.Path, AllowEmulation: true, Accelerator: AcceleratorEmulation, Network: sandboxtest.Network()}
	if os.Getenv(monitorEnv) != "" {
		o.AllowEmulation, o.Accelerator = false, AcceleratorKVM
	}
	for _, change := range changes {
		change(&o)
	}
	return New(o)
}

// emptyBackend returns a backend without a setup.
func emptyBackend(t *testing.T, changes ...func(*Options)) *Backend {
	t.Helper()
	b, err := newTestBackend(t.TempDir(), changes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// testBackend returns a backend with its own sandboxes and snapshots, and the shared kernel, images and templates.
func testBackend(t *testing.T, changes ...func(*Options)) *Backend {
	t.Helper()
	testneed.Sandboxes(t)
	for _, program := range []string{kinds[testMonitor()].program, squashTool} {
		if _, err := exec.LookPath(program); err != nil {
			testneed.Lacking(t, err)
		}
	}
	shared, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	b := emptyBackend(t, changes...)
	if err := vmtest.Share(shared, filepath.Dir(b.dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // tests of the suite continue after Run has returned
		all, err := b.List(context.Background())
		if err != nil || len(all) > 0 {
			t.Errorf("left behind: %+v, %v", all, err)
		}
		for _, i := range all {
			if err := b.Stop(context.Background(), i.ID); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func open(t *testing.T, b *Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	return sandboxtest.Open(t, b, spec)
}

// cell runs code that must succeed and returns the text of its result.
func cell(t *testing.T, sb *sandbox.Sandbox, code string) string {
	t.Helper()
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	if !v.OK() {
		t.Fatalf("%s: %s %s", code, v, v.Stderr)
	}
	if v.Result == nil {
		return ""
	}
	return v.Result.Text()
}

// leftovers returns the monitors and directories of sandboxes that have ended.
func leftovers(b *Backend, ids []string) (left []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, id := range ids {
		if _, err := os.Stat(b.store.Path(id)); err == nil {
			left = append(left, b.store.Path(id))
		}
		for _, l := range links {
			if mounts, err := os.ReadFile(filepath.Join(filepath.Dir(l), "mountinfo")); err == nil && strings.Contains(string(mounts), "/"+id+"/") {
				line, _ := os.ReadFile(l)
				left = append(left, fmt.Sprintf("%s: %.80q", l, line))
			}
		}
	}
	return left
}
