package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// surveyed is a backend with sandboxes of many servers.
type surveyed struct {
	sandbox.Backend
	all   []backend.Surveyed
	ended []string
}

func (s *surveyed) Name() string                                       { return "surveyed" }
func (s *surveyed) Survey(context.Context) ([]backend.Surveyed, error) { return s.all, nil }

func (s *surveyed) EndUnheld(_ context.Context, id string) error {
	s.ended = append(s.ended, id)
	return nil
}

// newStore makes a store and returns its directory and id.
func newStore(t *testing.T, keepOpen bool) (dir, instance string) {
	t.Helper()
	dir = t.TempDir()
	st, err := store.OpenSQLite(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	closeStore := func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	if keepOpen {
		t.Cleanup(closeStore)
	} else {
		closeStore()
	}
	return dir, st.Instance()
}

func removeStore(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, store.File+"*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
}

func TestOnlySandboxesOfALostStoreAreStrays(t *testing.T) {
	live, liveID := newStore(t, true)
	stopped, stoppedID := newStore(t, false)
	removed, removedID := newStore(t, false)
	removeStore(t, removed)
	damaged, damagedID := newStore(t, false)
	if err := os.WriteFile(filepath.Join(damaged, store.File), []byte("nothing of the kind"), 0o600); err != nil {
		t.Fatal(err)
	}
	moved, movedID := newStore(t, false)
	absent := filepath.Join(t.TempDir(), "not mounted")
	t.Chdir(filepath.Dir(stopped))
	b := &surveyed{}
	wanted, strays := map[string]v1.SandboxUse{}, []string{}
	for _, tt := range []struct {
		name          string
		dir, instance string
		held, persist bool
		want          v1.SandboxUse
	}{
		{"a program is attached", removed, removedID, true, true, v1.SandboxHeld},
		{"its server lives", live, liveID, false, true, v1.SandboxHeld},
		{"its server is stopped", stopped, stoppedID, false, true, v1.SandboxKept},
		{"its store was moved", absent, movedID, false, true, v1.SandboxKept},
		{"its store was removed", removed, removedID, false, true, v1.SandboxStray},
		{"its store was replaced", stopped, "of another", false, true, v1.SandboxStray},
		{"its store is damaged", damaged, damagedID, false, true, v1.SandboxUnknown},
		{"its directory is missing", absent, "gone", false, true, v1.SandboxUnknown},
		{"its directory is empty", t.TempDir(), "gone", false, true, v1.SandboxUnknown},
		{"its directory is relative", filepath.Base(stopped), "of another", false, true, v1.SandboxUnknown},
		{"it has no store", "", "", false, true, v1.SandboxUnknown},
		{"it has no store and was to end with its program", "", "", false, false, v1.SandboxStray},
	} {
		info := sandbox.Info{ID: tt.name, Backend: "surveyed", Labels: map[string]string{labelInstance: tt.instance, labelStore: tt.dir}}
		info.Spec.Persist = tt.persist
		b.all = append(b.all, backend.Surveyed{Info: info, Held: tt.held})
		if wanted[tt.name] = tt.want; tt.want == v1.SandboxStray {
			strays = append(strays, tt.name)
		}
	}
	all, err := Survey(t.Context(), []sandbox.Backend{b}, moved)
	if err != nil || len(all) != len(wanted) {
		t.Fatalf("%d of %d sandboxes: %v", len(all), len(wanted), err)
	}
	for _, s := range all {
		if s.Use != wanted[s.ID] {
			t.Errorf("%s: %s, want %s", s.ID, s.Use, wanted[s.ID])
		}
	}

	st, err := store.OpenSQLite(t.Context(), moved)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	m := &Manager{store: st, instance: st.Instance(), opts: Options{Backends: []sandbox.Backend{b}}, log: slog.New(slog.DiscardHandler)}
	var c Collected
	if err := m.collectForeign(t.Context(), &c); err != nil || !slices.Equal(b.ended, strays) || c.Strays != len(strays) {
		t.Errorf("ended %q and counted %d, want %q; %v", b.ended, c.Strays, strays, err)
	}
}

func TestTheDirectoryOfAStoreIsAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(filepath.Dir(dir))
	st, err := store.OpenSQLite(t.Context(), filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if st.Dir() != dir {
		t.Errorf("%s, want %s", st.Dir(), dir)
	}
}
