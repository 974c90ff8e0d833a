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
		Short: "Serve your sandbox to an agent, over stdin and stdout",
		Long: `Speak the Model Context Protocol over stdin and stdout, for an agent that starts this program. One process is one session: it is made
by the first call that needs it and ended with the process, unless --keep or the name of one that was there says otherwise. For agents on
other machines, recluse serve --listen serves the same at /mcp.`,
		Example: `  recluse mcp
  recluse mcp --session work --keep
  npx @modelcontextprotocol/inspector --cli recluse mcp --method tools/list`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if calls < 0 {
				return usage("--sampling-calls: a number of calls is needed")
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
			o.Version, o.TerraphimNames, o.SamplingCalls, o.Logger = thisBuild().Version, terraphim, samplingCalls(calls), a.logger()
			if a.cfg.Client.URL == "" {
				o.Engine = a.mcpEngine(&sandbox)
			}
			return cause(ctx, mcp.Serve(ctx, client, a.stdin, a.stdout, o))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Session, "session", "", "`name` of the session (default one of its own)")
	f.BoolVar(&o.Keep, "keep", false, "do not end the session with this process")
	f.BoolVar(&terraphim, "terraphim-names", false, "also offer the tools by the names terraphim gives them (rlm_code, rlm_bash, …)")
	f.IntVar(&calls, "sampling-calls", mcp.DefaultSamplingCalls, "how `often` the agent's own model may be asked")
	sandbox.register(f)
	for _, o := range sandbox.options() {
		f.Lookup(o.name()).Hidden = o.scope() != "" // of a single command, or said by the configuration of the server
	}
	a.completeSession(c, "session")
	return c
}

// mcpSpec says what a session that has to be made is made from: what the flags say, else the limits that are configured.
func (a *app) mcpSpec(f *sandboxFlags) (*sandbox.Spec, error) {
	if f.given("") != "" {
		spec, err := f.spec(a)
		return &spec, err
	}
	return configuredSpec(a.cfg), nil
}

// configuredSpec is nil where the configuration says nothing about sandboxes.
func configuredSpec(cfg *config.Config) *sandbox.Spec {
	if limits := cfg.SandboxLimits(); limits != (sandbox.Limits{}) {
		return &sandbox.Spec{Limits: limits}
	}
	return nil
}

// mcpEngine makes engines for the agent's own model. It is lent to one call at a time, so each has its own engine; sandboxes and what judges code
// are the same for all.
func (a *app) mcpEngine(f *sandboxFlags) func(context.Context, func(int, string) (llm.Model, error)) (*rlm.Engine, error) {
	var (
		mu sync.Mutex
		g  *ground
	)
	return func(ctx context.Context, models func(int, string) (llm.Model, error)) (*rlm.Engine, error) {
		mu.Lock()
		defer mu.Unlock()
		if g == nil {
			made, err := a.ground(ctx, f)
			if err != nil {
				return nil, err
			}
			g = made
		}
		return g.engine(ctx, rlm.Options{Models: models})
	}
}

// samplingCalls says none as package mcp does, where zero is the default.
func samplingCalls(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// mcpDoor serves MCP over HTTP at a server.
func mcpDoor(srv *server.Server, so server.Options, cfg *config.Config) *mcp.Handler {
	return mcp.NewHandler(srv.Handler(), mcp.Options{
		Version: so.Version, Logger: so.Logger, Spec: configuredSpec(cfg), TerraphimNames: cfg.Server.TerraphimNames,
		SamplingCalls: samplingCalls(cfg.Server.SamplingCalls), StartRun: so.Runs.StartLent,
	})
}
