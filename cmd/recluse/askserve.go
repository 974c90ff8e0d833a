package main

import (
	"context"
	"log/slog"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/session"
)

// keeper returns the keeper of the runs of a server, and lets it recover runs of a previous server.
func (a *app) keeper(cfg *config.Config, data string, backends []sandbox.Backend, req backend.Requirements,
	checker *gate.Checker, m *session.Manager, log *slog.Logger,
) (*runs.Keeper, error) {
	set, err := cfg.Models.Open()
	if err != nil {
		return nil, err
	}
	servers, err := cfg.MCP.Open(nil, thisBuild().Version, log)
	if err != nil {
		set.Close()
		return nil, err
	}
	k := runs.New(runs.Options{
		MCP:        servers,
		MCPRemote:  cfg.MCP.Network,
		Resume:     cfg.Models.Resume,
		PlainBelow: cfg.Models.Small(),
		Dialect:    cfg.Models.Dialect,
		Prompts:    cfg.Models.Prompts,
		CacheBytes: int64(cfg.Models.Cache),
		MaxPrompts: cfg.Models.MaxPrompts(),
		Models:     set,
		Route:      llm.Route{Sub: cfg.Models.Sub},
		DataDir:    data,
		Spec:       sandbox.Spec{Limits: cfg.SandboxLimits()},
		Limits:     cfg.Models.Limits,
		Gate:       checker,
		Note:       m.Note,
		Admit:      m.AdmitRun,
		Network:    m.NetworkTerms,
		Logger:     log,
		Known:      backends,
		Backend: func(ctx context.Context) (sandbox.Backend, error) {
			b, _, err := backend.Select(ctx, backends, req)
			return b, err
		},
		Choose: func(ctx context.Context, h v1.RunHost) (sandbox.Backend, error) {
			req, err := requirementsOf(req, h)
			if err != nil {
				return nil, err
			}
			req.SkipTrial = true
			b, _, err := backend.Select(ctx, backends, req)
			return b, err
		},
		OpenMCP: func(more []mcptools.Server) (*mcptools.Set, error) {
			return cfg.MCP.Open(more, thisBuild().Version, log)
		},
	})
	k.Recover()
	return k, nil
}
