package gate

import "context"

// Observed is a gate whose every judgement is heard, for an audit log: the decision, or the error that there was instead of one. heard must not block.
// Without a gate there is nothing to hear.
func Observed(g Gate, heard func(ctx context.Context, req Request, d Decision, err error)) Gate {
	if g == nil {
		return nil
	}
	return &observed{g, heard}
}

type observed struct {
	gate  Gate
	heard func(ctx context.Context, req Request, d Decision, err error)
}

// Judge implements Gate.
func (o *observed) Judge(ctx context.Context, req Request) (Decision, error) {
	d, err := o.gate.Judge(ctx, req)
	o.heard(ctx, req, d, err)
	return d, err
}

// Least is the floor of the gate itself.
func (o *observed) Least() Mode { return AtLeast(o.gate, ModeOff) }

// Forget lets the gate itself forget a session.
func (o *observed) Forget(tenant, session string) {
	if f, ok := o.gate.(interface{ Forget(tenant, session string) }); ok {
		f.Forget(tenant, session)
	}
}
