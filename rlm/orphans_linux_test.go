package rlm

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// yard is a backend whose sandboxes can only be listed and stopped.
type yard struct {
	sandbox.Backend
	boxes []sandbox.Info
	ended []string
}

// List implements sandbox.Backend.
func (y *yard) List(context.Context) ([]sandbox.Info, error) { return y.boxes, nil }

// Stop implements sandbox.Backend.
func (y *yard) Stop(_ context.Context, id string) error {
	y.ended = append(y.ended, id)
	return nil
}

func TestSandboxesThatNobodyCameBackForAreEnded(t *testing.T) {
	engine := func(runs ...string) *Engine {
		dir := t.TempDir()
		for _, id := range runs {
			if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, id, runFile), []byte(`{"query":"q"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, id, trajectory.FileName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e, err := New(Options{Models: func(int, string) (llm.Model, error) { return nil, NoModel() }, Sandboxes: FromBackend(nil), Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ours, other := engine("left", "young", "busy", "waiting"), engine("other")
	unlock, err := lockRun(filepath.Join(ours.dir, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	old, now := time.Now().Add(-2*orphanTTL), time.Now()
	y := &yard{}
	for _, b := range []struct {
		run string
		at  time.Time
	}{{"left", old}, {"young", now}, {"busy", old}, {"waiting", old}, {"other", old}, {"unknown", old}, {"", old}} {
		y.boxes = append(y.boxes, sandbox.Info{ID: "box of " + b.run, Created: b.at, Labels: map[string]string{LabelRun: b.run}})
	}
	Sweep(t.Context(), y, func(run string) bool { return run == "waiting" }, ours, other)
	if want := []string{"box of left", "box of other"}; !slices.Equal(y.ended, want) {
		t.Errorf("stopped %q", y.ended)
	}
}
