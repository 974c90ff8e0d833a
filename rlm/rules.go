package rlm

// rulesVersion is the version of the rules by which the engine reads replies and answers code. It changes when the same
// recorded replies would lead to other cells, other calls or another answer.
//
//	0: command words are always accepted. An answer in the first turn is accepted in any case. A block without a tag
//	   does not run. A child run without an answer raises an exception in the code.
//	1: the rules of this version, see docs/RLM.md.
const rulesVersion = 1

// rules are the rules of a run. They are stored with it: a run that is resumed, forked or replayed keeps the rules it
// began with, because its recorded replies were read by them.
type rules struct {
	Version int  `json:"version"`
	Dialect bool `json:"dialect,omitempty"` // command words, such as RUN(…)
}

// commands reports whether command words in the text of a reply are actions.
func (r rules) commands() bool { return r.Dialect || r.Version == 0 }
