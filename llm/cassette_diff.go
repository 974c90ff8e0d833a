package llm

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// diffContext is how many bytes of a text are shown before and after the place where two requests differ.
const diffContext = 60

// sortCalls sorts recorded calls by the order in which they began.
func sortCalls(calls []*recordedCall) {
	slices.SortStableFunc(calls, func(a, b *recordedCall) int { return int(a.N - b.N) })
}

// explainMismatch describes how a request that is not recorded differs from the nearest unused recorded request.
//
// Preconditions: c.mu is held.
func (c *Cassette) explainMismatch(model, key string, req Request) string {
	var nearest *recordedCall
	best, unused, same := -1, 0, 0
	for _, t := range c.order {
		if t.Model.Name != model {
			continue
		}
		k := requestKey(model, t.Request)
		if k == key {
			same++
		}
		if t.used {
			continue
		}
		unused++
		if n := commonPrefix(k, key); n > best {
			nearest, best = t, n
		}
	}
	if same > 0 {
		return fmt.Sprintf("this request is recorded %d times and was sent once more", same)
	}
	if nearest == nil {
		return fmt.Sprintf("all recorded calls of %s are replayed already; the last message of this request is %q",
			model, oneLine(req.Messages[len(req.Messages)-1].Content, 200))
	}
	return fmt.Sprintf("this request is not among the %d unused recorded requests; the nearest is call %d: %s",
		unused, nearest.N, requestDiff(nearest.Request, req))
}

// requestDiff describes the first difference between two conversations, or else all differences of the other fields.
func requestDiff(was, is Request) string {
	for i := range min(len(was.Messages), len(is.Messages)) {
		a, b := was.Messages[i], is.Messages[i]
		if a.Role != b.Role {
			return fmt.Sprintf("the role of message %d was %s, now %s", i+1, a.Role, b.Role)
		}
		if a.Content != b.Content {
			at := commonPrefix(a.Content, b.Content)
			return fmt.Sprintf("message %d (%s) at byte %d: recorded %q, now %q",
				i+1, a.Role, at, around(a.Content, at), around(b.Content, at))
		}
	}
	if len(was.Messages) != len(is.Messages) {
		return fmt.Sprintf("it had %d messages, now %d messages", len(was.Messages), len(is.Messages))
	}
	var parts []string
	if was.MaxTokens != is.MaxTokens {
		parts = append(parts, fmt.Sprintf("max_tokens was %d, now %d", was.MaxTokens, is.MaxTokens))
	}
	if !slices.Equal(was.Stop, is.Stop) {
		parts = append(parts, fmt.Sprintf("stop was %q, now %q", was.Stop, is.Stop))
	}
	if a, b := formatFloat(was.Temperature), formatFloat(is.Temperature); a != b {
		parts = append(parts, fmt.Sprintf("temperature was %s, now %s", a, b))
	}
	if string(was.Schema) != string(is.Schema) {
		parts = append(parts, "the schema differs")
	}
	return strings.Join(parts, "; ")
}

func formatFloat(f *float64) string {
	if f == nil {
		return "not set"
	}
	return fmt.Sprint(*f)
}

// around returns the part of s around byte at.
func around(s string, at int) string {
	from, to := max(0, at-diffContext), min(len(s), at+diffContext)
	for from > 0 && !utf8.RuneStart(s[from]) {
		from--
	}
	out := cutRunes(s[from:], to-from)
	if from > 0 {
		out = "…" + out
	}
	if to < len(s) {
		out += "…"
	}
	return out
}

func commonPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
