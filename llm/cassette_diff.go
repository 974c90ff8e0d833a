package llm

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// shown is how many bytes of a text are shown on either side of where two requests part.
const shown = 60

// sortTakes orders recorded calls by when they began.
func sortTakes(takes []*take) {
	slices.SortStableFunc(takes, func(a, b *take) int { return int(a.N - b.N) })
}

// difference says how a request that was not found differs from the nearest one that is recorded.
// Preconditions: c.mu is held.
func (c *Cassette) difference(model, key string, req Request) string {
	var nearest *take
	best, others, again := -1, 0, 0
	for _, t := range c.order {
		if t.Model.Name != model {
			continue
		}
		k := takeKey(model, t.Request)
		if k == key {
			again++
		}
		if t.used {
			continue
		}
		others++
		if n := commonPrefix(k, key); n > best {
			nearest, best = t, n
		}
	}
	if again > 0 {
		return fmt.Sprintf("this request is recorded %d times and was asked once more", again)
	}
	if nearest == nil {
		return fmt.Sprintf("every recorded call of %s was replayed already; asked now: %q", model, brief(req.Messages[len(req.Messages)-1].Content, 200))
	}
	return fmt.Sprintf("this request is not among the %d recorded ones that are left; the nearest, call %d, differs: %s", others, nearest.N, parting(nearest.Request, req))
}

// parting shows where two requests part.
func parting(was, is Request) string {
	for i := range min(len(was.Messages), len(is.Messages)) {
		a, b := was.Messages[i], is.Messages[i]
		if a.Role != b.Role {
			return fmt.Sprintf("message %d was by the %s, now by the %s", i+1, a.Role, b.Role)
		}
		if a.Content != b.Content {
			at := commonPrefix(a.Content, b.Content)
			return fmt.Sprintf("message %d (%s) at byte %d: recorded %q, asked %q", i+1, a.Role, at, around(a.Content, at), around(b.Content, at))
		}
	}
	if len(was.Messages) != len(is.Messages) {
		return fmt.Sprintf("it had %d messages, now %d", len(was.Messages), len(is.Messages))
	}
	var parts []string
	if was.MaxTokens != is.MaxTokens {
		parts = append(parts, fmt.Sprintf("max_tokens was %d, now %d", was.MaxTokens, is.MaxTokens))
	}
	if !slices.Equal(was.Stop, is.Stop) {
		parts = append(parts, fmt.Sprintf("stop was %q, now %q", was.Stop, is.Stop))
	}
	if a, b := number(was.Temperature), number(is.Temperature); a != b {
		parts = append(parts, fmt.Sprintf("temperature was %s, now %s", a, b))
	}
	if string(was.Schema) != string(is.Schema) {
		parts = append(parts, "the schema is another")
	}
	return strings.Join(parts, "; ")
}

func number(f *float64) string {
	if f == nil {
		return "not set"
	}
	return fmt.Sprint(*f)
}

// around cuts out what stands near a place.
func around(s string, at int) string {
	from, to := max(0, at-shown), min(len(s), at+shown)
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
