package rlm

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// Models that reason may write their reasoning into the reply, between tags. It is not part of the reply: code in it is
// a draft, and an answer in it is not submitted.
var (
	thinkOpen  = lazyregexp.New(`(?i)^[ \t]*<think(?:ing)?>`)
	thinkClose = lazyregexp.New(`(?i)</think(?:ing)?>`)
	// thinkLone matches a closing tag at the start or at the end of a line. Elsewhere it is more likely a part of a
	// text or of code about such tags.
	thinkLone = lazyregexp.New(`(?im)(?:^[ \t]*</think(?:ing)?>|</think(?:ing)?>[ \t\r]*$)`)
)

// reasoning returns the spans of a reply that are reasoning, in order. A span begins with an opening tag at the start
// of a line outside of code, and ends with the next closing tag, or with the reply. If there is a closing tag alone,
// the provider left out the opening tag, and the text before it is reasoning.
func reasoning(text string) []extent {
	if !strings.Contains(text, "<") {
		return nil
	}
	var spans []extent
	if lone := thinkLone().FindStringIndex(text); lone != nil && !opensReasoning(text[:lone[1]]) {
		spans = append(spans, extent{0, int64(lone[1])})
	}
	at := 0
	if len(spans) > 0 {
		at = int(spans[0].end)
	}
	for at < len(text) {
		line, next := lineAt(text, at)
		if f, ok := openFence(line); ok {
			_, end, _ := readBlock(text, next, f, tags[f.tag] == actCell)
			at = end
			continue
		}
		m := thinkOpen().FindStringIndex(line)
		if m == nil {
			at = next
			continue
		}
		end := len(text)
		if c := thinkClose().FindStringIndex(text[at+m[1]:]); c != nil {
			end = at + m[1] + c[1]
		}
		spans = append(spans, extent{int64(at), int64(end)})
		at = end
	}
	return spans
}

// opensReasoning reports whether a line of a text begins with an opening tag.
func opensReasoning(text string) bool {
	for line := range strings.Lines(text) {
		if thinkOpen().MatchString(line) {
			return true
		}
	}
	return false
}

// withoutReasoning returns a reply without its reasoning.
func withoutReasoning(text string) string {
	spans := reasoning(text)
	if len(spans) == 0 {
		return text
	}
	var b strings.Builder
	at := int64(0)
	for _, s := range spans {
		b.WriteString(text[at:s.start])
		at = s.end
	}
	b.WriteString(text[at:])
	return strings.TrimLeft(b.String(), " \t\r\n")
}

// A ReplyFilter removes the reasoning from a reply that arrives in pieces. The zero value is ready to use.
type ReplyFilter struct {
	text strings.Builder
	sent string
}

// Add adds a piece and returns the text to pass on.
func (f *ReplyFilter) Add(piece string) string {
	f.text.WriteString(piece)
	all := f.text.String()
	line := all[strings.LastIndexByte(all, '\n')+1:]
	if start := strings.ToLower(strings.TrimLeft(line, " \t")); start != "" &&
		(strings.HasPrefix("<think>", start) || strings.HasPrefix("<thinking>", start)) {
		all = all[:len(all)-len(line)] // it may become an opening tag
	}
	return f.pass(all)
}

// End returns the text to pass on at the end of the reply.
func (f *ReplyFilter) End() string { return f.pass(f.text.String()) }

// pass returns the part of a text without reasoning that was not passed on before. If the text before a closing tag
// alone was passed on, it returns all that follows the tag.
func (f *ReplyFilter) pass(all string) string {
	visible := strings.TrimLeft(withoutReasoning(all), " \t\r\n")
	rest, ok := strings.CutPrefix(visible, f.sent)
	if !ok {
		if strings.HasPrefix(f.sent, visible) {
			return "" // a part is held back
		}
		rest = visible
	}
	f.sent = visible
	return rest
}

// maskReasoning returns a reply of the same length, in which the reasoning is blank.
func maskReasoning(text string) string {
	spans := reasoning(text)
	if len(spans) == 0 {
		return text
	}
	masked := []byte(text)
	for _, s := range spans {
		for i := s.start; i < s.end; i++ {
			masked[i] = '\n'
		}
	}
	return string(masked)
}

// Prose returns the text of a reply without code and reasoning, for people.
func Prose(reply string) string { return withoutCode(withoutReasoning(reply)) }

// withoutCode returns the text of a reply outside of blocks.
func withoutCode(text string) string {
	var b strings.Builder
	for at := 0; at < len(text); {
		line, next := lineAt(text, at)
		if f, ok := openFence(line); ok {
			_, at, _ = readBlock(text, next, f, tags[f.tag] == actCell)
			continue
		}
		b.WriteString(text[at:next])
		at = next
	}
	return strings.TrimSpace(b.String())
}
