package session

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// Every transition that a test makes must be in the table.
func init() { panicOnIllegalTransition = true }

func TestTheTableOfAttachmentsInTheDocumentIsTheOneInTheCode(t *testing.T) {
	sameTable(t, "doc.go", attachmentTransitions, comment)
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for s := range attachmentTransitions {
		if n := strings.Count(string(text), "\n//\t"+string(s)+" "); n != 2 {
			t.Errorf("%s has %d lines, want one with its meaning and one with its transitions", s, n)
		}
	}
}

// pathTo has the steps by which an attachment reaches each state.
var pathTo = map[attachmentState]func(*attachment){
	attDetached:    func(*attachment) {},
	attUnknown:     (*attachment).markUnknown,
	attAttached:    func(a *attachment) { a.adopt(&sandbox.Sandbox{}, true) },
	attUnverified:  func(a *attachment) { a.adopt(&sandbox.Sandbox{}, false) },
	attReserved:    func(a *attachment) { a.adopt(&sandbox.Sandbox{}, true); a.reserve() },
	attReattaching: func(a *attachment) { a.adopt(&sandbox.Sandbox{}, true); a.reattach() },
	attUnreachable: func(a *attachment) { a.adopt(&sandbox.Sandbox{}, true); a.markUnreachable() },
	attRestoring:   (*attachment).restore,
	attStalled:     func(a *attachment) { a.restore(); a.stall(errors.New("away")) },
}

// attachmentIn returns an attachment in a state. It records illegal transitions.
func attachmentIn(t *testing.T, s attachmentState) (a *attachment, illegal *[]attachmentState) {
	t.Helper()
	illegal = &[]attachmentState{}
	v := newAttachment(func(_, to attachmentState) { *illegal = append(*illegal, to) })
	pathTo[s](&v)
	if v.state != s || len(*illegal) > 0 {
		t.Fatalf("the path to %s leads to %s; illegal transitions: %v", s, v.state, *illegal)
	}
	return &v, illegal
}

// consistent checks that an attachment has the data that its state needs, and no other data.
func consistent(t *testing.T, what string, r relation) {
	t.Helper()
	base := r
	if r.state == attReserved {
		if r.prior == nil || r.prior.state == attReserved || r.prior.sandbox != r.sandbox {
			t.Errorf("%s: reserved from %+v", what, r.prior)
			return
		}
		base = *r.prior
	} else if r.prior != nil {
		t.Errorf("%s: %s has a state before it", what, r.state)
	}
	if have, want := base.sandbox != nil, base.state == attAttached || base.state == attUnverified; have != want {
		t.Errorf("%s: %s has a sandbox: %t", what, base.state, have)
	}
	if have, want := !base.since.IsZero(), base.state == attUnreachable; have != want {
		t.Errorf("%s: %s has a time: %t", what, base.state, have)
	}
	if have, want := base.err != nil, base.state == attStalled; have != want {
		t.Errorf("%s: %s has an error: %t", what, base.state, have)
	}
}

