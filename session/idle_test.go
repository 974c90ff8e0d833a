package session

import (
	"context"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// capable is a backend with the given capabilities.
type capable struct {
	sandbox.Backend
	caps sandbox.Capabilities
}

func (c capable) Name() string                                      { return "capable" }
func (c capable) Capabilities(context.Context) sandbox.Capabilities { return c.caps }

func TestIdleActionFollowsTheBackend(t *testing.T) {
	t.Parallel()
	memory, files := capable{caps: sandbox.Capabilities{Snapshots: sandbox.SnapshotsMemory}}, capable{}
	for name, tt := range map[string]struct {
		wanted v1.IdleAction
		asked  bool
		moves  []sandbox.Backend
		want   v1.IdleAction
		code   v1.Code
	}{
		"hibernate where it can":           {v1.IdleHibernate, false, []sandbox.Backend{memory}, v1.IdleHibernate, ""},
		"hibernate where it cannot":        {v1.IdleHibernate, false, []sandbox.Backend{files}, v1.IdleEnd, ""},
		"and back":                         {v1.IdleHibernate, false, []sandbox.Backend{memory, files, memory}, v1.IdleHibernate, ""},
		"asked for, where it can":          {v1.IdleHibernate, true, []sandbox.Backend{memory}, v1.IdleHibernate, ""},
		"asked for, moved to where it can": {v1.IdleHibernate, true, []sandbox.Backend{memory, memory}, v1.IdleHibernate, ""},
		"asked for, where it cannot":       {v1.IdleHibernate, true, []sandbox.Backend{memory, files}, v1.IdleHibernate, v1.CodeNotSupported},
		"end":                              {v1.IdleEnd, true, []sandbox.Backend{files, memory}, v1.IdleEnd, ""},
		"keep":                             {v1.IdleKeep, false, []sandbox.Backend{files, memory}, v1.IdleKeep, ""},
	} {
		r := record{Policy: Policy{OnIdle: tt.wanted}, IdleRequested: tt.asked}
		var err error
		for _, b := range tt.moves {
			var set func(*record)
			if set, err = r.idleOn(t.Context(), b, ""); err != nil {
				break
			}
			set(&r)
		}
		if r.Policy.OnIdle != tt.want || v1.CodeOf(err) != tt.code {
			t.Errorf("%s: %s, %v", name, r.Policy.OnIdle, err)
		}
	}
}
