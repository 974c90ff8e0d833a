package rlm

import (
	"strings"
	"testing"
)

func TestReasoningIsNotPartOfAReply(t *testing.T) {
	const q = "```"
	draft := q + "repl\ndraft()\n" + q + "\n"
	code := q + "repl\nprint(1)\n" + q + "\n"
	for _, c := range []struct{ name, reply, want string }{
		{"none", "Look:\n" + code, "Look:\n" + code},
		{"think", "<think>\n" + draft + "FINAL(7)\n</think>\n" + code, code},
		{"thinking", "<thinking>FINAL(7)</thinking>\n\n" + code, code},
		{"capitals, with a space before", "  <Think>a\n</Think>" + code, code},
		{"never closed", "<think>\nI will\n" + draft, ""},
		{"only closed", "I will\n" + draft + "FINAL(7)\n</think>\n" + code, code},
		{"only closed, at the end of a line", "I will think.</think>\n" + code, code},
		{"two", "<think>a</think>\nfirst\n<think>" + draft + "</think>\n" + code, "first\n\n" + code},
		{"the tags in code", q + "repl\nprint('<think>x</think>')\n" + q + "\n", q + "repl\nprint('<think>x</think>')\n" + q + "\n"},
		{"the opening tag in code", q + "repl\ns = '''\n<think>\n'''\n" + q + "\ntext", q + "repl\ns = '''\n<think>\n'''\n" + q + "\ntext"},
		{"the tags in a sentence", "Models write <think> and </think> around it.", "Models write <think> and </think> around it."},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := withoutReasoning(c.reply); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if got := maskReasoning(c.reply); len(got) != len(c.reply) {
				t.Errorf("masked to %d bytes, not %d", len(got), len(c.reply))
			}
		})
	}
	if end := firstBlockEnd(maskReasoning("<think>\n" + draft)); end != 0 {
		t.Errorf("a draft ends the reply at %d", end)
	}
}

func TestProseIsWhatIsNotCode(t *testing.T) {
	if got := withoutCode("It is 42.\n```repl\nx = 1\n```\nI am sure."); got != "It is 42.\nI am sure." {
		t.Errorf("%q", got)
	}
	if got := withoutCode("```repl\nx = 1\n```"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestReasoningIsRemovedFromAStream(t *testing.T) {
	for text, want := range map[string]string{
		"a plain reply":                  "a plain reply",
		"<think>\nhm\n</think>\n\nyes":   "yes",
		"\n <Thinking>hm</thinking> yes": "yes",
		"first\n<think>hm</think>then":   "first\nthen",
		"<think>\nno end":                "",
		"a < b, and a <thin line":        "a < b, and a <thin line",
		"<thin":                          "<thin",
		block("x = '<think>'"):           block("x = '<think>'"),
	} {
		for size := 1; size <= len(text); size++ {
			var f ReplyFilter
			var got strings.Builder
			for at := 0; at < len(text); at += size {
				got.WriteString(f.Add(text[at:min(len(text), at+size)]))
			}
			got.WriteString(f.End())
			if got.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", text, size, got.String(), want)
			}
		}
	}
}
