package llm

import "strings"

// sink takes a reply as it comes: it keeps the text, passes it on, and ends it at a stop word, at a length, or when the
// listener has heard enough. Providers stop at stop words by themselves, but not all of them, and some refuse more than a few.
type sink struct {
	delta func(string) bool
	stops []string
	limit int // bytes; 0: none

	text   strings.Builder
	held   string // the end of what came, while it may be the beginning of a stop word
	finish Finish // why we ended it; empty: we did not
	passed bool   // the listener has heard something
}

func newSink(req Request, limit int) *sink {
	return &sink{delta: req.Delta, stops: req.Stop, limit: limit}
}

// write takes the next piece and tells whether more is wanted.
func (s *sink) write(piece string) bool {
	if s.finish != "" {
		return false
	}
	s.held += piece
	if at := firstStop(s.held, s.stops); at >= 0 {
		s.held = s.held[:at]
		if s.flush(len(s.held)) {
			s.finish = FinishStop
		}
		return false
	}
	return s.flush(len(s.held) - stopBeginning(s.held, s.stops))
}

// end passes on what was held back; the reply is whole.
func (s *sink) end() {
	if s.finish == "" {
		s.flush(len(s.held))
	}
}

// flush keeps and passes on the first n held bytes.
func (s *sink) flush(n int) bool {
	out := s.held[:n]
	s.held = s.held[n:]
	if out == "" {
		return true
	}
	over := s.limit > 0 && s.text.Len()+len(out) > s.limit
	if over {
		out = cutRunes(out, s.limit-s.text.Len())
	}
	s.text.WriteString(out)
	if s.delta != nil && out != "" {
		s.passed = true
		if !s.delta(out) {
			s.finish = FinishCut
			return false
		}
	}
	if over {
		s.finish = FinishLength
		return false
	}
	return true
}

// firstStop gives where the earliest stop word begins, or -1.
func firstStop(text string, stops []string) int {
	first := -1
	for _, stop := range stops {
		if at := strings.Index(text, stop); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// stopBeginning gives how many bytes at the end of text may be the beginning of a stop word.
func stopBeginning(text string, stops []string) int {
	longest := 0
	for _, stop := range stops {
		for n := min(len(stop)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}
