package session

import (
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

func TestWhatAnEarlierManagerMadeForASessionThatHasAnotherGoes(t *testing.T) {
	k := newBench(t, quick())
	py(t, k.open("work"), "x = 41")
	k.restart()
	s := k.get("work")
	id := s.Info().Sandbox
	// The sandbox gets these labels when it is complete, because a collection may run at any moment.
	sb, err := sandbox.Open(t.Context(), k.b, sandbox.Spec{Labels: map[string]string{labelInstance: "another"}, Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	labels := map[string]string{labelInstance: k.m.instance, labelMaker: "earlier", labelSessionID: s.id, labelSession: s.key.String()}
	if err := k.b.(backend.Labeler).Label(t.Context(), sb.ID(), labels); err != nil {
		t.Fatal(err)
	}
	await(t, "only the session's own is left", func() bool {
		_, err := k.m.GC(t.Context())
		return err == nil && k.sandboxes() == 1
	})
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	want(t, "sandbox", s.Info().Sandbox, id)
}

func TestWhoseASandboxIs(t *testing.T) {
	m := &Manager{maker: "this"}
	for _, c := range []struct {
		name    string
		maker   string
		record  *record // of the session whose id is in its labels; nil: there is no such session
		unsure  bool
		busy    bool
		pooled  bool
		dead    bool
		belongs bool
	}{
		{name: "in the pool", maker: "this", pooled: true, belongs: true},
		{name: "dead, of the pool", maker: "this", pooled: true, dead: true},
		{name: "in a pool of before", maker: "earlier", pooled: true},
		{name: "of a session that has ended", maker: "this"},
		{name: "the session's own", maker: "earlier", record: &record{State: v1.StateReady, Sandbox: "it"}, belongs: true},
		{name: "another of before", maker: "earlier", record: &record{State: v1.StateReady, Sandbox: "another"}},
		{name: "another of before while the session's changes", maker: "earlier", record: &record{State: v1.StateReady, Sandbox: "another"}, busy: true, belongs: true},
		{name: "another of before while nothing is known", maker: "earlier", record: &record{State: v1.StateReady, Sandbox: "another"}, unsure: true, belongs: true},
		{name: "another of ours", maker: "this", record: &record{State: v1.StateReady, Sandbox: "another"}, belongs: true},
		{name: "of one that sleeps", maker: "earlier", record: &record{State: v1.StateHibernated}, belongs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			labels := map[string]string{labelMaker: c.maker}
			if !c.pooled {
				labels[labelSessionID] = "n1"
			}
			var s *Session
			if c.record != nil {
				s = m.newSession(*c.record)
				if c.unsure {
					s.attachment.markUnknown()
				}
				if c.busy {
					s.turn <- struct{}{}
				}
			}
			if m.belongs(sandbox.Info{ID: "it", Labels: labels, Running: !c.dead}, s) != c.belongs {
				t.Errorf("belongs: %t", !c.belongs)
			}
		})
	}
}
