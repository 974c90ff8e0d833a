package mcptools_test

import (
	"context"
	"fmt"

	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// A run whose code can search an issue tracker.
func Example() {
	ctx := context.Background()
	servers, err := mcptools.Open([]mcptools.Server{
		{Name: "tracker", Command: []string{"tracker-mcp", "--stdio"}, Env: map[string]string{"TRACKER_TOKEN": "…"}},
		{Name: "wiki", URL: "https://wiki.example/mcp"},
	}, mcptools.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer servers.Close()
	tools, err := servers.Tools(ctx) // starts or connects to the servers
	if err != nil {
		fmt.Println(err)
		return
	}
	models, err := llm.Open(llm.Config{Default: "ollama/qwen3:8b"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer models.Close()
	routing, err := models.Route(ctx, llm.Route{})
	if err != nil {
		fmt.Println(err)
		return
	}
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := rlm.New(rlm.Options{Models: rlm.Routed(routing), Sandboxes: rlm.FromBackend(backend), Tools: tools})
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := engine.Run(ctx, rlm.Question{Query: "Which of these tickets are still open?", Inputs: []rlm.Input{rlm.File("mails.txt")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Answer)
}
