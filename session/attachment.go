package session

import (
	"slices"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// attachmentState is how a session relates to its sandbox. The package comment has the table of transitions.
type attachmentState string

const (
	// attDetached: no sandbox is attached. The next call or health check attaches, wakes or restores one, if the session's
	// own state allows that.
	attDetached attachmentState = "detached"
	// attUnknown is detached, and the backend did not answer when the manager started: the sandbox may run, be
	// hibernated, or be gone.
	attUnknown attachmentState = "unknown"
	// attAttached: calls use the sandbox.
	attAttached attachmentState = "attached"
	// attUnverified is attached, but which operations run in the sandbox is not known. A health check asks.
	attUnverified attachmentState = "unverified"
	// attReserved: the holder of the turn is about to stop, replace or query the sandbox. Calls wait until it has done so.
	attReserved attachmentState = "reserved"
	// attReattaching: the connection broke, and a new one is being made. What runs in the sandbox is not known.
	attReattaching attachmentState = "reattaching"
	// attUnreachable: the sandbox may run, but its backend could not be asked. The next call or health check tries again.
	attUnreachable attachmentState = "unreachable"
	// attRestoring: the sandbox is lost, and the session is being restored from a snapshot. Calls wait.
	attRestoring attachmentState = "restoring"
	// attStalled is restoring, and the backend does not answer. Calls fail with its error.
	attStalled attachmentState = "stalled"
)

// attachmentTransitions is the whole table.
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

// relation is a state and what belongs to it alone. Each transition replaces all of it, so that nothing of an earlier state
// is left.
type relation struct {
	state   attachmentState
	sandbox *sandbox.Sandbox // attached, unverified, or reserved from one of these; else nil
	since   time.Time        // unreachable: since when
	err     error            // stalled: the error of the backend
	prior   *relation        // reserved: what to return to
}

// attachment is the relation of a session to its sandbox. It is changed by its methods alone, which all need the session's
// mu.
type attachment struct {
	relation
	// changed is closed and replaced when the relation or the session's state changes.
	changed chan struct{}
	// illegal is called with a transition that is not in the table.
	illegal func(from, to attachmentState)

	movedFrom   string // id of the sandbox that the session left by itself last, to hibernate or to be restored
	missedPings int    // that the sandbox of now did not answer, in a row
	unanswered  int    // questions for running operations that a sandbox did not answer, in a row, although it answers pings
}

func newAttachment(illegal func(from, to attachmentState)) attachment {
	return attachment{relation: relation{state: attDetached}, changed: make(chan struct{}), illegal: illegal}
}

// set changes the relation, and wakes callers that wait for that.
func (a *attachment) set(next relation) {
	if !a.state.to(next.state) {
		a.illegal(a.state, next.state)
	}
	a.relation = next
	a.wake()
}

// wake lets callers look again that wait for a change.
func (a *attachment) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// base returns the relation without a reservation.
func (a *attachment) base() *relation {
	if a.state == attReserved {
		return a.prior
	}
	return &a.relation
}

// has reports whether a sandbox is the attached one, reserved or not.
func (a *attachment) has(sb *sandbox.Sandbox) bool { return sb != nil && a.sandbox == sb }

// usable returns the sandbox if calls may use it, or nil.
func (a *attachment) usable() *sandbox.Sandbox {
	if a.state == attReserved || a.sandbox == nil || !alive(a.sandbox) {
		return nil
	}
	return a.sandbox
}

// changing reports whether the relation changes without the caller's help: the session is being restored, or the sandbox
// has gone and its watcher is about to notice.
func (a *attachment) changing() bool {
	return a.isRestoring() || a.state == attAttached || a.state == attUnverified
}

// isRestoring reports whether the session is being restored.
func (a *attachment) isRestoring() bool {
	s := a.base().state
	return s == attRestoring || s == attStalled
}

// isUnverified reports whether a sandbox is attached whose operations are not known.
func (a *attachment) isUnverified() bool { return a.base().state == attUnverified }

// isUnknown reports whether it is still not known what became of the sandbox before the manager started.
func (a *attachment) isUnknown() bool { return a.base().state == attUnknown }

// mayRun reports whether something may run that the manager doesn't know about. That ends in any case: the sandbox is
// attached again or lost, or has been unreachable for attachGrace.
func (a *attachment) mayRun(managerStarted time.Time) bool {
	switch a.state {
	case attUnverified, attReattaching, attReserved:
		return true
	case attAttached:
		return !alive(a.sandbox) // its watcher is about to find out why
	case attUnreachable:
		return time.Since(a.since) < attachGrace || time.Since(managerStarted) < attachGrace
	case attDetached, attUnknown, attRestoring, attStalled:
	}
	return time.Since(managerStarted) < attachGrace
}

// adopt attaches a sandbox; verified tells that its operations are known.
func (a *attachment) adopt(sb *sandbox.Sandbox, verified bool) {
	state := attAttached
	if !verified {
		state = attUnverified
	}
	a.missedPings = 0
	a.set(relation{state: state, sandbox: sb})
}

// detach gives the sandbox up and returns it, or nil if there was none.
func (a *attachment) detach() *sandbox.Sandbox {
	sb := a.sandbox
	if a.state != attDetached {
		a.set(relation{state: attDetached})
	}
	return sb
}

// reserve keeps calls from the sandbox.
func (a *attachment) reserve() {
	prior := a.relation
	a.set(relation{state: attReserved, sandbox: prior.sandbox, prior: &prior})
}

// release ends a reservation after which everything is as before. It does nothing if the reservation has ended otherwise.
func (a *attachment) release() {
	if a.state == attReserved {
		a.set(*a.prior)
	}
}

// markUnverified notes that operations may run in the attached sandbox that nobody follows.
func (a *attachment) markUnverified() {
	switch {
	case a.state == attAttached:
		a.set(relation{state: attUnverified, sandbox: a.sandbox})
	case a.state == attReserved && a.prior.state == attAttached:
		a.prior.state = attUnverified
	}
}

// answered takes the answer of a reserved sandbox to the question which operations run in it. A sandbox that answers pings
// and never this question counts as verified in the end: it must not live for ever.
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

// markUnknown notes that the backend could not be asked when the manager started.
func (a *attachment) markUnknown() { a.set(relation{state: attUnknown}) }

// markKnown notes that the backend has told what became of the sandbox.
func (a *attachment) markKnown() {
	switch {
	case a.state == attUnknown:
		a.set(relation{state: attDetached})
	case a.state == attReserved && a.prior.state == attUnknown:
		a.prior.state = attDetached
	}
}

// pinged counts pings that the sandbox did not answer, and returns how many it missed in a row.
func (a *attachment) pinged(err error) int {
	a.missedPings++
	if err == nil {
		a.missedPings = 0
	}
	return a.missedPings
}

// reattach gives up a connection that broke.
func (a *attachment) reattach() { a.set(relation{state: attReattaching}) }

// markUnreachable gives up a sandbox that may live on.
func (a *attachment) markUnreachable() {
	a.set(relation{state: attUnreachable, since: time.Now()})
}

// restore gives up a sandbox that is lost.
func (a *attachment) restore() { a.set(relation{state: attRestoring}) }

// stall notes that the backend doesn't answer, and resume that it does again.
func (a *attachment) stall(err error) { a.set(relation{state: attStalled, err: err}) }

func (a *attachment) resume() { a.set(relation{state: attRestoring}) }

// stalledBy returns why the session cannot be restored now, or nil.
func (a *attachment) stalledBy() error { return a.base().err }
