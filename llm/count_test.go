package llm

import (
	"encoding/base64"
	"strings"
	"testing"
)

// The counts of OpenAI's and other public tokenizers for these texts are between low and the estimate, or a little
// above the estimate.
func TestCountIsCareful(t *testing.T) {
	for _, tc := range []struct {
		name      string
		text      string
		low, high int64
	}{
		{"nothing", "", 0, 0},
		{"a word", "hello", 1, 1},
		{"a sentence", "The quick brown fox jumps over the lazy dog.", 10, 14},
		{"prose", strings.Repeat("It was the best of times, it was the worst of times, it was the age of wisdom. ", 10), 190, 270},
		{"python", "def add(a, b):\n    return a + b\n", 12, 20},
		{"json", `{"name": "x", "values": [1, 2, 3], "ok": true}`, 20, 36},
		{"digits", "31415926535", 4, 11},
		{"chinese", "你好，世界", 5, 8},
		{"russian", "Привет, мир", 4, 10},
		{"emoji", "🙂🙂", 2, 6},
		{"a rule of dashes", strings.Repeat("-", 80), 1, 20},
		{"indentation", strings.Repeat(" ", 40) + "x", 2, 12},
		{"base64", base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x8f\x13\xc4\x7a\x59", 60))), 180, 400},
		{"broken bytes", "\xff\xfe", 2, 6},
	} {
		if n := Count(tc.text); n < tc.low || n > tc.high {
			t.Errorf("%s: %d, not within %d and %d", tc.name, n, tc.low, tc.high)
		}
	}
}

func TestCutTokens(t *testing.T) {
	text := "some words, größer als 1234 🙂 and more"
	for limit := range Count(text) + 2 {
		cut := cutTokens(text, limit)
		if !strings.HasPrefix(text, cut) || Count(cut) > limit || !strings.HasPrefix(text[len(cut):], strings.ToValidUTF8(text[len(cut):], "?")) {
			t.Errorf("%d: %q is %d", limit, cut, Count(cut))
		}
	}
	if cutTokens(text, Count(text)) != text {
		t.Error("a text within the limit was cut")
	}
}

func FuzzSink(f *testing.F) {
	f.Add("one <end> two", "<end>", uint8(1))
	f.Add("aaab", "aab", uint8(2))
	f.Fuzz(func(t *testing.T, text, stop string, size uint8) {
		if stop == "" || size == 0 {
			t.Skip()
		}
		want, _, stopped := strings.Cut(text, stop)
		heard := ""
		s := newSink(Request{Stop: []string{stop}, Delta: func(p string) bool { heard += p; return true }}, 0)
		for rest := text; rest != ""; {
			n := min(int(size), len(rest))
			if !s.write(rest[:n]) {
				break
			}
			rest = rest[n:]
		}
		s.end()
		if s.text.String() != want || heard != want || (s.finish == FinishStop) != stopped {
			t.Errorf("%q to %q in pieces of %d: %q, received %q, %s", text, stop, size, s.text.String(), heard, s.finish)
		}
	})
}

func BenchmarkCount(b *testing.B) {
	text := strings.Repeat("It was the best of times, it was the worst of times.\n", 20_000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Count(text)
	}
}
