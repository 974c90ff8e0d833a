//go:build linux

package rlm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// haystack returns lines of the given total size, with a needle in the middle.
func haystack(t *testing.T, size int, needle string) string {
	t.Helper()
	b := make([]byte, 0, size+100)
	for i := 0; len(b) < size; i++ {
		b = append(strconv.AppendInt(append(b, "line "...), int64(i), 10), ": nothing of interest happened on this day "...)
		b = append(strconv.AppendInt(b, int64(i*7919%1000), 10), '\n')
		if len(b) > size/2 && needle != "" {
			b = append(append(b, needle...), '\n')
			needle = ""
		}
	}
	return string(b)
}

func TestAQuestionOverTenMegabytesIsAnsweredThroughASandbox(t *testing.T) {
	d := newDesk(t,
		"Let me look.\n"+block("print(type(context).__name__, len(context))\nprint(context[:60])")+"Output:\nstr 7\n",
		block(`
at = context.find("the secret number")
piece = context[at-200:at+200]
reply = llm_query("What is the number here? " + piece[200:230])
print(reply)`),
		block("FINAL(reply.split()[-1])"),
	)
	path := filepath.Join(t.TempDir(), "big.txt")
	text := haystack(t, 10<<20, "the secret number is 4711")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.sub.answer = script("It is 4711")
	res := d.answered(Question{Query: "What is the secret number?", Inputs: []Input{File(path)}})
	same(t, "answer", res.Answer, "4711")
	same(t, "turns", res.Turns, 3)
	same(t, "model calls", res.Usage.Calls, int64(4))
	contains(t, "what the sub-model was asked", d.sub.asked[0].Messages[0].Content, "the secret number is 4711")
	first := d.root.asked[0].Messages[1].Content
	contains(t, "the first prompt", first, fmt.Sprintf("context (big.txt): str of %d characters", len(text)))
	contains(t, "the output", d.root.asked[1].Messages[3].Content, fmt.Sprintf("str %d\nline 0:", len(text)))
	if strings.Contains(d.root.asked[1].Messages[2].Content, "Output") {
		t.Error("text that the model invented after its block is in the conversation")
	}
}
