package llm

import "unicode/utf8"

// Tokens of a message besides its text, and of a conversation besides its messages: markers of the role, the beginning
// and the end.
const (
	messageTokens      = 4
	conversationTokens = 3
)

// Count estimates the number of tokens of a text, for any model. Tokenizers differ and most are not public, so the
// estimate tends to be high. For plain English it is 10 to 40 % above the numbers of the large providers, for source
// code and JSON a little more. A digit counts as one token, which is right for some models and three times too high for
// others. For random letters (base64, hashes) and scripts that a tokenizer was not trained on, the estimate can be up
// to a third too low.
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
			// Every tokenizer merges a run of one character, such as spaces or a line of dashes.
			for i < len(text) && text[i] == c {
				i++
			}
			run := int64(i - start)
			if c == ' ' {
				n += run / 4 // a single space belongs to the next word
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

// runeQuarters is the estimate for one character in quarters of a token, by the length of the character in UTF-8:
// 1 byte: invalid UTF-8; 2: Latin with accents, Greek, Cyrillic; 3: Chinese, Thai; 4: emoji.
var runeQuarters = [5]int64{0, 8, 3, 6, 12}

// wordEnd returns the end of a run of letters that a tokenizer could keep together: ABC, Abc or abc.
func wordEnd(text string, i int) int {
	for i < len(text) && isUpper(text[i]) {
		i++
	}
	for i < len(text) && isLower(text[i]) {
		i++
	}
	return i
}

// wordTokens estimates the tokens of a run of letters. Words of up to six letters are mostly one token. Capitals are
// split into smaller tokens.
func wordTokens(w string) int64 {
	n := int64(len(w))
	if n > 1 && isUpper(w[1]) {
		return (n + 1) / 2
	}
	return 1 + (n-1)/6
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }

func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }

// CountMessages estimates the tokens of a conversation with m.Count.
func CountMessages(m Model, messages []Message) int64 {
	n := int64(conversationTokens)
	for i := range messages {
		n += messageTokens + m.Count(messages[i].Content)
	}
	return n
}

// cutRunes returns the longest prefix of s of at most n bytes that does not split a character.
func cutRunes(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutTokens returns a prefix of s of at most limit tokens.
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
