//go:build linux

package remotetest

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/spend"
	"github.com/recluse-dev/recluse/sandbox"
)

// LiveOptions are the options of a backend for Live. They bound what it costs.
func LiveOptions(t *testing.T) remoteguest.Options {
	return remoteguest.Options{
		Dir: t.TempDir(), Instance: "test-live", Guest: Guest, Limits: spend.Limits{Sandboxes: 2, PerHour: 2, Total: 2},
	}
}

// Live tries a backend with the real service, and prints what it costs.
func Live(t *testing.T, b Backend) {
	t.Cleanup(func() {
		h := b.Health(t.Context())
		t.Log(h.Reason)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if h := b.Health(t.Context()); !h.OK {
		t.Fatalf("%s (%s)", h.Reason, h.Remedy)
	}
	sb := Open(t, b)
	if got := Sh(t, sb, "echo hello"); got != "hello\n" {
		t.Errorf("%q", got)
	}
	cell(t, sb, "x = 41", "")
	if got := Sh(t, sb, "timeout 5 bash -c 'echo >/dev/tcp/1.1.1.1/443' 2>/dev/null && echo open || echo closed"); got != "closed\n" {
		t.Errorf("the network is %s", got)
	}
	counted := &counter{}
	v, err := sb.Run(t.Context(), sandbox.Command{
		Shell: "head -c 3000000 /dev/urandom >&2", RunOptions: sandbox.RunOptions{Stderr: counted},
	})
	if err != nil || !v.OK() || counted.n != 3_000_000 {
		t.Errorf("%d bytes, %v, %+v", counted.n, err, v)
	}
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	cell(t, again, "x + 1", "42")
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	left, err := b.List(t.Context())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
