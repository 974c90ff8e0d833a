// Command tools shows a Go function that the code of a run can call by its name. The function reads
// data on the host, which the sandbox cannot reach. The model is scripted.
//
//	go run ./examples/tools
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

var stock = map[string]int{"lamps": 3, "ropes": 12, "tents": 0}

// inStock is the tool. The model sees its documentation. An error is raised in the code as ToolError.
var inStock = rlm.Tool{
	Name:   "in_stock",
	Doc:    "in_stock(item): how many of an item are in stock",
	Params: []rlm.Param{{Name: "item"}},
	Call: func(_ context.Context, call rlm.ToolCall) (any, error) {
		var item string
		if err := json.Unmarshal(call.Kwargs["item"], &item); err != nil {
			return nil, err
		}
		n, ok := stock[item]
		if !ok {
			return nil, fmt.Errorf("unknown item %q", item)
		}
		return n, nil
	},
}

// reply is the reply of the scripted model.
const reply = "```repl\nFINAL([item for item in context if in_stock(item) < 5])\n```"

func run(ctx context.Context) error {
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	model := llm.NewScripted("model", llm.Rule{Reply: reply})
	engine, err := rlm.New(rlm.Options{
		Models:     func(int, string) (llm.Model, error) { return model, nil },
		Sandboxes:  rlm.FromBackend(backend),
		Tools:      []rlm.Tool{inStock},
		Dir:        dir,
		PlainBelow: -1, // run code also over a small context
	})
	if err != nil {
		return err
	}
	items := rlm.List([]string{"lamps", "ropes", "tents"})
	res, err := engine.Run(ctx, rlm.Question{Query: "What do we have to order?", Inputs: []rlm.Input{items}})
	if err != nil {
		return err
	}
	fmt.Println("answer:", res.Answer)
	return nil
}
