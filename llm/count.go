package llm

import "unicode/utf8"

// What a message takes besides its text, and a conversation besides its messages: marks of the role and of the beginning and end.
const (
	messageTokens      = 4
	conversationTokens = 3
)

// Count estimates how many tokens a text is, for any model. Tokenizers differ and most are not public, so this leans to the
// high side: plain English comes out 10 to 40 % above what the large providers count, source code and JSON a little more, digits as one token
// each, which is true for some models and three times too many for others. Random letters (base64, hashes) and scripts
// that a tokenizer was not trained on may come out up to a third too low.
func Count(text string) int64 {
	var n int64
	for i := 0; i < len(text); {
		c := text[i]
		start := i
		switch {
		case isLower(c) || isUpper(c):
			i = wordEnd(text, i)
			n += wordTokens(text[start:i])
		case c >= '0' && c <= '9':
			n++
			i++
		case c < utf8.RuneSelf:
			// A run of one character (spaces, a line of dashes) is merged by every tokenizer.
			for i < len(text) && text[i] == c {
				i++
			}
			run := int64(i - start)
			if c == ' ' {
				n += run / 4 // a single space belongs to the word behind it
				continue
			}
			n += (run + 3) / 4
		default:
			var quarters int64
			for i < len(text) && text[i] >= utf8.RuneSelf {
				_, size := utf8.DecodeRuneInString(text[i:])
				quarters += runeQuarters[size]
				i += size
			}
			n += (quarters + 3) / 4
		}
	}
	return n
}

// runeQuarters is the quarters of a token that a character takes by its length in UTF-8: a broken byte; Latin with accents, Greek,
// Cyrillic; Chinese, Thai; emoji.
var runeQuarters = [5]int64{0, 8, 3, 6, 12}

// wordEnd gives the end of a run of letters that a tokenizer could keep together: ABC, Abc or abc.
func wordEnd(text string, i int) int {
	for i < len(text) && isUpper(text[i]) {
		i++
	}
	for i < len(text) && isLower(text[i]) {
		i++
	}
	return i
}

// wordTokens counts a run of letters. Words of up to six letters are mostly one token; capitals are cut finer.
func wordTokens(w string) int64 {
	n := int64(len(w))
	if n > 1 && isUpper(w[1]) {
		return (n + 1) / 2
	}
	return 1 + (n-1)/6
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }

func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }

// CountMessages estimates the tokens of a conversation with a model's own estimate of texts.
func CountMessages(m Model, messages []Message) int64 {
	n := int64(conversationTokens)
	for i := range messages {
		n += messageTokens + m.Count(messages[i].Content)
	}
	return n
}

// cutRunes gives the longest beginning of s of at most n bytes that breaks no character.
func cutRunes(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutTokens gives the longest beginning of s of at most limit tokens.
func cutTokens(s string, limit int64) string {
	lo, hi := 0, len(s)
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if Count(cutRunes(s, mid)) <= limit {
			lo = mid
			continue
		}
		hi = mid - 1
	}
	return cutRunes(s, lo)
}
