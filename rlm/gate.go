package rlm

import (
	"context"
	"maps"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
)

// The labels under which a run remembers how it is judged, for whoever goes on with it.
const (
	gateLabel = "recluse.gate"
	roleLabel = "recluse.role"
)

// labelGate has a question's gate and role kept with its labels.
func (q *Question) labelGate() error {
	if q.Gate == "" && q.Role == "" {
		return nil
	}
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	if q.Gate != "" {
		if _, err := gate.ParseMode(string(q.Gate)); err != nil {
			return err
		}
		q.Labels[gateLabel] = string(q.Gate)
	}
	if q.Role != "" {
		q.Labels[roleLabel] = q.Role
	}
	return nil
}

// judge asks the gate about what a model wrote. What may not run has ended with that; an error means that there was no judgement.
func (n *node) judge(ctx context.Context, req gate.Request) (*v1.CellEnded, error) {
	if m, ok := n.machine.(Judging); ok && m.Judges() {
		return nil, nil // once is enough, and it knows its own mode
	}
	o, mode := n.run.engine.o, gate.Mode(n.run.q.Labels[gateLabel])
	req.Tenant, req.Session, req.Role, req.Rules, req.Graph = o.Tenant, n.run.id, n.run.q.Labels[roleLabel], mode, mode
	d, err := gate.Enforce(ctx, o.Gate, req)
	if d.Action != "" && (d.Action != v1.GateAllow || d.ApprovedBy != "") {
		n.run.emit(n, n.turn, v1.KindGate, v1.Judged{Action: d.Action, Reason: d.Reason, Approval: d.Approval, ApprovedBy: d.ApprovedBy, Escalated: d.Escalated})
	}
	if v1.CodeOf(err) != v1.CodeGateRefused {
		return nil, err
	}
	end := notRun(d.Reason)
	n.run.emit(n, n.turn, v1.KindCellEnded, end)
	return end, nil
}
