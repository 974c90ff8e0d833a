package docker

import (
	"slices"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

func TestASandboxOfAnotherInstanceIsEndedOnlyAfterItsOwner(t *testing.T) {
	b, other := newBackend(t, nil), newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{})
	held := func() bool {
		t.Helper()
		all, err := other.Survey(t.Context())
		i := slices.IndexFunc(all, func(s backend.Surveyed) bool { return s.ID == sb.ID() })
		if err != nil || i < 0 {
			t.Fatalf("the sandbox is not listed: %+v, %v", all, err)
		}
		return all[i].Held
	}
	if err := other.EndUnheld(t.Context(), sb.ID()); !held() || v1.CodeOf(err) != v1.CodeBusy {
		t.Errorf("the sandbox of a living owner: %v", err)
	}
	dead := backendkit.Self()
	dead.Start++ // an earlier process with the same PID
	if err := b.notes.Write(sb.ID(), backendkit.Note{Owner: dead}); err != nil {
		t.Fatal(err)
	}
	if held() {
		t.Error("the sandbox of a dead owner is held")
	}
	if err := other.EndUnheld(t.Context(), sb.ID()); err != nil {
		t.Error(err)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}
