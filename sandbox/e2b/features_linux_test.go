package e2b

import (
	"context"
	"os"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// TestASandboxAtTheService has the life of a sandbox with the real protocol on both ends.
func TestASandboxAtTheService(t *testing.T) {
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	sb := open(t, b)
	if got := run(t, sb, "echo hello; id -u"); got != "hello\n1000\n" {
		t.Errorf("%q", got)
	}
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "x = 41"})
	if err != nil || !v.OK() {
		t.Fatalf("%v %+v", err, v)
	}
	// Neither the arguments nor the environment of a process show the token.
	m, err := b.Attach(t.Context(), sb.ID())
	if v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("attached twice: %v %v", m, err)
	}
	if got := run(t, sb, "cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ci '[t]oken' || true"); got != "0\n" {
		t.Errorf("%s lines have a token", strings.TrimSpace(got))
	}
	if n := s.count("/files"); n != 1 {
		t.Errorf("the guest was uploaded %d times", n)
	}

	// Another program continues after this one has died.
	id, dir := sb.ID(), b.dir()
	sb.Detach()
	later := s.backend(t, s.server.URL, func(o *Options) { o.Remote.Dir = dir })
	again, err := sandbox.Attach(t.Context(), later, id)
	if err != nil {
		t.Fatal(err)
	}
	v, err = again.Cell(t.Context(), sandbox.Cell{Code: "x + 1"})
	if err != nil || v.Result.Text() != "42" {
		t.Errorf("%v %+v", err, v)
	}

	// A snapshot has the memory.
	snap, err := again.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	if left := s.running(t); len(left) > 0 {
		t.Errorf("still running: %q", left)
	}
	restored, err := sandbox.Restore(t.Context(), later, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err = restored.Cell(t.Context(), sandbox.Cell{Code: "x + 2"})
	if err != nil || v.Result.Text() != "43" {
		t.Errorf("%v %+v", err, v)
	}
	if err := restored.Close(); err != nil {
		t.Error(err)
	}
	if err := later.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	if left := s.running(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestConnectionsThatBreak has a link that cuts connections at random offsets.
func TestConnectionsThatBreak(t *testing.T) {
	s := newService(t)
	l := &remotetest.Link{Cut: between(500_000, 4_000_000)}
	b := s.backend(t, s.server.URL, nil)
	sb := open(t, b) // without cuts, because a failed upload is not repeated
	id, dir := sb.ID(), b.dir()
	sb.Detach()
	cut := s.backend(t, l.Listen(t, s.server.URL), func(o *Options) { o.Remote.Dir = dir })
	sb, err := sandbox.Attach(t.Context(), cut, id)
	if err != nil {
		t.Fatal(err)
	}
	const size = 20 << 20
	counted := &counter{}
	v, err := sb.Run(t.Context(), sandbox.Command{
		Shell:      "head -c 20971520 /dev/urandom >&2",
		RunOptions: sandbox.RunOptions{Stderr: counted, Timeout: v1.NoLimit},
	})
	if err != nil || !v.OK() || counted.n != size {
		t.Errorf("%d bytes, %v, %+v", counted.n, err, v)
	}
	if n := l.Cuts.Load(); n < 3 {
		t.Errorf("the link was cut %d times only", n)
	}
	sb.Detach()
}

type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

func TestFeatures(t *testing.T) {
	testneed.All(t, "TestASandboxAtTheService has the life of a sandbox; the guest is the same everywhere")
	s := newService(t)
	b := s.backend(t, s.server.URL, nil)
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{
		KillGuest: func(t *testing.T, sb *sandbox.Sandbox) {
			_, _ = sb.Run(t.Context(), sandbox.Command{Shell: "pkill -9 -f recluse-guest"}) // it ends, too
		},
		Leftovers: func(t *testing.T, _ []string) []string {
			all, err := b.List(context.WithoutCancel(t.Context()))
			if err != nil {
				t.Error(err)
			}
			var out []string
			for _, i := range all {
				out = append(out, i.ID)
			}
			return out
		},
		EndUnknown:  true,
		Plain:       true,
		SizeUnknown: true,
		Many:        4,
		Scope:       sandboxtest.BackendFeatures,
	})
}

// dir returns the directory of the backend's records.
func (b *Backend) dir() string { return b.Backend.Dir() }

// forget removes the record of a snapshot.
func (b *Backend) forget(id string) error { return os.Remove(b.dir() + "/snapshots/" + id + ".json") }
