package rlm

import (
	"fmt"
	"strings"
	"testing"
)

func describe(r parsedReply) string {
	var parts []string
	for _, a := range r.actions {
		s := fmt.Sprintf("%s:%q", a.kind, a.text)
		if a.items != nil {
			s = fmt.Sprintf("%s:%q", a.kind, a.items)
		}
		if a.open {
			s += "(open)"
		}
		parts = append(parts, s)
	}
	if r.final != nil {
		kind := "final"
		if r.final.variable {
			kind = "final_var"
		}
		parts = append(parts, fmt.Sprintf("%s:%q%s", kind, r.final.text, r.final.invalid))
	}
	return strings.Join(parts, " ")
}

func TestReadingReplies(t *testing.T) {
	const q = "```"
	for _, c := range []struct{ name, reply, want string }{
		{"nothing", "", ""},
		{"prose", "I think the answer is 42.", ""},
		{"a block", "Look:\n" + q + "repl\nprint(1)\n" + q + "\n", `cell:"print(1)"`},
		{"a Python block", q + "python\nprint(1)\n" + q, `cell:"print(1)"`},
		{"a py block", q + "py\nprint(1)\n" + q, `cell:"print(1)"`},
		{"a tag in capitals", q + "REPL\nprint(1)\n" + q, `cell:"print(1)"`},
		{"a tag with words behind it", q + "python title=\"x\" run\nprint(1)\n" + q, `cell:"print(1)"`},
		{"a space before the tag", q + " python\nprint(1)\n" + q, `cell:"print(1)"`},
		{"a tag in braces", q + "{python}\nprint(1)\n" + q, `cell:"print(1)"`},
		{"no newline before the closing fence", q + "python\nprint(1)" + q, `cell:"print(1)"`},
		{"no newline before the closing fence, text behind", q + "python\nprint(1)" + q + "\nSo it is.", `cell:"print(1)"`},
		{"an indented fence", "1. try\n   " + q + "python\n   if x:\n       y()\n   " + q + "\n", `cell:"if x:\n    y()"`},
		{"four backticks", q + "`python\ns = '''\n" + q + "\nx\n" + q + "\n'''\n" + q + "`\n", "cell:\"s = '''\\n```\\nx\\n```\\n'''\""},
		{"tildes", "~~~python\nprint(1)\n~~~\n", `cell:"print(1)"`},
		{"CRLF", q + "python\r\na = 1\r\nb = 2\r\n" + q + "\r\n", `cell:"a = 1\nb = 2"`},
		{"a fence in a docstring", q + "python\ndef f():\n    \"\"\"Use:\n" + q + "\n    f()\n" + q + "\n    \"\"\"\nf()\n" + q + "\nDone.", "cell:\"def f():\\n    \\\"\\\"\\\"Use:\\n```\\n    f()\\n```\\n    \\\"\\\"\\\"\\nf()\""},
		{"a fence in a string", q + "python\nparts = text.split('" + q + "')\nprint(parts)\n" + q, "cell:\"parts = text.split('```')\\nprint(parts)\""},
		{"an f-string with a fence", q + "python\nx = llm_query(f\"\"\"Read:\n" + q + "\n{context[:10]}\n" + q + "\"\"\")\n" + q + "\n", "cell:\"x = llm_query(f\\\"\\\"\\\"Read:\\n```\\n{context[:10]}\\n```\\\"\\\"\\\")\""},
		{"a string that never ends", q + "python\nx = '''abc\n" + q + "\nThat was it.", "cell:\"x = '''abc\""},
		{"an apostrophe in a comment", q + "python\n# it's odd\nprint(1)\n" + q + "\ntext", "cell:\"# it's odd\\nprint(1)\""},
		{"two languages in order", q + "bash\nls\n" + q + "\nand\n" + q + "repl\nprint(2)\n" + q, `command:"ls" cell:"print(2)"`},
		{"an unclosed block", "Go:\n" + q + "repl\nprint(1)\nprint(2)", `cell:"print(1)\nprint(2)"(open)`},
		{"tags of other programs", q + "tool_code\na\n" + q + "\n" + q + "ipython\nb\n" + q + "\n" + q + "python3\nc\n" + q, `cell:"a" cell:"b" cell:"c"`},
		{"another language", q + "json\n{}\n" + q, ""},
		{"an untagged block", q + "\nprint(1)\n" + q, ""},
		{"an empty block", q + "repl\n\n" + q, ""},
		{"a block within a quoted one", q + "`markdown\n" + q + "python\nx\n" + q + "\n" + q + "`\nno code", ""},
		{"inline code is no fence", "use " + q + "python x" + q + " here", ""},

		{"an answer", "FINAL(42)", `final:"42"`},
		{"an answer behind prose", "So:\n  FINAL(42)\n", `final:"42"`},
		{"an answer in the middle of a line", "I would say FINAL(42)", ""},
		{"an apostrophe", "FINAL(it's 42)", `final:"it's 42"`},
		{"brackets", "FINAL(f(1))", `final:"f(1)"`},
		{"a bracket in quotes", `FINAL("a ) b")`, `final:"a ) b"`},
		{"several lines", "FINAL(one\ntwo (2)\nthree)\nBye", `final:"one\ntwo (2)\nthree"`},
		{"never closed", "FINAL(one\ntwo", `final:"one"`},
		{"a smiley", "FINAL(yes :) really)", `final:"yes :) really"`},
		{"an empty answer", "FINAL()", `final:""`},
		{"an empty string", `FINAL("")`, `final:""`},
		{"a variable", "FINAL_VAR(result)", `final_var:"result"`},
		{"a quoted variable", `FINAL_VAR("result")`, `final_var:"result"`},
		{"no variable", "FINAL_VAR(a + b)", `final_var:"a + b"FINAL_VAR takes the name of a variable`},
		{"an answer in a fence is none", q + "\nFINAL(42)\n" + q, ""},
		{"an answer beside code", q + "repl\nx = 1\n" + q + "\nFINAL(42)", `cell:"x = 1" final:"42"`},

		{"RUN", "RUN(ls -la | wc -l)", `command:"ls -la | wc -l"`},
		{"CODE in quotes", `CODE("print(1)")`, `cell:"print(1)"`},
		{"CODE over lines", "CODE(for i in range(3):\n    print(i))", `cell:"for i in range(3):\n    print(i)"`},
		{"QUERY_LLM", `QUERY_LLM("what is (this)?")`, `query:"what is (this)?"`},
		{"QUERY_LLM_BATCHED", `QUERY_LLM_BATCHED(["a", 'b, c'])`, `queries:["a" "b, c"]`},
		{"SNAPSHOT and ROLLBACK", "SNAPSHOT(before)\nROLLBACK('before')", `snapshot:"before" rollback:"before"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := describe(parseReply(c.reply, true)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestGenerationStopsBehindTheFirstClosedBlock(t *testing.T) {
	const q = "```"
	for _, c := range []struct{ name, reply, want string }{
		{"a block and invented output", "Go\n" + q + "repl\nx\n" + q + "\nOutput: 7\n", "Go\n" + q + "repl\nx\n" + q + "\n"},
		{"a quoted block first", q + "text\nx\n" + q + "\n" + q + "py\ny\n" + q + "\nmore", q + "text\nx\n" + q + "\n" + q + "py\ny\n" + q + "\n"},
		{"not closed", q + "repl\nx\n", ""},
		{"closed in a docstring only", q + "repl\ns = '''\n" + q + "\n'''\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if end := firstBlockEnd(c.reply); c.reply[:end] != c.want {
				t.Errorf("cut at %d: %q", end, c.reply[:end])
			}
		})
	}
}

