package session

import (
	"slices"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// attachmentState is how a session relates to its sandbox. The package comment has the table of transitions.
type attachmentState string

const (
	// attDetached: no sandbox is attached. The next call or health check attaches, wakes or restores one, if the
	// state of the session allows that.
	attDetached attachmentState = "detached"
	// attUnknown: detached, and the backend did not answer when the manager started. The sandbox may run, be
	// hibernated, or be gone.
	attUnknown attachmentState = "unknown"
	// attAttached: calls use the sandbox.
	attAttached attachmentState = "attached"
	// attUnverified: attached, but the operations that run in the sandbox are not known. A health check queries them.
	attUnverified attachmentState = "unverified"
	// attReserved: the holder of the turn is about to stop, replace or query the sandbox. Calls wait.
	attReserved attachmentState = "reserved"
	// attReattaching: the connection broke, and a new one is being opened. What runs in the sandbox is not known.
	attReattaching attachmentState = "reattaching"
	// attUnreachable: the sandbox may run, but its backend could not be queried. The next call or health check tries
	// again.
	attUnreachable attachmentState = "unreachable"
	// attRestoring: the sandbox is lost, and the session is being restored from a snapshot. Calls wait.
	attRestoring attachmentState = "restoring"
	// attStalled: restoring, and the backend does not answer. Calls fail with the error of the backend.
	attStalled attachmentState = "stalled"
)

// attachmentTransitions has all transitions of an attachment.
var attachmentTransitions = map[attachmentState][]attachmentState{
	attDetached:    {attUnknown, attAttached, attUnverified, attReserved, attRestoring},
	attUnknown:     {attDetached, attAttached, attUnverified, attReserved, attRestoring},
	attAttached:    {attDetached, attUnverified, attReserved, attReattaching, attUnreachable, attRestoring},
	attUnverified:  {attDetached, attReserved, attReattaching, attUnreachable, attRestoring},
	attReserved:    {attDetached, attUnknown, attAttached, attUnverified, attUnreachable, attRestoring, attStalled},
	attReattaching: {attDetached, attAttached, attUnverified, attUnreachable, attRestoring},
	attUnreachable: {attDetached, attAttached, attUnverified, attReserved, attRestoring},
	attRestoring:   {attDetached, attAttached, attUnverified, attReserved, attStalled},
	attStalled:     {attDetached, attReserved, attRestoring},
}

// to reports whether an attachment may go from s to next.
func (s attachmentState) to(next attachmentState) bool {
	return slices.Contains(attachmentTransitions[s], next)
}

// relation is a state with the data that only this state has. Each transition replaces the whole relation, so that no
// data of an earlier state is left.
type relation struct {
	state   attachmentState
	sandbox *sandbox.Sandbox // attached, unverified, or reserved from one of these; else nil
	since   time.Time        // unreachable: since when
	err     error            // stalled: the error of the backend
	prior   *relation        // reserved: the relation to return to
}

// attachment is the relation of a session to its sandbox. Only its methods change it.
//
// Preconditions of all methods: the session's mu is held.
type attachment struct {
	relation
	// changed is closed and replaced when the relation or the session's state changes.
	changed chan struct{}
	// illegal is called for a transition that is not in the table.
	illegal func(from, to attachmentState)

	movedFrom   string // id of the sandbox that the session left last because it was hibernated or restored
	missedPings int    // pings in a row that the current sandbox did not answer
	unanswered  int    // queries for running operations in a row that failed, although the sandbox answers pings
}

func newAttachment(illegal func(from, to attachmentState)) attachment {
	return attachment{relation: relation{state: attDetached}, changed: make(chan struct{}), illegal: illegal}
}

// set changes the relation, and wakes the callers that wait for a change.
func (a *attachment) set(next relation) {
	if !a.state.to(next.state) {
		a.illegal(a.state, next.state)
	}
	a.relation = next
	a.wake()
}

// wake wakes the callers that wait for a change, so that they check again.
func (a *attachment) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// base returns the relation, or the one before the reservation if the sandbox is reserved.
func (a *attachment) base() *relation {
	if a.state == attReserved {
		return a.prior
	}
	return &a.relation
}

// has reports whether sb is the attached sandbox, reserved or not.
func (a *attachment) has(sb *sandbox.Sandbox) bool { return sb != nil && a.sandbox == sb }

// usable returns the sandbox if calls may use it, or nil.
func (a *attachment) usable() *sandbox.Sandbox {
	if a.state == attReserved || a.sandbox == nil || !alive(a.sandbox) {
		return nil
	}
	return a.sandbox
}

// changing reports whether the relation will change without an action of the caller: the session is being restored, or
// the sandbox is gone and its watcher is about to notice.
func (a *attachment) changing() bool {
	return a.isRestoring() || a.state == attAttached || a.state == attUnverified
}

// isRestoring reports whether the session is being restored.
func (a *attachment) isRestoring() bool {
	s := a.base().state
	return s == attRestoring || s == attStalled
}

// isUnverified reports whether the operations of the attached sandbox are not known.
func (a *attachment) isUnverified() bool { return a.base().state == attUnverified }

// isUnknown reports whether the backend has not answered since the manager started, so that the sandbox may run, be
// hibernated, or be gone.
func (a *attachment) isUnknown() bool { return a.base().state == attUnknown }

// mayRun reports whether operations may run that the manager does not know about. It does not stay true for ever: the
// sandbox is attached again, is lost, or has been unreachable for attachGrace.
func (a *attachment) mayRun(managerStarted time.Time) bool {
	switch a.state {
	case attUnverified, attReattaching, attReserved:
		return true
	case attAttached:
		return !alive(a.sandbox) // its watcher is about to find the cause
	case attUnreachable:
		return time.Since(a.since) < attachGrace || time.Since(managerStarted) < attachGrace
	case attDetached, attUnknown, attRestoring, attStalled:
	}
	return time.Since(managerStarted) < attachGrace
}

// adopt attaches a sandbox. If verified is set, its operations are known.
func (a *attachment) adopt(sb *sandbox.Sandbox, verified bool) {
	state := attAttached
	if !verified {
		state = attUnverified
	}
	a.missedPings = 0
	a.set(relation{state: state, sandbox: sb})
}

// detach detaches the sandbox and returns it, or nil if none was attached.
func (a *attachment) detach() *sandbox.Sandbox {
	sb := a.sandbox
	if a.state != attDetached {
		a.set(relation{state: attDetached})
	}
	return sb
}

// reserve reserves the sandbox: calls wait until the reservation ends.
func (a *attachment) reserve() {
	prior := a.relation
	a.set(relation{state: attReserved, sandbox: prior.sandbox, prior: &prior})
}

// release ends a reservation and returns to the previous relation. It does nothing without a reservation.
func (a *attachment) release() {
	if a.state == attReserved {
		a.set(*a.prior)
	}
}

// markUnverified records that operations may run in the attached sandbox that the manager does not follow.
func (a *attachment) markUnverified() {
	switch {
	case a.state == attAttached:
		a.set(relation{state: attUnverified, sandbox: a.sandbox})
	case a.state == attReserved && a.prior.state == attAttached:
		a.prior.state = attUnverified
	}
}

// answered records whether a reserved sandbox answered the query for its running operations. After busyMisses failures
// in a row, a sandbox that answers pings counts as verified: otherwise it would never be idle and would live for ever.
func (a *attachment) answered(err error) {
	if err == nil {
		a.unanswered = 0
	} else if a.unanswered++; a.unanswered < busyMisses {
		return
	}
	if a.state == attReserved && a.prior.state == attUnverified {
		a.prior.state = attAttached
	}
}

// markUnknown records that the backend did not answer when the manager started.
func (a *attachment) markUnknown() { a.set(relation{state: attUnknown}) }

// markKnown records that the backend has answered since.
func (a *attachment) markKnown() {
	switch {
	case a.state == attUnknown:
		a.set(relation{state: attDetached})
	case a.state == attReserved && a.prior.state == attUnknown:
		a.prior.state = attDetached
	}
}

// pinged records the result of a ping, and returns how many pings in a row the sandbox has missed.
func (a *attachment) pinged(err error) int {
	a.missedPings++
	if err == nil {
		a.missedPings = 0
	}
	return a.missedPings
}

// reattach drops a broken connection.
func (a *attachment) reattach() { a.set(relation{state: attReattaching}) }

// markUnreachable drops the connection to a sandbox that may still run.
func (a *attachment) markUnreachable() {
	a.set(relation{state: attUnreachable, since: time.Now()})
}

// restore drops a lost sandbox; a snapshot is being restored.
func (a *attachment) restore() { a.set(relation{state: attRestoring}) }

// stall records that the backend does not answer while the session is being restored.
func (a *attachment) stall(err error) { a.set(relation{state: attStalled, err: err}) }

// resume records that the backend answers again.
func (a *attachment) resume() { a.set(relation{state: attRestoring}) }

// stalledBy returns the error of the backend that keeps the session from being restored, or nil.
func (a *attachment) stalledBy() error { return a.base().err }
