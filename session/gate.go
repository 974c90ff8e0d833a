package session

import (
	"context"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

// MetaGate is the key of a verdict's metadata under which the gate's warning stands.
const MetaGate = "recluse.gate"

// judged is what the gate has said about a piece of code.
type judged struct {
	action  string // for the audit log; empty: it was not asked
	warning string
}

// judge asks the gate about code that is about to run. What it refuses, or cannot judge, does not run.
func (s *Session) judge(ctx context.Context, req gate.Request) (judged, error) {
	g := s.m.opts.Gate
	mode := gate.Mode(s.gateMode())
	if g == nil || mode == gate.ModeOff {
		return judged{}, nil
	}
	req.Tenant, req.Session, req.Rules, req.Graph = s.key.Tenant, s.key.Name, mode, mode
	d, err := g.Judge(ctx, req)
	if err != nil {
		return judged{action: "error"}, err
	}
	j := judged{action: string(d.Action)}
	if d.Action == gate.Allow {
		return j, nil
	}
	s.mu.Lock()
	s.emit(Event{Kind: "gate", Reason: d.Reason, Attrs: map[string]string{"action": j.action}}, true)
	s.mu.Unlock()
	if !d.Action.Runs() {
		return j, &sandbox.Error{Code: CodeRefused, Op: "judge code", Message: d.Reason, Remedy: "change the code, or open the session with another gate"}
	}
	j.warning = d.Reason
	return j, nil
}

func (s *Session) gateMode() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Gate
}

// judgeCommand asks about a command.
func (s *Session) judgeCommand(ctx context.Context, c sandbox.Command) (judged, error) {
	if c.Shell != "" {
		return s.judge(ctx, gate.Request{Language: gate.Bash, Code: c.Shell})
	}
	return s.judge(ctx, gate.Request{Language: gate.Command, Args: c.Args})
}

// warn puts the gate's warning into a verdict.
func (j judged) warn(v *sandbox.Verdict) {
	if v == nil || j.warning == "" {
		return
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	v.Metadata[MetaGate] = j.warning
}
