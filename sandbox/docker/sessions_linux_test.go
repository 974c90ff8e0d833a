package docker

import (
	"log/slog"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/pool"
	"github.com/recluse-dev/recluse/session"
)

// manager gives a session manager on a backend, whose sessions end with the test.
func manager(t *testing.T, b *Backend, o session.Options) *session.Manager {
	t.Helper()
	if _, err := b.facts(t.Context()); err != nil { // known from here on: a busy machine's engine may take longer than a choice among backends lasts
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
		"of a pool":   {session.Options{Pool: pool.Options{Min: 1, Target: 1, Max: 1}}, ""}, // was nobody's when it was made
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
			// As docs/OPERATION.md has it.
			if got := docker(t, "ps", "--filter", "label=dev.recluse.sandbox="+id, "--format", "{{.Names}}"); got != containerName(id) {
				t.Errorf("found by the sandbox's label: %q, want %q", got, containerName(id))
			}
			// A program that comes later is told either way.
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
				t.Errorf("listed as of session %q: %+v", whose, all)
			}
		})
	}
}
