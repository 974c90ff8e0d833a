package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/store"
)

// hostSandboxes returns the use of each sandbox, by session.
func (w *world) hostSandboxes() map[string]v1.HostSandbox {
	w.t.Helper()
	var all []v1.HostSandbox
	decodeJSON(w.t, w.must("sandbox", "list", "--json"), &all)
	out := map[string]v1.HostSandbox{}
	for _, s := range all {
		out[s.Session] = s
	}
	return out
}

// loseStore ends the server and removes its store.
func (w *world) loseStore() {
	w.t.Helper()
	w.must("server", "stop")
	files, err := filepath.Glob(filepath.Join(w.data, "recluse", store.File+"*"))
	if err != nil || len(files) == 0 {
		w.t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestSandboxesOfALostStoreAreStraysAndEnd(t *testing.T) {
	for name, env := range map[string][]string{
		"gvisor": nil,
		"local":  {"RECLUSE_BACKEND_ORDER=local", "RECLUSE_BACKEND_ALLOW_NO_ISOLATION=true"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, env...)
			use := func(when, session string, want v1.SandboxUse) v1.HostSandbox {
				t.Helper()
				var s v1.HostSandbox
				w.await(when, func() bool { // a server that has been stopped may live a moment longer
					s = w.hostSandboxes()["default/"+session]
					return s.Use == want
				})
				if s.Backend != name || !s.Running || s.Store != filepath.Join(w.data, "recluse") || s.Owner == 0 {
					t.Errorf("%s: %+v, want %s", when, s, want)
				}
				return s
			}
			w.must("exec", "--session", "one", "--python", "x = 1")
			one := use("its server lives", "one", v1.SandboxHeld)
			if got := w.run("", "sandbox", "end", one.ID, "--force"); got.status != 125 || !strings.Contains(got.stderr, "in use") {
				t.Errorf("end of a held sandbox: %+v", got)
			}
			w.must("sandbox", "end", "--strays")
			w.must("server", "stop")
			use("its server does not run", "one", v1.SandboxKept)
			if got := w.run("", "sandbox", "end", one.ID); got.status != 125 || !strings.Contains(got.stderr, "--force") {
				t.Errorf("end of a kept sandbox: %+v", got)
			}
			if got := w.must("exec", "--session", "one", "--python", "x + 1"); strings.TrimSpace(got) != "2" {
				t.Errorf("the session of a living server lost its state: %q", got)
			}
			w.loseStore()
			use("its store is gone", "one", v1.SandboxStray)

			w.must("exec", "--session", "two", "--python", "x = 1")
			use("its directory has another store", "one", v1.SandboxStray)
			use("its server lives", "two", v1.SandboxHeld)
			var got v1.Collected
			decodeJSON(t, w.must("gc", "--json"), &got)
			if got.Strays != 1 {
				t.Errorf("gc: %+v", got)
			}
			if _, left := w.hostSandboxes()["default/one"]; left {
				t.Error("gc left the stray")
			}
			if got := w.must("exec", "--session", "two", "--python", "x + 1"); strings.TrimSpace(got) != "2" {
				t.Errorf("the other session lost its state: %q", got)
			}

			w.loseStore()
			use("its store is gone", "two", v1.SandboxStray)
			if got := w.must("sandbox", "end", "--strays"); got != "ended 1 sandbox\n" {
				t.Errorf("end: %q", got)
			}
			if all := w.hostSandboxes(); len(all) != 0 {
				t.Errorf("left: %+v", all)
			}
			end := w.run("", "sandbox", "end", "--json", "s0123456789ab")
			var failed struct{ Error console.Failure }
			if decodeJSON(t, end.stdout, &failed); end.status != 1 || failed.Error.Code != v1.CodeNotFound {
				t.Errorf("end of one that does not exist: %+v", end)
			}
		})
	}
}

func TestOnlyForceEndsASandboxThatMayBeNeeded(t *testing.T) {
	for use, want := range map[v1.SandboxUse]v1.Code{v1.SandboxKept: v1.CodeBusy, v1.SandboxUnknown: v1.CodeBusy, v1.SandboxStray: v1.CodeNoBackend} {
		a, all := &app{stdout: io.Discard}, []v1.HostSandbox{{ID: "a", Backend: "none", Use: use}}
		if got := v1.CodeOf(a.endSandboxes(t.Context(), nil, all, nil, []string{"a"}, false)); got != want {
			t.Errorf("%s: %s", use, got)
		}
		// it is tried
		if got := v1.CodeOf(a.endSandboxes(t.Context(), nil, all, nil, []string{"a"}, true)); got != v1.CodeNoBackend {
			t.Errorf("%s with --force: %s", use, got)
		}
	}
}
