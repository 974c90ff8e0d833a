//go:build linux

package rlm_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// A scripted model stands for a real one; everything else is real.
func Example() {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	root := llm.NewScripted("root",
		llm.Rule{Match: "Question:", Reply: "```repl\nhits = search('password')\nprint(len(context), hits[0][1])\n```"},
		llm.Rule{Reply: "```repl\nFINAL(llm_query('Only the word: ' + hits[0][1]))\n```"})
	sub := llm.NewScripted("sub", llm.Rule{Match: `the password is (\w+)`, Reply: "{{1}}"})
	dir, err := os.MkdirTemp("", "runs-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	e, err := rlm.New(rlm.Options{
		Models: func(depth int, _ string) (llm.Model, error) {
			if depth == 0 {
				return root, nil
			}
			return sub, nil
		},
		Sandboxes: rlm.FromBackend(backend),
		Dir:       dir, // empty: the user's data directory
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	text := strings.Repeat("nothing here\n", 100_000) + "the password is swordfish\n"
	res, err := e.Run(context.Background(), rlm.Question{Query: "What is the password?", Inputs: []rlm.Input{rlm.Text(text)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Answer, res.Reason, res.Turns, "turns")
	// Output: swordfish answered 2 turns
}
