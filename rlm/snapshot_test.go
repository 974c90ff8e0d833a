package rlm

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/sandbox"
)

// shelf is a fake sandbox that counts its snapshots.
type shelf struct {
	Sandbox
	Sandboxes
	taken   int
	deleted []string
}

func (s *shelf) Snapshot(context.Context, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	s.taken++
	return &sandbox.Snapshot{ID: fmt.Sprintf("s%d", s.taken)}, nil
}

func (s *shelf) Capabilities(context.Context) sandbox.Capabilities {
	return sandbox.Capabilities{Snapshots: sandbox.SnapshotsMemory}
}

func (s *shelf) DeleteSnapshot(_ context.Context, id string) error {
	s.deleted = append(s.deleted, id)
	return nil
}

func TestSnapshotsAreTakenOnceInThirtySecondsOfWork(t *testing.T) {
	log, err := trajectory.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := &shelf{}
	run := &Run{engine: &Engine{o: Options{SnapshotEvery: DefaultSnapshots, Sandboxes: s, Logger: slog.New(slog.DiscardHandler)}}, log: log}
	n := &node{run: run, sandbox: s, modelTime: time.Hour}
	// The cells of each turn run for ten seconds, according to a clock that the test sets.
	var at []string
	for turn := range 10 {
		n.cellTime += 10 * time.Second
		before := s.taken
		n.startSnapshot(t.Context())()
		if s.taken > before {
			at = append(at, fmt.Sprint(turn+1))
		}
	}
	same(t, "turns behind which one was taken", strings.Join(at, " "), "3 6 9")
	same(t, "the one that is kept", n.snapshot, "s3")
	same(t, "those that are not", strings.Join(s.deleted, " "), "s1 s2")
	child := &node{run: run, sandbox: s, depth: 1, modelTime: time.Hour, cellTime: time.Hour}
	child.startSnapshot(t.Context())()
	same(t, "taken of a child, too", s.taken, 3)
}

func TestASnapshotDoesNotHoldUpAFasterModel(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name                       string
		worked, every, took, model time.Duration
		due                        bool
	}{
		{"too early", 29 * s, 30 * s, 0, s, false},
		{"the first", 30 * s, 30 * s, 0, 0, true},
		{"a slow model", 30 * s, 30 * s, s, 2 * s, true},
		{"a fast model", 119 * s, 30 * s, s, s / 2, false},
		{"a fast model, and much would be lost", 120 * s, 30 * s, s, s / 2, true},
		{"never", time.Hour, -1, 0, s, false},
	} {
		t.Run(c.name, func(t *testing.T) { same(t, "due", snapshotDue(c.worked, c.every, c.took, c.model), c.due) })
	}
}
