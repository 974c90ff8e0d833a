// Package redact removes secrets from texts before they are stored or shown: values that the program knows, such as the
// keys of model providers, and texts that have the form of a key.
package redact

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Mark replaces a secret.
const Mark = "[secret]"

// minKnown is the length of the shortest known value that is removed. A shorter one, such as the key "none" of a local
// server, could be a word of the text.
const minKnown = 8

// Redactor removes secrets. The zero value removes what has the form of a key.
type Redactor struct {
	known  []string // longest first, because one may contain another
	inJSON [][]byte // the same, as they are written in a JSON string
}

// New returns a redactor that also removes the known values.
func New(known []string) *Redactor {
	r := &Redactor{}
	for _, s := range known {
		if len(s) >= minKnown {
			r.known = append(r.known, s)
		}
	}
	slices.SortFunc(r.known, func(a, b string) int { return len(b) - len(a) })
	r.known = slices.Compact(r.known)
	for _, s := range r.known {
		if b, err := json.Marshal(s); err == nil { // it is a string: there is no error
			r.inJSON = append(r.inJSON, b[1:len(b)-1])
		}
	}
	return r
}

// Text returns a text without known values, and without what has the form of a key.
func (r *Redactor) Text(text string) string {
	for _, secret := range r.known {
		text = strings.ReplaceAll(text, secret, Mark)
	}
	return withoutKeys(text)
}

// JSON returns a JSON document without known values in its strings. What only has the form of a key is kept.
func (r *Redactor) JSON(doc []byte) []byte {
	for _, secret := range r.inJSON {
		if bytes.Contains(doc, secret) {
			doc = bytes.ReplaceAll(doc, secret, []byte(Mark))
		}
	}
	return doc
}

// form describes the keys of one kind: a prefix at the beginning of a word, then at least least characters of tail.
// The rule secrets-in-code of package gate/rules warns of similar ones.
type form struct {
	prefix string
	least  int
	tail   func(c byte) bool
	dots   int    // least number of dots in the tail
	end    string // if set, the key ends with this text and the rest of its line, whatever is before it
	keep   bool   // the prefix is not part of the key
}

var forms = []form{
	{prefix: "sk-", least: 32, tail: wordOrDash},       // OpenAI, Anthropic, OpenRouter, DeepSeek
	{prefix: "sk_live_", least: 16, tail: word},        // Stripe
	{prefix: "rk_", least: 64, tail: word},             // keys of this program
	{prefix: "rs_", least: 64, tail: word},             // its session tokens
	{prefix: "gsk_", least: 20, tail: word},            // Groq
	{prefix: "xai-", least: 20, tail: wordOrDash},      // xAI
	{prefix: "hf_", least: 20, tail: word},             // Hugging Face
	{prefix: "AIza", least: 30, tail: wordOrDash},      // Google
	{prefix: "AKIA", least: 16, tail: word},            // Amazon
	{prefix: "ASIA", least: 16, tail: word},            // Amazon
	{prefix: "ghp_", least: 30, tail: word},            // GitHub
	{prefix: "gho_", least: 30, tail: word},            // GitHub
	{prefix: "ghu_", least: 30, tail: word},            // GitHub
	{prefix: "ghs_", least: 30, tail: word},            // GitHub
	{prefix: "ghr_", least: 30, tail: word},            // GitHub
	{prefix: "github_pat_", least: 30, tail: word},     // GitHub
	{prefix: "glpat-", least: 20, tail: wordOrDash},    // GitLab
	{prefix: "xoxb-", least: 10, tail: wordOrDash},     // Slack
	{prefix: "xoxp-", least: 10, tail: wordOrDash},     // Slack
	{prefix: "xoxa-", least: 10, tail: wordOrDash},     // Slack
	{prefix: "npm_", least: 30, tail: word},            // npm
	{prefix: "eyJ", least: 30, tail: wordDot, dots: 2}, // JSON Web Token
	{prefix: "Bearer ", least: 20, tail: bearer, keep: true},
	{prefix: "-----BEGIN ", end: " PRIVATE KEY-----"},
}

func word(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
func wordOrDash(c byte) bool { return word(c) || c == '-' }
func wordDot(c byte) bool    { return wordOrDash(c) || c == '.' }
func bearer(c byte) bool     { return wordDot(c) || c == '~' || c == '+' || c == '/' || c == '=' }

// byFirst has the forms by the first byte of their prefix.
var byFirst = func() (out [256][]form) {
	for _, f := range forms {
		out[f.prefix[0]] = append(out[f.prefix[0]], f)
	}
	return out
}()

// withoutKeys removes what has the form of a key.
func withoutKeys(text string) string {
	var b strings.Builder
	done := 0
	for at := 0; at < len(text); at++ {
		for i := range byFirst[text[at]] {
			f := &byFirst[text[at]][i]
			if !strings.HasPrefix(text[at:], f.prefix) {
				continue
			}
			end := f.keyEnd(text, at)
			if end < 0 {
				continue
			}
			if f.keep {
				at += len(f.prefix)
			}
			b.WriteString(text[done:at])
			b.WriteString(Mark)
			done, at = end, end-1
			break
		}
	}
	if done == 0 {
		return text
	}
	return b.String() + text[done:]
}

// keyEnd returns the end of the key that begins at start, or -1 if there is none.
func (f *form) keyEnd(text string, start int) int {
	from := start + len(f.prefix)
	if f.end != "" {
		return blockEnd(text, from, f.end)
	}
	if start > 0 && wordOrDash(text[start-1]) {
		return -1
	}
	end := from
	for end < len(text) && f.tail(text[end]) {
		end++
	}
	if end-from < f.least || strings.Count(text[from:end], ".") < f.dots {
		return -1
	}
	return end
}

// blockEnd returns the end of a block such as a private key in PEM format, whose first line continues at from. A block
// without a last line extends to the end of the text.
func blockEnd(text string, from int, mark string) int {
	line, _, _ := strings.Cut(text[from:], "\n")
	i := strings.Index(line, mark[:len(mark)-len("-----")])
	if i < 0 {
		return -1
	}
	rest := text[from+i+len(mark):]
	last := strings.Index(rest, "-----END ")
	if last < 0 {
		return len(text)
	}
	end := strings.Index(rest[last:], mark)
	if end < 0 {
		return len(text)
	}
	return len(text) - len(rest) + last + end + len(mark)
}
