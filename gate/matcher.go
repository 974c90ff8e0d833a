package gate

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// matcher finds terms in text: at word boundaries, in any case, the leftmost and longest first.
//
// It is Aho and Corasick's automaton over words instead of bytes. The Go libraries for it that we measured work on bytes
// and took 1.3 to 8 seconds and 240 to 1900 MB for 100,000 terms; over words the automaton has a fraction of the
// states, word boundaries come by themselves, and there is no second pass that throws away matches inside words.
type matcher struct {
	words  map[string]int32     // words of terms to their numbers, from 1
	signs  [utf8.RuneSelf]int32 // the same for single signs
	first  []int32              // by word: the state after the root
	next   map[uint64]int32     // state, not the root, and word to the state after
	fail   []int32              // by state: the longest shorter state that ends the same
	depth  []int32              // by state: words read since the root
	term   []int32              // by state: the term that ends here, or -1
	longer []int32              // by state: the longest term ending here, its own or a shorter state's; -1: none
	length []int32              // by term: its words
}

// token is a word or a sign of a text.
type token struct {
	id         int32 // 0: in no term
	start, end int32
}

// match is a term found in a text.
type match struct {
	term       int32
	start, end int32 // bytes
}

// wordRune reports whether a rune belongs to a word: words end where no letter, digit or underscore follows.
func wordRune(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r)
}

// scanWords calls f for each word and each sign of a text, in small letters; lower is valid until the next call.
func scanWords(text string, f func(lower []byte, start, end int, word bool)) {
	buf := make([]byte, 0, 64)
	for i := 0; i < len(text); {
		c := text[i]
		if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
			i++
			continue
		}
		start := i
		buf = buf[:0]
		if c < utf8.RuneSelf && !asciiWord[c] {
			i++
			f(append(buf, c), start, i, false)
			continue
		}
		for i < len(text) {
			c := text[i]
			if c < utf8.RuneSelf {
				if !asciiWord[c] {
					break
				}
				if c >= 'A' && c <= 'Z' {
					c += 'a' - 'A'
				}
				buf = append(buf, c)
				i++
				continue
			}
			r, n := utf8.DecodeRuneInString(text[i:])
			if !wordRune(r) {
				break
			}
			buf = utf8.AppendRune(buf, unicode.ToLower(r))
			i += n
		}
		if i == start { // a sign outside ASCII
			r, n := utf8.DecodeRuneInString(text[i:])
			i += n
			if unicode.IsSpace(r) {
				continue
			}
			f(append(buf, text[start:i]...), start, i, false)
			continue
		}
		f(buf, start, i, true)
	}
}

var asciiWord = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = wordRune(rune(c))
	}
	return t
}()

// matcherBuilder makes a matcher from terms.
type matcherBuilder struct {
	m *matcher
}

func newMatcherBuilder(terms int) *matcherBuilder {
	m := &matcher{words: make(map[string]int32, terms), next: make(map[uint64]int32, 2*terms), fail: []int32{0}, depth: []int32{0}, term: []int32{-1}}
	return &matcherBuilder{m: m}
}

func edge(state, word int32) uint64 { return uint64(uint32(state))<<32 | uint64(uint32(word)) }

// add puts in a term. It gives the number of the term that is there already, if one is; ok is false when the term has no words.
func (b *matcherBuilder) add(text string) (term int32, old, ok bool) {
	m := b.m
	state, length := int32(0), int32(0)
	scanWords(text, func(lower []byte, _, _ int, _ bool) {
		id, found := m.words[string(lower)]
		if !found {
			id = int32(len(m.words) + 1)
			m.words[string(lower)] = id
		}
		to, found := m.next[edge(state, id)]
		if !found {
			to = int32(len(m.term))
			m.next[edge(state, id)] = to
			m.term = append(m.term, -1)
			m.depth = append(m.depth, m.depth[state]+1)
			m.fail = append(m.fail, 0)
		}
		state = to
		length++
	})
	if length == 0 {
		return -1, false, false
	}
	if m.term[state] >= 0 {
		return m.term[state], true, true
	}
	m.term[state] = int32(len(m.length))
	m.length = append(m.length, length)
	return m.term[state], false, true
}

// build links the states and gives the matcher.
func (b *matcherBuilder) build() *matcher {
	m := b.m
	type arc struct{ from, word, to int32 }
	layers := map[int32][]arc{}
	most := int32(0)
	for k, to := range m.next {
		d := m.depth[to]
		layers[d] = append(layers[d], arc{from: int32(k >> 32), word: int32(uint32(k)), to: to})
		most = max(most, d)
	}
	m.first = make([]int32, len(m.words)+1)
	for _, a := range layers[1] {
		m.first[a.word] = a.to
		delete(m.next, edge(0, a.word))
	}
	for c := range m.signs {
		if !asciiWord[c] {
			m.signs[c] = m.words[string(rune(c))]
		}
	}
	m.longer = make([]int32, len(m.term))
	m.longer[0] = -1
	for d := int32(1); d <= most; d++ { // shallow states first: a link always goes up
		for _, a := range layers[d] {
			if d > 1 {
				m.fail[a.to] = m.step(m.fail[a.from], a.word)
			}
			m.longer[a.to] = m.term[a.to]
			if m.longer[a.to] < 0 {
				m.longer[a.to] = m.longer[m.fail[a.to]]
			}
		}
	}
	return m
}

// step reads one word.
func (m *matcher) step(state, word int32) int32 {
	for state != 0 {
		if to, ok := m.next[edge(state, word)]; ok {
			return to
		}
		state = m.fail[state]
	}
	return m.first[word]
}

var tokenPool = sync.Pool{New: func() any { return new([]token) }}

// find gives the terms of a text, leftmost first, the longest of those that begin at one place, none overlapping.
// each, if not nil, hears every word of the text.
func (m *matcher) find(text string, each func(lower []byte, start, end int)) []match {
	held := tokenPool.Get().(*[]token)
	defer tokenPool.Put(held)
	tokens := (*held)[:0]
	scanWords(text, func(lower []byte, start, end int, word bool) {
		if len(lower) == 1 && !word && lower[0] < utf8.RuneSelf { // most of what is not a word
			tokens = append(tokens, token{id: m.signs[lower[0]], start: int32(start), end: int32(end)})
			return
		}
		tokens = append(tokens, token{id: m.words[string(lower)], start: int32(start), end: int32(end)})
		if word && each != nil {
			each(lower, start, end)
		}
	})
	*held = tokens
	var out []match
	state := int32(0)
	best, from, to := int32(-1), 0, 0 // the candidate: its term and tokens
	for i := 0; i <= len(tokens); i++ {
		if i < len(tokens) && tokens[i].id != 0 {
			state = m.step(state, tokens[i].id)
		} else {
			state = 0
		}
		// Nothing that begins at the candidate's first word, or before, can still grow: it stands.
		if best >= 0 && i-int(m.depth[state])+1 > from {
			out = append(out, match{term: best, start: tokens[from].start, end: tokens[to].end})
			best, state, i = -1, 0, to
			continue
		}
		if t := m.longer[state]; t >= 0 && i < len(tokens) {
			if start := i - int(m.length[t]) + 1; best < 0 || start < from || (start == from && i > to) {
				best, from, to = t, start, i
			}
		}
	}
	return out
}
