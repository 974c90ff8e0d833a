package session

import (
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// transitions has all transitions of a session. The package comment has the same table.
var transitions = map[State][]State{
	v1.StateCreating: {v1.StateReady, v1.StateLost, v1.StateEnded},
	v1.StateReady: {
		v1.StateExecuting, v1.StatePaused, v1.StateHibernated, v1.StateLost,
		v1.StateEnding, v1.StateEnded, v1.StateExpired,
	},
	v1.StateExecuting: {
		v1.StateReady, v1.StatePaused, v1.StateHibernated, v1.StateLost,
		v1.StateEnding, v1.StateEnded, v1.StateExpired,
	},
	v1.StatePaused: {
		v1.StateReady, v1.StateExecuting, v1.StateHibernated, v1.StateLost,
		v1.StateEnding, v1.StateEnded, v1.StateExpired,
	},
	v1.StateHibernated: {
		v1.StateReady, v1.StateExecuting, v1.StateLost, v1.StateEnding, v1.StateEnded, v1.StateExpired,
	},
	v1.StateLost:    {v1.StateReady, v1.StateEnding, v1.StateEnded, v1.StateExpired},
	v1.StateEnding:  {v1.StateEnded},
	v1.StateEnded:   {},
	v1.StateExpired: {},
}

// mayBecome reports whether a session may change from one state to another.
func mayBecome(from, to State) bool { return slices.Contains(transitions[from], to) }