// TestEveryChangeOfAnAttachmentIsInTheTable makes every change in every state. Each change must lead to a state that
// the table allows, or be reported as illegal.
func TestEveryChangeOfAnAttachmentIsInTheTable(t *testing.T) {
	changes := map[string]func(*attachment){
		"adopt": func(a *attachment) { a.adopt(&sandbox.Sandbox{}, true) }, "adopt unverified": func(a *attachment) { a.adopt(&sandbox.Sandbox{}, false) },
		"detach": func(a *attachment) { a.detach() }, "reserve": (*attachment).reserve, "release": (*attachment).release, "markUnverified": (*attachment).markUnverified,
		"answered": func(a *attachment) { a.answered(nil) }, "markUnknown": (*attachment).markUnknown, "markKnown": (*attachment).markKnown,
		"reattach": (*attachment).reattach, "markUnreachable": (*attachment).markUnreachable, "restore": (*attachment).restore,
		"stall": func(a *attachment) { a.stall(errors.New("away")) }, "resume": (*attachment).resume,
	}
	made := map[attachmentState]map[attachmentState]bool{}
	for from := range attachmentTransitions {
		made[from] = map[attachmentState]bool{}
		for name, change := range changes {
			a, illegal := attachmentIn(t, from)
			before := a.changed
			change(a)
			what := name + " of " + string(from)
			if legal := from.to(a.state); a.state != from && legal == (len(*illegal) > 0) {
				t.Errorf("%s leads to %s; reported: %v", what, a.state, *illegal)
			}
			if len(*illegal) > 0 {
				continue
			}
			consistent(t, what, a.relation)
			if a.state != from {
				made[from][a.state] = true
				select {
				case <-before:
				default:
					t.Errorf("%s does not wake callers that wait", what)
				}
			}
		}
	}
	for prior := range pathTo { // a reservation returns to the state before it
		if !prior.to(attReserved) {
			continue
		}
		a, illegal := attachmentIn(t, prior)
		a.reserve()
		consistent(t, "reserved from "+string(prior), a.relation)
		a.release()
		if a.state != prior || len(*illegal) > 0 {
			t.Errorf("a reservation from %s returns to %s; illegal transitions: %v", prior, a.state, *illegal)
		}
		consistent(t, "back in "+string(prior), a.relation)
		made[attReserved][prior] = true
	}
	for from, to := range attachmentTransitions {
		for _, next := range to {
			if !made[from][next] {
				t.Errorf("no change leads from %s to %s", from, next)
			}
		}
	}
}

func TestWhatHappensDuringAReservationIsKept(t *testing.T) {
	a, _ := attachmentIn(t, attReserved)
	a.markUnverified()
	if !a.isUnverified() {
		t.Error("a change during a reservation is lost")
	}
	a.release()
	if a.state != attUnverified {
		t.Errorf("the state is %s", a.state)
	}
	for range busyMisses { // it never answers the query for its operations
		if !a.isUnverified() {
			t.Error("a failed query counts as an answer")
		}
		a.reserve()
		a.answered(errors.New("no answer"))
		a.release()
	}
	if a.state != attAttached {
		t.Errorf("the state is %s", a.state)
	}
	a, _ = attachmentIn(t, attUnknown)
	a.reserve()
	if !a.isUnknown() {
		t.Error("a reservation changed unknown to known")
	}
	a.markKnown()
	a.release()
	if a.state != attDetached {
		t.Errorf("the state is %s", a.state)
	}
}

func TestCallsWaitOnlyForWhatChangesByItself(t *testing.T) {
	for s := range attachmentTransitions {
		a, _ := attachmentIn(t, s)
		want := slices.Contains([]attachmentState{attAttached, attUnverified, attRestoring, attStalled}, s)
		if a.changing() != want {
			t.Errorf("%s changes by itself: %t", s, !want)
		}
	}
	a, _ := attachmentIn(t, attRestoring)
	a.reserve()
	if !a.changing() || !a.isRestoring() {
		t.Error("a reserved session no longer counts as being restored")
	}
}

func TestSomethingMayRunUntilItIsKnown(t *testing.T) {
	longAgo := time.Now().Add(-time.Hour)
	for s, want := range map[attachmentState]bool{attUnverified: true, attReattaching: true, attUnreachable: true, attDetached: false, attUnknown: false} {
		a, _ := attachmentIn(t, s)
		if a.mayRun(longAgo) != want {
			t.Errorf("%s: something may run: %t", s, !want)
		}
	}
	a, _ := attachmentIn(t, attUnreachable)
	a.since = longAgo
	if a.mayRun(longAgo) {
		t.Error("an unreachable sandbox keeps the session for ever")
	}
	a, _ = attachmentIn(t, attDetached)
	if !a.mayRun(time.Now()) {
		t.Error("a manager that has just started does not count the session as busy")
	}
}
