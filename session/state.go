package session

import "slices"

// State is the state of a session.
type State string

// The states of a session.
const (
	Creating   State = "creating"   // its sandbox is being created
	Ready      State = "ready"      // nothing runs in it
	Executing  State = "executing"  // a cell, a command or a transfer is in progress
	Paused     State = "paused"     // frozen in memory, by hand
	Hibernated State = "hibernated" // on disk, its memory freed
	Lost       State = "lost"       // its sandbox is gone, and not restored yet or for good
	Ended      State = "ended"      // by its owner
	Expired    State = "expired"    // by its lifetime or its idle time
)

// transitions is the whole table.
var transitions = map[State][]State{
	Creating:   {Ready, Lost, Ended},
	Ready:      {Executing, Paused, Hibernated, Lost, Ended, Expired},
	Executing:  {Ready, Paused, Hibernated, Lost, Ended, Expired},
	Paused:     {Ready, Executing, Hibernated, Lost, Ended, Expired},
	Hibernated: {Ready, Executing, Lost, Ended, Expired},
	Lost:       {Ready, Ended, Expired},
	Ended:      {},
	Expired:    {},
}

// To reports whether a session may go from s to next.
func (s State) To(next State) bool { return slices.Contains(transitions[s], next) }

// Live reports whether the session still holds its key.
func (s State) Live() bool { return s != Ended && s != Expired }
