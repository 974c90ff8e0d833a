package llm

import "strings"

// sink receives a reply as it arrives. It stores the text, sends it to delta, and ends the reply at a stop word, at the
// limit, or when delta returns false. It looks for stop words because some providers ignore them, and some refuse more
// than a few.
type sink struct {
	delta func(string) bool
	stops []string
	limit int // bytes; 0: no limit

	text      strings.Builder
	pending   string // end of the received text that may be the beginning of a stop word
	finish    Finish // why the sink ended the reply; empty: it did not
	delivered bool   // delta was called
}

func newSink(req Request, limit int) *sink {
	return &sink{delta: req.Delta, stops: req.Stop, limit: limit}
}

// write adds the next piece. It returns false if no more text is wanted.
func (s *sink) write(piece string) bool {
	if s.finish != "" {
		return false
	}
	s.pending += piece
	if at := firstStop(s.pending, s.stops); at >= 0 {
		s.pending = s.pending[:at]
		if s.flush(len(s.pending)) {
			s.finish = FinishStop
		}
		return false
	}
	return s.flush(len(s.pending) - partialStop(s.pending, s.stops))
}

// end sends the pending text, because the reply is complete.
func (s *sink) end() {
	if s.finish == "" {
		s.flush(len(s.pending))
	}
}

// flush stores and sends the first n pending bytes. It returns false if no more text is wanted.
func (s *sink) flush(n int) bool {
	out := s.pending[:n]
	s.pending = s.pending[n:]
	if out == "" {
		return true
	}
	over := s.limit > 0 && s.text.Len()+len(out) > s.limit
	if over {
		out = cutRunes(out, s.limit-s.text.Len())
	}
	s.text.WriteString(out)
	if s.delta != nil && out != "" {
		s.delivered = true
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

// firstStop returns the index of the first stop word, or -1.
func firstStop(text string, stops []string) int {
	first := -1
	for _, stop := range stops {
		if at := strings.Index(text, stop); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// partialStop returns how many bytes at the end of text may be the beginning of a stop word.
func partialStop(text string, stops []string) int {
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
