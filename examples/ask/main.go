// Command ask shows a run of the RLM engine: a question over a text that no model reads as a whole.
// The models are scripted, so it needs no network. Sandbox, code and calls are real.
//
//	go run ./examples/ask
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	models, err := llm.Open(llm.Config{})
	if err != nil {
		return err
	}
	defer models.Close()
	// The root model sees what its code prints. The code asks the sub-model about the piece that it found.
	models.Add(llm.NewScripted("root",
		llm.Rule{Match: "Question:", Reply: "```repl\nhits = search('treasure')\nprint(len(context), len(hits))\n```"},
		llm.Rule{Reply: "```repl\nFINAL(llm_query('Where is it? ' + hits[0][1]))\n```"}))
	models.Add(llm.NewScripted("sub", llm.Rule{Match: `treasure is (.+)\.`, Reply: "It is {{1}}."}))
	// Real models have names such as anthropic/… and ollama/….
	route, err := models.Route(ctx, llm.Route{Root: "scripted/root", Sub: []string{"scripted/sub"}})
	if err != nil {
		return err
	}
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	engine, err := rlm.New(rlm.Options{
		Models:    rlm.Routed(route),
		Sandboxes: rlm.FromBackend(backend),
		Dir:       dir, // empty: below the user's data directory
	})
	if err != nil {
		return err
	}
	sea := strings.Repeat("Waves, and more waves.\n", 20_000)
	res, err := engine.Run(ctx, rlm.Question{
		Query:  "Where is the treasure?",
		Inputs: []rlm.Input{rlm.Text(sea + "The treasure is under the third palm tree.\n" + sea)},
	})
	if err != nil {
		return err
	}
	fmt.Println("answer:", res.Answer)
	fmt.Printf("cost:   %d turns, %d cells, %d model calls\n", res.Turns, res.Cells, res.Usage.Calls)
	fmt.Printf("read:   %.2f %% of %d bytes\n", res.Coverage.Percent, res.Coverage.Bytes)
	return nil
}
