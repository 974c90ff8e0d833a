package runs

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/session"
)

// gate returns the gate for runs in sandboxes of their own. It records every decision in the audit log, as a session
// does for its code. The entry has the run as session and as actor, because the caller that started the run may have
// disconnected.
func (k *Keeper) gate() gate.Gate {
	if k.o.Note == nil {
		return k.o.Gate
	}
	return gate.Observe(k.o.Gate, func(ctx context.Context, req gate.Request, d gate.Decision, err error) {
		e := session.Entry{
			Tenant:  req.Tenant,
			Session: req.Session,
			Action:  "judge",
			Detail:  req.Text(),
			Gate:    string(d.Action),
		}
		switch {
		case err != nil:
			e.Gate, e.Error = "error", string(v1.CodeOf(err))
		case !d.Action.Runs():
			e.Error = string(v1.CodeGateRefused)
		}
		k.o.Note(session.WithActor(ctx, session.Actor{Name: "run " + req.Session, Tenant: req.Tenant}), e)
	})
}
