package session

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// OnHostCall sets the handler of recluse.call in the session. It stays set when the session is hibernated or restored.
func (s *Session) OnHostCall(f sandbox.HostFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
	if sb := s.attachment.sandbox; sb != nil {
		sb.OnHostCall(f)
	}
}

// Operations lists the operations that run or have ended recently. For a hibernated session, it lists them as of its
// hibernation. It does not count as use.
func (s *Session) Operations(ctx context.Context) ([]sandbox.Operation, error) {
	recorded := func(v *sandboxView) []sandbox.Operation { return slices.Clone(v.Operations) }
	return look(ctx, s, recorded, (*sandbox.Sandbox).Operations)
}

// Operation returns one operation. It wakes a hibernated session if the operation is not among those recorded at its
// hibernation.
func (s *Session) Operation(ctx context.Context, id string) (sandbox.Operation, error) {
	is := func(o sandbox.Operation) bool { return o.ID == id }
	ops, err := s.Operations(ctx)
	if view := s.hibernatedView(); err == nil && view != nil && view.Shortened && !slices.ContainsFunc(ops, is) {
		ops, err = ask(ctx, s, (*sandbox.Sandbox).Operations)
	}
	if err != nil {
		return sandbox.Operation{}, err
	}
	if i := slices.IndexFunc(ops, is); i >= 0 {
		return ops[i], nil
	}
	return sandbox.Operation{}, &v1.Error{
		Code:    v1.CodeNotFound,
		Op:      "find operation",
		Message: fmt.Sprintf("operation %q not found", id),
	}
}

// Contexts lists the live interpreters. It does not count as use.
func (s *Session) Contexts(ctx context.Context) ([]sandbox.Context, error) {
	recorded := func(v *sandboxView) []sandbox.Context { return slices.Clone(v.Contexts) }
	return look(ctx, s, recorded, (*sandbox.Sandbox).Contexts)
}

// Guest describes the inside of the sandbox. It does not count as use.
func (s *Session) Guest(ctx context.Context) (*sandbox.Guest, error) {
	recorded := func(v *sandboxView) *sandbox.Guest { return new(*v.Guest) }
	return look(ctx, s, recorded, (*sandbox.Sandbox).Guest)
}

// look queries the sandbox without counting as use. It does not wake a hibernated session: it returns what recorded
// returns for the view of the session, which is still accurate.
func look[T any](
	ctx context.Context, s *Session, recorded func(*sandboxView) T,
	query func(*sandbox.Sandbox, context.Context) (T, error),
) (out T, err error) {
	if view := s.hibernatedView(); view != nil {
		return recorded(view), nil
	}
	return ask(ctx, s, query)
}

// ask queries the sandbox without counting as use. It wakes a hibernated session.
func ask[T any](
	ctx context.Context, s *Session, query func(*sandbox.Sandbox, context.Context) (T, error),
) (out T, err error) {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return out, err
	}
	defer done()
	out, err = query(sb, ctx)
	return out, s.explain(sb, err)
}

// Signal sends a signal to an operation's main process and its process group.
func (s *Session) Signal(ctx context.Context, id string, sig syscall.Signal, opts sandbox.SignalOptions) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Signal(ctx, id, sig, opts) })
}

// Cancel kills an operation and everything it started.
func (s *Session) Cancel(ctx context.Context, id string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Cancel(ctx, id) })
}

// Input sends input to a running operation whose stdin was kept open, or that has a terminal.
func (s *Session) Input(ctx context.Context, id string, in sandbox.Input) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Input(ctx, id, in) })
}

// Forget removes an ended operation and its output.
func (s *Session) Forget(ctx context.Context, id string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.Forget(ctx, id) })
}

// CloseContext ends an interpreter and everything its cells left running.
func (s *Session) CloseContext(ctx context.Context, name string) error {
	return s.act(ctx, func(sb *sandbox.Sandbox) error { return sb.CloseContext(ctx, name) })
}

// act makes a short call that counts as use. The limit of commands does not apply, because the call may end one.
func (s *Session) act(ctx context.Context, f func(*sandbox.Sandbox) error) error {
	sb, done, err := s.enter(ctx, true)
	if err != nil {
		return err
	}
	defer done()
	return s.explain(sb, f(sb))
}

// Follow returns an operation's output from absolute offsets on, and its verdict once it has ended. It does not count
// as use: if the session is hibernated or restored meanwhile, the error is [v1.CodeSessionMoved].
func (s *Session) Follow(ctx context.Context, id string, o sandbox.FollowOptions) (*sandbox.Verdict, error) {
	sb, done, err := s.enter(ctx, false)
	if err != nil {
		return nil, err
	}
	done() // a follower must not keep a session from hibernating
	v, err := sb.Follow(ctx, id, o)
	return v, s.explain(sb, err)
}

// Share makes a regular file of the host readable in the sandbox, and returns its path there. The file stays shared
// when the session is hibernated, restored or forked.
func (s *Session) Share(ctx context.Context, file, name string) (string, error) {
	sb, done, err := s.enter(ctx, true)
	if err != nil {
		return "", err
	}
	defer done()
	inside, err := sb.Share(ctx, file, name)
	s.audit(ctx, Entry{Action: "share", Detail: file, Error: errorCode(err)})
	return inside, s.explain(sb, err)
}
