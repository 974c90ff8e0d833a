package v1

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// Text is a string that may hold any bytes. In JSON it is a string, or {"base64": "…"} if it is not valid UTF-8, so
// that no bytes are replaced. Base64 is also used if it has many control characters: JSON needs six bytes for each, and
// people cannot read it anyway.
type Text string

type base64Text struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) && !binary(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(base64Text{[]byte(t)})
}

// binary reports whether more than an eighth of s is control characters.
func binary(s string) bool {
	n := 0
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' && c != '\r' {
			n++
		}
	}
	return n > len(s)/8+8
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var e struct {
			Base64 *[]byte `json:"base64"`
		}
		if err := json.Unmarshal(b, &e); err != nil {
			return err
		}
		if e.Base64 == nil {
			return errors.New(`want a string or {"base64": "…"}`)
		}
		*t = Text(*e.Base64)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New(`want a string or {"base64": "…"}`)
	}
	*t = Text(s)
	return nil
}

// Incomplete returns how many bytes at the end of b are the beginning of an incomplete UTF-8 character.
func Incomplete(b []byte) int {
	for n := 1; n <= min(len(b), utf8.UTFMax-1); n++ {
		if rest := b[len(b)-n:]; utf8.RuneStart(rest[0]) {
			if utf8.FullRune(rest) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Texts converts strings to Texts.
func Texts(s []string) []Text {
	if s == nil {
		return nil
	}
	out := make([]Text, len(s))
	for i, x := range s {
		out[i] = Text(x)
	}
	return out
}

// Strings converts Texts to strings.
func Strings(t []Text) []string {
	if t == nil {
		return nil
	}
	out := make([]string, len(t))
	for i, x := range t {
		out[i] = string(x)
	}
	return out
}
