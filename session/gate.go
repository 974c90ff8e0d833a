package session

import (
	"context"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// MetaGate is the key of the gate's warning in a verdict's metadata.
const MetaGate = "recluse.gate"

// forgetter is implemented by a gate that counts attempts for each session.
type forgetter interface {
	// Forget resets the attempts of a session.
	Forget(tenant, session string)
}

// judged is the gate's decision about code.
type judged struct {
	action  string // for the audit log; empty: the gate did not judge the code
	warning string
}

// judge has the gate judge code that is about to run. It returns an error if the gate denies or cannot judge the code,
// and the code must then not run.
func (s *Session) judge(ctx context.Context, req gate.Request) (judged, error) {
	g := s.m.opts.Gate
	s.mu.Lock()
	mode, role := gate.EffectiveMode(g, gate.Mode(s.rec.Gate)), s.rec.Role
	s.mu.Unlock()
	if g == nil || mode == gate.ModeOff {
		return judged{}, nil
	}
	req.Tenant, req.Session, req.Role, req.Rules, req.Graph = s.key.Tenant, s.key.Name, role, mode, mode
	d, err := gate.Enforce(ctx, g, req)
	if err != nil && d.Action == "" {
		return judged{action: "error"}, err
	}
	j := judged{action: string(d.Action)}
	if d.Action == v1.GateWarn {
		j.warning = d.Reason
	}
	if d.Action != v1.GateAllow || d.ApprovedBy != "" {
		s.mu.Lock()
		s.emit(Event{Kind: "gate", Reason: d.Reason, Attrs: attrs(d)}, true)
		s.mu.Unlock()
	}
	return j, err
}

// attrs returns the attributes of the event for a decision.
func attrs(d gate.Decision) map[string]string {
	out := map[string]string{"action": string(d.Action)}
	var rules []string
	for _, f := range d.Findings {
		if f.Severity != v1.GateAllow && !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	if d.Escalated {
		out["escalated"] = "true"
	}
	for name, value := range map[string]string{
		"rules":       strings.Join(rules, ","),
		"approval":    d.Approval,
		"approved_by": d.ApprovedBy,
		"refused_by":  d.RefusedBy,
	} {
		if value != "" {
			out[name] = value
		}
	}
	return out
}

// judgeCommand has the gate judge a command.
func (s *Session) judgeCommand(ctx context.Context, c sandbox.Command) (judged, error) {
	s.mu.Lock()
	spec := s.rec.Spec
	s.mu.Unlock()
	return s.judge(ctx, gate.CommandRequest(c, spec))
}

// addWarning adds the gate's warning to a verdict.
func (j judged) addWarning(v *sandbox.Verdict) {
	if v == nil || j.warning == "" {
		return
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	v.Metadata[MetaGate] = j.warning
}
