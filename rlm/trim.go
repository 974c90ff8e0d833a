package rlm

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/llm"
)

const (
	lowTurns     = 2   // turns that are left when the model is told to store its best answer
	trimBelow    = 4   // turns that must be affordable; otherwise old outputs are shortened
	trimTo       = 6   // turns that should be affordable after that
	turnReply    = 500 // tokens of the reply of a turn, roughly
	trimmedChars = 600 // characters that are left of an old output
	windowPart   = 4   // a reply or output has at most 1 / windowPart of the model's window
)

// fitWindow shortens a text that would take more than its part of the model's window.
func (n *node) fitWindow(text string) string {
	window := n.model.Info().Window
	if window <= 0 {
		return text
	}
	most := window / windowPart
	for tokens := n.model.Count(text); tokens > most; tokens = n.model.Count(text) {
		chars := int64(utf8.RuneCountInString(text))
		shorter := cut(text, int(chars*most/tokens*9/10))
		if len(shorter) >= len(text) {
			break
		}
		text = shorter
	}
	return text
}

// affordable returns the number of further turns that the tokens and the cost that are left can pay, if each needs as
// much as usage. The last call of the node, for which a part is kept, needs as much as one turn.
func (n *node) affordable(usage llm.Usage) float64 {
	left, turns := n.budget.remaining(), math.Inf(1)
	if left.Tokens != nil && usage.Tokens() > 0 {
		turns = min(turns, float64(*left.Tokens)/float64(usage.Tokens()))
	}
	if left.Cost != nil && usage.Cost > 0 {
		turns = min(turns, *left.Cost/usage.Cost)
	}
	return turns - 1
}

// lowNote returns a note for the model if few turns are left, or can be paid if they cost as much as the last one.
func (n *node) lowNote() string {
	turns := n.affordable(n.turnUsage)
	if left := n.remaining(n.turn).Turns; left != nil {
		turns = min(turns, float64(*left))
	}
	if turns > lowTurns {
		return ""
	}
	return "\n[little is left: set answer[\"content\"] to the best answer that you have now, and submit it soon]"
}

// nextTurn returns what the next turn needs for a conversation of this length.
func (n *node) nextTurn(input int64) llm.Usage {
	u := llm.Usage{Input: input, Output: turnReply}
	if p := n.model.Info().Price; p != nil {
		u.Cost = (float64(u.Input)*p.Input + float64(u.Output)*p.Output) / 1e6
	}
	return u
}

// trimOutputs shortens old outputs, the oldest first, if the tokens or the cost that are left cannot pay several more
// turns: each turn sends the whole conversation again. The last output stays as it is.
func (n *node) trimOutputs() {
	if n.affordable(n.nextTurn(n.tokens)) >= trimBelow {
		return
	}
	for i := promptMessages; i < len(n.messages)-1; i++ {
		if n.affordable(n.nextTurn(n.tokens)) >= trimTo {
			return
		}
		m := &n.messages[i]
		if m.Role != llm.User || utf8.RuneCountInString(m.Content) <= 2*trimmedChars {
			continue
		}
		text := cutOld(m.Content)
		tokens := n.model.Count(text) + perMessage
		n.tokens += tokens - m.tokens
		m.Content, m.tokens = text, tokens
	}
}

// cutOld shortens an old output to its beginning and its end.
func cutOld(s string) string {
	const half = trimmedChars / 2
	return fmt.Sprintf("%s\n[… %d characters of this old output are left out; print what you need again …]\n%s",
		firstRunes(s, half), utf8.RuneCountInString(s)-trimmedChars, lastRunes(s, half))
}
