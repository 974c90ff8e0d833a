package docker

import (
	"log/slog"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/pool"
	"github.com/recluse-dev/recluse/session"
)

// manager returns a session manager on a backend. Its sessions end with the test.
func manager(t *testing.T, b *Backend, o session.Options) *session.Manager {
	t.Helper()
	// caches the facts: on a busy machine, the engine may be slower than the selection of a backend allows
	if _, err := b.facts(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Backends, o.DataDir, o.Logger = []sandbox.Backend{b}, t.TempDir(), slog.New(slog.DiscardHandler)
	o.Require = backend.Requirements{Order: []string{Name}, SkipTrial: true}
	m, err := session.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestTheContainerOfASessionBearsItsName(t *testing.T) {
	for name, c := range map[string]struct {
		opts  session.Options
		bears string
	}{
		"made for it": {session.Options{NoPool: true}, "default/work"},
		// it had no session when it was made
		"of a pool": {session.Options{Pool: pool.Options{Min: 1, Target: 1, Max: 1}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, nil)
			s, _, err := manager(t, b, c.opts).Open(t.Context(), session.Key{Name: "work"}, session.OpenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			id := s.Info().Sandbox
			if got := docker(t, "inspect", "--format", `{{index .Config.Labels "`+labelSession+`"}}`, containerName(id)); got != c.bears {
				t.Errorf("the engine's label is %q, want %q", got, c.bears)
			}
			// As in docs/OPERATION.md.
			if got := docker(t, "ps", "--filter", "label=dev.recluse.sandbox="+id, "--format", "{{.Names}}"); got != containerName(id) {
				t.Errorf("found by the sandbox's label: %q, want %q", got, containerName(id))
			}
			// A later program finds the label of the session in both cases.
			later := newBackend(t, func(o *Options) { o.Dir, o.Instance = b.dir, b.instance })
			all, err := later.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			whose := ""
			for _, i := range all {
				if i.ID == id {
					whose = i.Labels[sandbox.LabelSession]
				}
			}
			if whose != "default/work" {
				t.Errorf("listed with the session %q: %+v", whose, all)
			}
		})
	}
}
