package main

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/mcp"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

func (a *app) mcpCommand() *cobra.Command {
	var (
		sandbox   sandboxFlags
		o         mcp.StdioOptions
		terraphim bool
		calls     int
	)
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve a session to an agent with MCP, over stdin and stdout",
		Long: `Serve a session to an agent with MCP, over stdin and stdout.

The agent starts this program and speaks the Model Context Protocol (MCP) with it. The
first call that needs the session creates it. The session ends with this process, unless
--keep is given or it existed before. For agents on other machines, recluse serve --listen
offers the same at /mcp.`,
		Example: `  recluse mcp
  recluse mcp --session work --keep
  npx @modelcontextprotocol/inspector --cli recluse mcp --method tools/list`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if calls < 0 {
				return usage("--sampling-calls: must not be negative")
			}
			ctx := a.watch(c.Context())
			client, done, err := a.connect(ctx)
			if err != nil {
				return cause(ctx, err)
			}
			defer done()
			if o.Spec, err = a.mcpSpec(&sandbox); err != nil {
				return err
			}
			if o.Session == "" {
				o.Session = "mcp-" + strings.ToLower(rand.Text()[:12])
			}
			o.Version, o.Logger = thisBuild().Version, a.logger()
			o.TerraphimNames, o.SamplingCalls = terraphim, samplingCalls(calls)
			if a.cfg.Client.URL == "" {
				o.Engine = a.mcpEngine(&sandbox)
			}
			return cause(ctx, mcp.Serve(ctx, client, a.stdin, a.stdout, o))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Session, "session", "", "`name` of the session (default a new name)")
	f.BoolVar(&o.Keep, "keep", false, "do not end the session with this process")
	f.BoolVar(&terraphim, "terraphim-names", false,
		"also offer the tools by their terraphim names (rlm_code, rlm_bash, …)")
	f.IntVar(&calls, "sampling-calls", mcp.DefaultSamplingCalls, "maximum `number` of calls of the agent's own model")
	sandbox.register(f)
	for _, o := range sandbox.options() {
		// Flags with a scope are for a single command, or the configuration of the server decides.
		f.Lookup(o.name()).Hidden = o.scope() != ""
	}
	a.completeSession(c, "session")
	return c
}

// mcpSpec returns the spec of a new session: that of the flags if any is given, else that of the configuration.
func (a *app) mcpSpec(f *sandboxFlags) (*sandbox.Spec, error) {
	if f.given("") != "" {
		spec, err := f.spec(a)
		return &spec, err
	}
	return configuredSpec(a.cfg), nil
}

// configuredSpec returns a spec with what is configured, or nil if nothing is.
func configuredSpec(cfg *config.Config) *sandbox.Spec {
	if spec := cfg.SandboxSpec(); spec.Sudo || spec.Limits != (sandbox.Limits{}) {
		return &spec
	}
	return nil
}

// mcpEngine returns a function that makes RLM engines for the agent's own model. The agent lends its model to one call
// at a time, so each call has its own engine. All engines share the backend and the gate.
func (a *app) mcpEngine(
	f *sandboxFlags,
) func(context.Context, func(int, string) (llm.Model, error)) (*rlm.Engine, error) {
	var (
		mu sync.Mutex
		g  *engineParts
	)
	return func(ctx context.Context, models func(int, string) (llm.Model, error)) (*rlm.Engine, error) {
		mu.Lock()
		defer mu.Unlock()
		if g == nil {
			made, err := a.engineParts(ctx, f)
			if err != nil {
				return nil, err
			}
			g = made
		}
		return g.engine(ctx, rlm.Options{Models: models})
	}
}

// samplingCalls converts the value of the flag for package mcp, where 0 is the default and -1 means none.
func samplingCalls(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// mcpHandler returns the handler that serves MCP over HTTP.
func mcpHandler(srv *server.Server, so server.Options, cfg *config.Config) *mcp.Handler {
	return mcp.NewHandler(srv.Handler(), mcp.Options{
		Version:        so.Version,
		Logger:         so.Logger,
		Spec:           configuredSpec(cfg),
		TerraphimNames: cfg.Server.TerraphimNames,
		SamplingCalls:  samplingCalls(cfg.Server.SamplingCalls),
		StartRun:       so.Runs.StartLent,
	})
}