func TestTheArgumentOfAnAnswerInTheText(t *testing.T) {
	const q = "```"
	for _, c := range []struct{ name, reply, text, expression string }{
		{"a word", "FINAL(Paris)", "Paris", "Paris"},
		{"a text in quotes", `FINAL("Paris")`, "Paris", ""},
		{"brackets in a sentence", "FINAL(The options are: a) Anna, b) Bert)", "The options are: a) Anna, b) Bert", "The options are: a) Anna, b) Bert"},
		{"a call", "FINAL(len(hits))", "len(hits)", "len(hits)"},
		{"an f-string", `FINAL(f"{n} hits")`, `f"{n} hits"`, `f"{n} hits"`},
		{"several lines", "FINAL(first (a)\nsecond)\n", "first (a)\nsecond", "first (a)\nsecond"},
		{"text behind it", "FINAL(42)\nThat is all (really).", "42", "42"},
		{"a sentence behind it", "FINAL(42) is my answer.", "42", "42"},
		{"bold", "**FINAL(42)**", "42", "42"},
		{"a fence inside", "FINAL(\n" + q + "json\n{\"a\": [1, 2]}\n" + q + "\n)", `{"a": [1, 2]}`, ""},
		{"a fence without a tag inside", "FINAL(" + q + "\n(42)\n" + q + ")", "(42)", ""},
		{"an apostrophe", "FINAL(it's 42)", "it's 42", "it's 42"},
		{"a bracket that is never closed", "FINAL(42", "42", "42"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := parseReply(c.reply, false).final
			if f == nil || f.text != c.text || f.expression != c.expression {
				t.Errorf("%+v, want %q, expression %q", f, c.text, c.expression)
			}
		})
	}
}

func TestCommandWordsAreTextUnlessTheDialectIsOn(t *testing.T) {
	for _, reply := range []string{"RUN(ls)", "CODE(print(1)) shows it", "I would use:\nQUERY_LLM(x)"} {
		if r := parseReply(reply, false); len(r.actions) > 0 {
			t.Errorf("%q: %s", reply, describe(r))
		}
	}
	if r := parseReply("RUN(ls)\nFINAL(42)", false); r.final == nil || r.final.text != "42" {
		t.Errorf("%+v", r.final)
	}
}
