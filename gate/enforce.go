package gate

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/terms"
	"github.com/recluse-dev/recluse/sandbox"
)

// Enforce lets a gate judge code that is about to run. If the code may not run, the error has the code refused_by_gate
// and the decision's reason as its message. A nil gate allows everything.
func Enforce(ctx context.Context, g Gate, req Request) (Decision, error) {
	if g == nil || ctx.Value(bypassKey{}) != nil {
		return Decision{Action: v1.GateAllow}, nil
	}
	d, err := g.Judge(ctx, req)
	if err != nil || d.Action.Runs() {
		return d, err
	}
	remedy := "change the code as described in the reason"
	if d.Approval != "" {
		remedy = v1.GrantCommand + d.Approval + ", or refuse; then send the same code again"
	}
	return d, &v1.Error{Code: v1.CodeGateRefused, Op: "judge code", Message: d.Reason, Remedy: remedy}
}

type bypassKey struct{}

// Bypass returns a context in which Enforce allows everything: for code that was judged before, and for internal code.
// A context stays inside this program, so no caller can send the bypass over the network.
func Bypass(ctx context.Context) context.Context { return context.WithValue(ctx, bypassKey{}, true) }

// CommandRequest returns the request for a command of package sandbox. If the spec names its own shell, the script is
// judged as an argument of that program, because the program need not be a shell.
func CommandRequest(c sandbox.Command, spec sandbox.Spec) Request {
	switch {
	case c.Python != "":
		return Request{Language: Python, Code: c.Python}
	case c.Shell == "":
		return Request{Language: Command, Args: c.Args}
	case spec.Shell != "":
		return Request{Language: Command, Args: []string{spec.Shell, "-c", c.Shell}}
	}
	return Request{Language: Bash, Code: c.Shell}
}

// Observer is called with each judgement: the decision, or the error if there is no decision. It must not block.
type Observer func(ctx context.Context, req Request, d Decision, err error)

// Observe returns a gate that reports each judgement of g to an observer, for an audit log. A nil gate stays nil.
func Observe(g Gate, observer Observer) Gate {
	if g == nil {
		return nil
	}
	return &observed{g, observer}
}

type observed struct {
	gate     Gate
	observer Observer
}

// Judge implements Gate.
func (o *observed) Judge(ctx context.Context, req Request) (Decision, error) {
	d, err := o.gate.Judge(ctx, req)
	o.observer(ctx, req, d, err)
	return d, err
}

// MinMode returns the minimum of the observed gate.
func (o *observed) MinMode() Mode { return EffectiveMode(o.gate, ModeOff) }

// CheckRole calls CheckRole of the observed gate.
func (o *observed) CheckRole(role string) error { return CheckRole(o.gate, role) }

// Thesaurus returns the thesaurus of the observed gate.
func (o *observed) Thesaurus(role string) *terms.Thesaurus { return ThesaurusOf(o.gate, role) }

// Forget calls Forget of the observed gate, if it has that method.
func (o *observed) Forget(tenant, session string) {
	if f, ok := o.gate.(interface{ Forget(tenant, session string) }); ok {
		f.Forget(tenant, session)
	}
}
