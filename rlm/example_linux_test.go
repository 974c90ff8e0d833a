//go:build linux

package rlm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/local"
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

// A small context is shown to the model directly, without a sandbox. Events report what happens.
func ExampleEngine_Start() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "runs-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	model := llm.NewScripted("model", llm.Rule{Match: `opens at (\w+)`, Reply: "At {{1}}."})
	e, err := rlm.New(rlm.Options{
		Models:    func(int, string) (llm.Model, error) { return model, nil },
		Sandboxes: rlm.FromBackend(local.New(local.Options{Dir: dir})), // without isolation, for development
		Dir:       dir,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, err := e.Start(ctx, rlm.Question{
		Query:  "When can I come?",
		Inputs: []rlm.Input{rlm.Text("The library opens at nine.")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for event, err := range run.Events(ctx, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.Kind)
	}
	res, err := run.Wait()
	fmt.Println(res.Answer, err)
	// Output:
	// run_started
	// call_started
	// call_ended
	// answer
	// run_ended
	// At nine. <nil>
}

// Code of the run calls a Go function of the host by its name.
func ExampleTool() {
	dir, err := os.MkdirTemp("", "runs-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	price := rlm.Tool{
		Name:   "price",
		Doc:    "price(item): price of an item in cents",
		Params: []rlm.Param{{Name: "item"}},
		Call: func(_ context.Context, call rlm.ToolCall) (any, error) {
			var item string
			err := json.Unmarshal(call.Kwargs["item"], &item)
			return 10 * len(item), err
		},
	}
	model := llm.NewScripted("model", llm.Rule{Reply: "```repl\nFINAL(sum(price(item) for item in context))\n```"})
	e, err := rlm.New(rlm.Options{
		Models:     func(int, string) (llm.Model, error) { return model, nil },
		Sandboxes:  rlm.FromBackend(local.New(local.Options{Dir: dir})), // without isolation, for development
		Tools:      []rlm.Tool{price},
		Dir:        dir,
		PlainBelow: -1, // run code also over a small context
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := e.Run(context.Background(), rlm.Question{
		Query:  "What does it cost?",
		Inputs: []rlm.Input{rlm.List([]string{"pen", "book"})},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Answer)
	// Output: 70
}
