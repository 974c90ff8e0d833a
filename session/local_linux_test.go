package session

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/local"
)

// A backend that can neither pause nor take snapshots returns not_supported, and its idle sessions end.
func TestABackendWithoutSnapshots(t *testing.T) {
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := local.New(local.Options{Dir: filepath.Join(dir, "local"), GuestPath: guest.Path})
	o := Options{
		Backends: []sandbox.Backend{b}, Require: backend.Requirements{AllowNone: true}, DataDir: dir, reapEvery: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for _, i := range list(b) {
			t.Errorf("sandbox %s is left", i.ID)
		}
	}()
	s, _, err := m.Open(t.Context(), Key{Name: "work"}, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "x = 41")
	wantCode(t, "hibernate", s.Hibernate(t.Context()), v1.CodeNotSupported)
	wantCode(t, "pause", s.Pause(t.Context()), v1.CodeNotSupported)
	_, err = s.Save(t.Context(), "one")
	wantCode(t, "snapshot", err, v1.CodeNotSupported)
	_, err = s.Fork(t.Context(), 1, nil)
	wantCode(t, "fork", err, v1.CodeNotSupported)
	if err := m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if s, err = m.Get(t.Context(), Key{Name: "work"}); err != nil {
		t.Fatal(err)
	}
	want(t, "x + 1 after a restart", py(t, s, "x + 1"), "42")
	idle, _, err := m.Open(t.Context(), Key{Name: "idle"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "it expires", func() bool { return idle.Info().State == v1.StateExpired })
	if i := idle.Info(); i.Policy.OnIdle != v1.IdleEnd || !strings.Contains(i.Reason, "idle for") {
		t.Errorf("on_idle is %s, and the reason %q", i.Policy.OnIdle, i.Reason)
	}
	_, _, err = m.Open(t.Context(), Key{Name: "sleeper"}, OpenOptions{Settings: Settings{Policy: Policy{OnIdle: v1.IdleHibernate}}})
	wantCode(t, "on_idle that the backend cannot do", err, v1.CodeNotSupported)
	if err != nil && !strings.Contains(err.Error(), "end or keep") {
		t.Errorf("%v does not name the choices", err)
	}
}
