package gate

import (
	"context"

	"github.com/recluse-dev/recluse/sandbox"
)

// Pass asks a gate about code that is about to run, the same way for every door. Code that may not run is the error
// refused_by_gate, whose message is the decision's reason. A nil gate passes everything.
func Pass(ctx context.Context, g Gate, req Request) (Decision, error) {
	if g == nil || ctx.Value(passed{}) != nil {
		return Decision{Action: Allow}, nil
	}
	d, err := g.Judge(ctx, req)
	if err != nil || d.Action.Runs() {
		return d, err
	}
	return d, &sandbox.Error{Code: CodeRefused, Op: "judge code", Message: d.Reason, Remedy: d.remedy()}
}

// passed marks a context.
type passed struct{}

// Passed gives a context under which Pass passes everything: for code that was judged before, or that is our own. It does not leave this
// program, so nobody can send it.
func Passed(ctx context.Context) context.Context { return context.WithValue(ctx, passed{}, true) }

// remedy is what a caller does about a refusal. The reason says what the code's writer does.
func (d *Decision) remedy() string {
	if d.Approval != "" {
		return "recluse gate grant " + d.Approval + ", or refuse; then send the same code again"
	}
	return "change the code as the reason says"
}

// Of makes the request for a command as package sandbox has it. A script for a shell of the spec's own choice is judged as that program's: it need
// not be a shell at all.
func Of(c sandbox.Command, spec sandbox.Spec) Request {
	switch {
	case c.Shell == "":
		return Request{Language: Command, Args: c.Args}
	case spec.Shell != "":
		return Request{Language: Command, Args: []string{spec.Shell, "-c", c.Shell}}
	}
	return Request{Language: Bash, Code: c.Shell}
}
