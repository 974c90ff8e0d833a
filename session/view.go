package session

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// sandboxView is what callers see of a hibernated sandbox, recorded when it was hibernated. It is immutable.
type sandboxView struct {
	Operations []sandbox.Operation `json:"operations,omitempty"`
	Contexts   []sandbox.Context   `json:"contexts,omitempty"`
	Ports      []sandbox.Port      `json:"ports,omitempty"`
	Guest      *sandbox.Guest      `json:"guest"`
	Shortened  bool                `json:"shortened,omitempty"` // older ended operations are left out
}

// viewSandbox returns the view of a sandbox that is about to be hibernated. It returns nil if the sandbox does not
// answer; a later query then wakes the session.
func viewSandbox(ctx context.Context, sb *sandbox.Sandbox) *sandboxView {
	ops, err1 := sb.Operations(ctx)
	contexts, err2 := sb.Contexts(ctx)
	guest, err3 := sb.Guest(ctx)
	ports, _ := sb.Ports(ctx) // an older guest does not know them
	if errors.Join(err1, err2, err3) != nil {
		return nil
	}
	all := len(ops)
	ops = recentOperations(ops)
	return &sandboxView{
		Operations: ops,
		Contexts:   contexts,
		Ports:      ports[:min(len(ports), viewPorts)],
		Guest:      guest,
		Shortened:  len(ops) < all,
	}
}

// endedKept is how many ended operations a view keeps. The number is small, because a hibernated session should use
// hardly any memory.
const endedKept = 8

// recentOperations returns the running operations and the last endedKept ended operations.
func recentOperations(ops []sandbox.Operation) []sandbox.Operation {
	ended := 0
	for _, o := range ops {
		if !o.Running {
			ended++
		}
	}
	return slices.DeleteFunc(ops, func(o sandbox.Operation) bool {
		if o.Running {
			return false
		}
		ended--
		return ended >= endedKept
	})
}

// hibernatedView returns the view of a hibernated session. It returns nil if the session is not hibernated, is past
// its expiry, or has no view.
func (s *Session) hibernatedView() *sandboxView {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State != v1.StateHibernated || s.refusal(time.Now()) != nil {
		return nil
	}
	return s.rec.View
}
