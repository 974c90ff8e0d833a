// Package mcptools gives the tools of MCP servers to the code of runs, as Python functions.
//
// A server is a program, spoken to over its stdin and stdout, or an address. Each of its tools becomes a function SERVER_TOOL with the schema's
// parameters as keywords and the description as docstring. Code in the sandbox calls it, the call is made here on the host, and the result
// comes back as a Python value. Neither the server nor its secrets are in the sandbox, and the sandbox needs no network.
//
//	set, err := mcptools.Open([]mcptools.Server{
//		{Name: "docs", Command: []string{"docs-server", "--stdio"}},
//		{Name: "tracker", URL: "https://tracker.example/mcp"},
//	}, mcptools.Options{})
//	…
//	defer set.Close()
//	tools, err := set.Tools(ctx)
//	…
//	e, err := rlm.New(rlm.Options{Tools: tools, …})
//
// A tool that fails, does not answer in time or gives too much raises ToolError in the code; so does one whose server has died, and the next call starts
// or connects to it again. What tools gave is in the run's events: a replay needs no server.
//
// A program gets a small part of our environment, and what its Server says; keys of models are not among that.
package mcptools
