package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// randomHex returns a unique name.
func randomHex(bytes int) string { return ids.Hex(bytes) }

// guestCopy returns the path of a guest that looks like another version.
func guestCopy(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(guestPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(path, append(text, randomHex(8)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheGuestIsForTheEnginesMachine(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.GuestPath = "" })
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("RECLUSE_GUEST", guestPath)
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.guestProgram(t.Context(), f.Arch); err != nil {
		t.Errorf("for %s: %v", f.Arch, err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[f.Arch]
	if p, err := b.guestProgram(t.Context(), other); v1.CodeOf(err) != v1.CodeEngineMissing || !strings.Contains(err.Error(), "recluse-guest-"+other) {
		t.Errorf("for %s: %+v, %v", other, p, err)
	}
}

func TestAGuestThatWasOnlyHalfBroughtIsBroughtAgain(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.GuestPath = guestCopy(t) })
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	guest, err := b.guestProgram(t.Context(), f.Arch)
	if err != nil {
		t.Fatal(err)
	}
	volume := "recluse-guest-" + guest.Hash[:16] + "-" + f.Arch
	t.Cleanup(func() { docker(t, "volume", "rm", volume) })
	docker(t, "run", "--rm", "--network=none", "-v", volume+":/v", testImage, "sh", "-c", "echo half > /v/recluse-guest")
	shell(t, open(t, b, sandbox.Spec{}), "true")
}

func TestManyBringOneGuestAtOnce(t *testing.T) {
	path := guestCopy(t)
	var wg sync.WaitGroup
	var backends []*Backend
	for range 4 {
		backends = append(backends, newBackend(t, func(o *Options) { o.GuestPath = path }))
	}
	t.Cleanup(func() {
		for v := range strings.FieldsSeq(docker(t, "volume", "ls", "-q", "--filter", "dangling=true", "--filter", "label="+labelGuest)) {
			docker(t, "volume", "rm", v)
		}
	})
	for _, b := range backends {
		wg.Go(func() {
			sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(sb.Ping(t.Context()), sb.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left := leftovers(t, []string{"carrier"}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestCarriersOfDeadProgramsAreSwept(t *testing.T) {
	b := newBackend(t, nil)
	dead := backendkit.Self()
	dead.PID, dead.Start = 1<<22-1, 1 // no process has this PID
	own, err := json.Marshal(dead)
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := b.cli.Carrier(t.Context(), dockerengine.CarrierName(), testImage, map[string]string{dockerengine.LabelOwner: string(own)}, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	used, remove, err := b.cli.Carrier(t.Context(), dockerengine.CarrierName(), testImage, nil, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	open(t, b, sandbox.Spec{}) // sweeps first
	all := docker(t, "ps", "-aq", "--no-trunc")
	if strings.Contains(all, left) || !strings.Contains(all, used) {
		t.Errorf("of %s and %s, %s is left", left, used, all)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
}

func TestSnapshotsOfRestoredSandboxes(t *testing.T) {
	b := newBackend(t, nil)
	ctx := t.Context()
	sb := open(t, b, sandbox.Spec{})
	shell(t, sb, "mkdir -p a/b; echo one > a/b/file; ln -s a/b/file link; chmod 700 a; echo tmp > /tmp/file; mkfifo pipe; echo '#!/bin/sh' > program; chmod +x program")
	var snaps []*sandbox.Snapshot
	t.Cleanup(func() {
		for _, s := range snaps {
			if err := b.DeleteSnapshot(context.WithoutCancel(ctx), s.ID); err != nil {
				t.Error(err)
			}
		}
		if all, err := b.Snapshots(context.WithoutCancel(ctx)); err != nil || len(all) > 0 {
			t.Errorf("left behind: %+v, %v", all, err)
		}
		b.removeUntagged(context.WithoutCancel(ctx))
		if left := docker(t, "images", "-aq", "--filter", "label="+labelInstance+"="+b.instance); left != "" {
			t.Errorf("images are left: %s", left)
		}
	})
	for i := range 3 {
		snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, snap)
		copied, err := sandbox.Restore(ctx, b, snap, sandbox.RestoreOptions{Labels: map[string]string{"n": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := copied.Close(); err != nil {
				t.Error(err)
			}
		})
		sb = copied
		got := shell(t, sb, "cat link /tmp/file; stat -c %a a; [ -x program ] && echo runs; cat count 2>/dev/null; echo -n x >> count")
		if want := "one\ntmp\n700\nruns\n" + strings.Repeat("x", i); got != want {
			t.Errorf("round %d: %q, want %q", i, got, want)
		}
	}
	// A snapshot that is in use, or on which another is based, can also be deleted. Its users continue.
	for _, s := range snaps[:2] {
		if err := b.DeleteSnapshot(ctx, s.ID); err != nil {
			t.Error(err)
		}
		if _, err := b.Restore(ctx, s, sandbox.RestoreOptions{}); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("restore of a deleted snapshot: %v", err)
		}
	}
	shell(t, sb, "cat link")
	if _, err := sb.Fork(ctx, 1); !errors.Is(err, sandbox.ErrNotSupported) || !strings.Contains(err.Error(), noMemory) {
		t.Errorf("a fork without its memory: %v", err)
	}
	if _, err := b.Restore(ctx, &sandbox.Snapshot{ID: "s-000000000000"}, sandbox.RestoreOptions{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("restore of nothing: %v", err)
	}
}

func TestMemoryIsNotPromised(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		b := newBackend(t, func(o *Options) { o.Runtime = runtime })
		if c := b.Capabilities(t.Context()); c.Snapshots != sandbox.SnapshotsFiles || !slices.Contains(c.Notes, noMemory) {
			t.Errorf("%s: %+v", runtime, c)
		}
		_, _, err := backend.Select(t.Context(), []sandbox.Backend{b}, backend.Requirements{Order: []string{Name}, Snapshots: sandbox.SnapshotsMemory, SkipTrial: true})
		if v1.CodeOf(err) != v1.CodeNoBackend || !strings.Contains(err.Error(), "snapshots contain files, and memory is required") {
			t.Errorf("%s: %v", runtime, err)
		}
		sb := open(t, b, sandbox.Spec{})
		if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "x = 42"}); err != nil || !v.OK() {
			t.Fatal(v, err)
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
		copied, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := copied.Cell(t.Context(), sandbox.Cell{Code: "'x' in globals()"}); err != nil || v.Result.Text() != "False" {
			t.Errorf("%s: %v, %v", runtime, v, err)
		}
		if err := copied.Close(); err != nil {
			t.Error(err)
		}
	}
}
