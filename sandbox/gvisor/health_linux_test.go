//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

func TestHealthRunsASandbox(t *testing.T) {
	for _, asUser := range []bool{false, true} {
		b := backendIn(t, t.TempDir())
		b.opts.AsUser = asUser
		testHealth(t, b)
	}
}

func testHealth(t *testing.T, b *Backend) {
	t.Helper()
	h := b.Health(t.Context())
	if !h.OK || h.Version == "" || h.Took == 0 {
		t.Fatalf("%+v", h)
	}
	t.Logf("it took %s", h.Took)
	if again := b.Health(t.Context()); again != h {
		t.Errorf("second call: %+v", again)
	}
	for _, d := range []string{"sandboxes", "engine"} {
		if left, err := os.ReadDir(filepath.Join(b.dir, d)); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v %v", d, left, err)
		}
	}
}

func TestHealthRemembersATrial(t *testing.T) {
	dir := t.TempDir()
	first := backendIn(t, dir).Health(t.Context())
	if !first.OK {
		t.Fatalf("%+v", first)
	}
	// A trial would fail, because this engine does nothing.
	broken := func(change func(b *Backend)) sandbox.Health {
		b := backendIn(t, dir)
		hash := b.engine.Hash
		b.engine.Path = "/bin/false"
		b.engine.Hash = hash
		if change != nil {
			change(b)
		}
		return b.Health(t.Context())
	}
	if h := broken(nil); !h.OK || h.Version != first.Version {
		t.Errorf("another program: %+v", h)
	}
	for what, change := range map[string]func(b *Backend){
		"another engine":       func(b *Backend) { b.engine.Hash = "other" },
		"another guest":        func(b *Backend) { b.guest.Hash = "other" },
		"another kind of user": func(b *Backend) { b.opts.AsUser = true },
		"an old trial": func(b *Backend) {
			old := map[string]any{"of": b.trialNow(first.Version), "at": time.Now().Add(-2 * time.Hour)}
			if err := atomicfile.WriteJSON(b.trials.Path, old); err != nil {
				t.Fatal(err)
			}
		},
		"a trial of another boot": func(b *Backend) {
			r := b.trialNow(first.Version)
			r.Boot = "other"
			b.trials.Keep(r)
		},
		"a sandbox that did not start": func(b *Backend) { b.forgetTrial() },
	} {
		if h := broken(change); h.OK {
			t.Errorf("%s: %+v", what, h)
		}
		again := backendIn(t, dir)
		again.forgetTrial()
		if h := again.Health(t.Context()); !h.OK {
			t.Errorf("after %s: %+v", what, h)
		}
	}
}

func TestHealthSaysWhatIsWrong(t *testing.T) {
	t.Run("an engine that knows its version and nothing else", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		b.engine.Path = filepath.Join(t.TempDir(), "engine")
		script := "#!/bin/sh\nfor a; do [ \"$a\" = --version ] && echo runsc version 1 && exit 0; done\necho no can do >&2; exit 1\n"
		if err := os.WriteFile(b.engine.Path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		h := b.Health(t.Context())
		if h.OK || h.Version != "1" || !strings.Contains(h.Reason, "no can do") {
			t.Errorf("%+v", h)
		}
	})
	t.Run("a guest that cannot run", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		b.guest.Path = filepath.Join(t.TempDir(), "guest")
		if err := os.WriteFile(b.guest.Path, []byte("no program"), 0o755); err != nil {
			t.Fatal(err)
		}
		if h := b.Health(t.Context()); h.OK || h.Reason == "" {
			t.Errorf("%+v", h)
		}
		if left := entriesOf(filepath.Join(b.dir, "sandboxes")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("an engine that is only slow is not broken", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		b.engine.Path = filepath.Join(t.TempDir(), "engine")
		script := "#!/bin/sh\nfor a; do [ \"$a\" = --version ] && echo runsc version 1 && exit 0; done\nexec sleep 1000\n"
		if err := os.WriteFile(b.engine.Path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, tried, err := backend.Select(t.Context(), []sandbox.Backend{b}, backend.Requirements{})
		if err != nil || len(tried) != 1 || !strings.Contains(tried[0].Health.Reason, "busy") {
			t.Errorf("%v: %+v", err, tried)
		}
		if _, err := os.Stat(b.trials.Path); err == nil {
			t.Error("a slow trial was recorded as successful")
		}
	})
	t.Run("a slow trial is cleared away before a caller goes who waits no more", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		b.engine.Path = filepath.Join(t.TempDir(), "engine")
		if err := os.WriteFile(b.engine.Path, []byte("#!/bin/sh\nfor a; do [ \"$a\" = run ] && exec sleep 1000; done\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := b.tryOut(ctx, gone); !errors.Is(err, errSlow) {
			t.Errorf("%v", err)
		}
		if left := entriesOf(filepath.Join(b.dir, "sandboxes")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("a caller without time for a trial hears nothing good, and that is not remembered", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		if h := b.Health(impatient{t.Context()}); h.OK || h.Version == "" || !strings.Contains(h.Reason, "no time") {
			t.Errorf("%+v", h)
		}
		if left := entriesOf(filepath.Join(b.dir, "sandboxes")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if h := b.Health(t.Context()); !h.OK {
			t.Errorf("%+v", h)
		}
	})
	t.Run("a caller that gives up is not remembered", func(t *testing.T) {
		b := backendIn(t, t.TempDir())
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		if h := b.Health(ctx); h.OK {
			t.Errorf("%+v", h)
		}
		if h := b.Health(t.Context()); !h.OK {
			t.Errorf("%+v", h)
		}
	})
}

func TestHostsThatForbidUserNamespacesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		asUser bool
		err    error
		remedy string
	}{
		"forbidden":                        {true, unix.EPERM, "kernel.unprivileged_userns_clone=1"},
		"none left":                        {true, unix.ENOSPC, "user.max_user_namespaces"},
		"forbidden by AppArmor":            {true, unix.EACCES, "kernel.apparmor_restrict_unprivileged_userns=0"},
		"a kernel without":                 {true, unix.EINVAL, "run recluse as root"},
		"an ordinary user's other trouble": {true, unix.ENOENT, ""},
		"root, who needs none":             {false, unix.EPERM, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cause := fmt.Errorf("trial sandbox: %w", &os.PathError{Op: "fork/exec", Path: "/engine", Err: c.err})
			reason, remedy := explainFailure(c.asUser, cause)
			if !strings.Contains(reason, cause.Error()) || strings.Contains(reason, "user namespaces") != (c.remedy != "") {
				t.Errorf("the reason is %q", reason)
			}
			if !strings.Contains(remedy, c.remedy) || c.remedy == "" && remedy != "" {
				t.Errorf("the remedy is %q, want %q", remedy, c.remedy)
			}
		})
	}
}

// impatient is a context whose deadline is very near.
type impatient struct{ context.Context } //nolint:containedctx // it is one

func (impatient) Deadline() (time.Time, bool) { return time.Now(), true }
