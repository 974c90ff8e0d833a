package rlm

import (
	"context"
	"maps"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
)

// The labels that store the gate's mode and the role with a run, so that a resumed run has the same.
const (
	gateLabel = "recluse.gate"
	roleLabel = "recluse.role"
)

// labelGate adds the gate's mode and the role of the question to its labels.
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

// judge requests the gate's decision about code of a model. If the code may not run, it returns the end of the cell. An
// error means that there is no decision.
func (n *node) judge(ctx context.Context, req gate.Request) (*v1.CellEnded, error) {
	if m, ok := n.sandbox.(Judging); ok && m.Judges() {
		return nil, nil // the session has its own gate with its own mode; do not judge twice
	}
	o, mode := n.run.engine.o, gate.Mode(n.run.q.Labels[gateLabel])
	req.Tenant, req.Session, req.Role = o.Tenant, n.run.id, n.run.q.Labels[roleLabel]
	req.Rules, req.Graph = mode, mode
	d, err := gate.Enforce(ctx, o.Gate, req)
	if d.Action != "" && (d.Action != v1.GateAllow || d.ApprovedBy != "") {
		n.run.emit(n, n.turn, v1.KindGate, v1.Judged{
			Action:     d.Action,
			Reason:     d.Reason,
			Approval:   d.Approval,
			ApprovedBy: d.ApprovedBy,
			Escalated:  d.Escalated,
		})
	}
	if v1.CodeOf(err) != v1.CodeGateRefused {
		return nil, err
	}
	end := notRun(d.Reason)
	n.run.emit(n, n.turn, v1.KindCellEnded, end)
	return end, nil
}
