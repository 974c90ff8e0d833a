package session

import (
	"context"
	"math"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// runningOperations returns the operations that run in a sandbox, without survivors.
func (s *Session) runningOperations(sb *sandbox.Sandbox) ([]sandbox.Operation, error) {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.m.opts.pingWait)
	defer cancel()
	ops, err := sb.Operations(ctx)
	return slices.DeleteFunc(ops, func(o sandbox.Operation) bool {
		return !o.Running || o.Kind == v1.OperationProcess
	}), err
}

// trackFound tracks operations that were found running in a sandbox.
//
// Preconditions: s.mu is held.
func (s *Session) trackFound(sb *sandbox.Sandbox, running []sandbox.Operation) {
	for _, o := range running {
		s.track(sb, o.ID, origin{detail: o.Command, found: true})
	}
}

// queryOperations queries the running operations of an unverified sandbox. New calls wait meanwhile, so that the
// operation of a call is not mistaken for a background command. If calls are in progress, queryOperations does nothing,
// and the next health check tries again.
//
// Preconditions: the turn is held.
func (s *Session) queryOperations(sb *sandbox.Sandbox) {
	s.mu.Lock()
	if !s.attachment.isUnverified() || s.calls > 0 {
		s.mu.Unlock()
		return
	}
	s.attachment.reserve()
	s.mu.Unlock()
	running, err := s.runningOperations(sb)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trackFound(sb, running)
	s.attachment.answered(err)
	s.attachment.release()
}

// track follows a background command, which counts as use until it ends.
//
// Preconditions: s.mu is held.
func (s *Session) track(sb *sandbox.Sandbox, id string, from origin) {
	if !s.attachment.has(sb) || s.background[id] == sb {
		return
	}
	if s.background == nil {
		s.background = map[string]*sandbox.Sandbox{}
	}
	if s.m.begin(func() { s.follow(sb, id, from) }) {
		s.background[id] = sb
	}
}

// farEnd is an offset after all output: Follow from there only waits for the verdict.
const farEnd = math.MaxInt64

// follow waits for the end of a background command. It reads no output.
func (s *Session) follow(sb *sandbox.Sandbox, id string, from origin) {
	v, err := sb.Follow(s.m.ctx, id, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd})
	err = s.explain(sb, err) // also checks the connection
	s.mu.Lock()
	if s.background[id] == sb {
		delete(s.background, id)
	}
	ended := err == nil && v != nil
	// An operation that is not found was removed by Forget. After any other error it may still run.
	if !ended && s.attachment.has(sb) && v1.CodeOf(err) != v1.CodeNotFound {
		s.attachment.markUnverified()
	}
	if ended {
		s.rec.Used, s.dirty = time.Now(), true
		s.rec.Output += outputBytes(v)
	}
	s.mu.Unlock()
	if ended {
		s.recordBackground(context.WithoutCancel(s.m.ctx), from, v)
	}
}
