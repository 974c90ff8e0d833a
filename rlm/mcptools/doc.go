// Package mcptools makes the tools of MCP servers available to the code of runs, as Python functions.
//
// A server is a program that is used over stdin and stdout, or a URL. Each of its tools becomes a function SERVER_TOOL.
// The parameters of the function are those of the tool's schema, and its docstring is the tool's description. Code in
// the sandbox calls the function, the host calls the tool, and the result is returned as a Python value. Neither the
// server nor its secrets are in the sandbox, and the sandbox needs no network.
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
// The function raises ToolError if the tool fails, does not answer in time or returns too much, and also if the server
// has died. The next call then starts the server or connects to it again. The results of tools are in the events of the
// run, so that a replay needs no server.
//
// A program gets only a few of our environment variables, and those of its Server. Keys of models are not among them.
package mcptools
