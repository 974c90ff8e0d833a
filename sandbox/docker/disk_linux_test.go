package docker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// TestADiskThatCannotBeLimitedIsRefused requests a disk that does not fit in memory from an engine without quotas.
func TestADiskThatCannotBeLimitedIsRefused(t *testing.T) {
	b := newBackend(t, nil)
	c := b.Capabilities(t.Context())
	if c.WritableRoot {
		testneed.Lacking(t, "a Docker engine that cannot limit disks")
	}
	if !c.DiskLimit || !strings.Contains(strings.Join(c.Notes, "\n"), "cannot limit bytes") {
		t.Errorf("%+v", c)
	}
	_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Limits: sandbox.Limits{Disk: 20 << 30}})
	e, ok := errors.AsType[*v1.Error](err)
	if !ok || e.Code != v1.CodeInvalidSpec || !strings.Contains(e.Remedy, "docker.unlimited_disk") {
		t.Errorf("20 GiB: %v", err)
	}
}

// TestAWritableRootWithoutALimit is what the operator allows.
func TestAWritableRootWithoutALimit(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.UnlimitedDisk = true })
	c := b.Capabilities(t.Context())
	if !c.WritableRoot || c.DiskLimit || !strings.Contains(strings.Join(c.Notes, "\n"), "not limited") {
		t.Errorf("%+v", c)
	}
	writableRoot(t, b)
}

// writableRoot checks a writable root: who may write where, that it is of one sandbox, and that snapshots contain it.
func writableRoot(t *testing.T, b *Backend) {
	t.Helper()
	sb := open(t, b, sandbox.Spec{Dir: "/work/here"})
	shell(t, sb, "set -e; mkdir -p /usr/local/bin; echo tool > /usr/local/bin/x; mkdir -p /opt/a; echo data > /opt/a/b; echo home > ~/f; echo tmp > /tmp/f; echo > here")
	if got := shell(t, sb, "pwd; id -u; touch /etc/x /usr/bin/x /x 2>/dev/null || echo refused; stat -c '%u %a' ~ /tmp /opt"); got != "/work/here\n1000\nrefused\n1000 755\n0 1777\n1000 755\n" {
		t.Errorf("%q", got)
	}
	other := open(t, b, sandbox.Spec{})
	const see = "cat /usr/local/bin/x /opt/a/b ~/f /tmp/f 2>/dev/null; true"
	if got := shell(t, other, see); got != "" {
		t.Errorf("another sandbox has %q", got)
	}
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID); err != nil {
			t.Error(err)
		}
	})
	shell(t, sb, "rm -r /opt/a; echo later > ~/f")
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = restored.Close() })
	if got := shell(t, restored, see+"; echo more >> /opt/a/b; echo more >> ~/f"); got != "tool\ndata\nhome\ntmp\n" {
		t.Errorf("the copy has %q", got)
	}
	closed := open(t, b, sandbox.Spec{ReadOnly: true})
	if got := shell(t, closed, "touch /opt/x /usr/local/x 2>/dev/null || echo closed; touch ~/x"); got != "closed\n" {
		t.Errorf("with a read-only root: %q", got)
	}
}

// TestTheEngineLimitsTheDisk has an engine whose storage driver has quotas.
func TestTheEngineLimitsTheDisk(t *testing.T) {
	testneed.All(t, "it starts another Docker engine; the refusal without quotas is proved elsewhere")
	dir, driver := withQuotas(t)
	t.Setenv("DOCKER_DRIVER", driver)
	t.Setenv(dockertest.Variable, "")
	t.Setenv("TMPDIR", dir)
	e, err := dockertest.Start(t.Context(), "")
	if err != nil {
		testneed.Lacking(t, err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := buildImage(t.Context(), e.Host); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, func(o *Options) { o.Host = e.Host })
	c := b.Capabilities(t.Context())
	if !c.WritableRoot || !c.DiskLimit {
		t.Fatalf("%+v", c)
	}
	writableRoot(t, b)
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 128 << 20, Disk: 100 << 20}})
	got := shell(t, sb, "df -B1 --output=size / | tail -1; head -c 300000000 /dev/zero > f || stat -c %s f; rm f; echo fine > g; cat g")
	lines := strings.Fields(got) // df shows the limit on XFS only
	written, _ := strconv.Atoi(lines[len(lines)-2])
	if lines[len(lines)-1] != "fine" || written < 80<<20 || written > 120<<20 || driver == "overlay2" && lines[0] != "104857600" {
		t.Errorf("%q", got)
	}
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		Scope: sandboxtest.BackendFeatures, Only: []string{"disk"}, Without: map[string]string{
			"files may be larger than the memory": "it compares df, which shows the limit on XFS only; the limit is tried above",
		},
	})
}

// withQuotas mounts a file system on which a Docker engine has quotas, and returns its directory and the storage driver.
// Not every kernel has quotas on XFS.
func withQuotas(t *testing.T) (dir, driver string) {
	t.Helper()
	testneed.Root(t, "mounting an image")
	work, err := os.MkdirTemp("", "rq-") // short, for the engine's socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	image, dir := filepath.Join(work, "image"), filepath.Join(work, "top")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var failures []string
	try := func(driver, options string, mkfs ...string) bool {
		for _, args := range [][]string{
			{"rm", "-f", image}, {"truncate", "-s", "3G", image}, append(mkfs, "-q", image), {"mount", "-o", options, image, dir},
		} {
			if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				failures = append(failures, driver+": "+args[0]+": "+err.Error()+": "+string(out))
				return false
			}
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		return true
	}
	switch {
	case try("overlay2", "loop,pquota", "mkfs.xfs"):
		return dir, "overlay2"
	case try("btrfs", "loop", "mkfs.btrfs"):
		return dir, "btrfs"
	}
	testneed.Lacking(t, strings.Join(failures, "; "))
	return "", ""
}
