package runs

import (
	"cmp"
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox"
)

// backend chooses what makes the sandboxes of a run.
func (k *Keeper) backend(ctx context.Context, h *v1.RunHost) (sandbox.Backend, error) {
	if h == nil || len(h.Backends) == 0 && h.MinIsolation == "" && h.AllowNoIsolation == nil && h.AllowContainer == nil {
		return k.o.Backend(ctx)
	}
	if k.o.Choose == nil {
		return nil, unsupported("runs of this server cannot choose a backend")
	}
	return k.o.Choose(ctx, *h)
}

func unsupported(message string) error {
	return &v1.Error{Code: v1.CodeNotSupported, Op: "begin run", Message: message}
}

// spec is what the sandboxes of a run are made from.
func (k *Keeper) spec(h *v1.RunHost) sandbox.Spec {
	if h == nil || h.Spec == nil {
		return k.o.Spec
	}
	s := *h.Spec
	s.Limits = s.Limits.Over(k.o.Spec.Limits)
	return s
}

// machine returns the limits of a run's own sandbox.
func (k *Keeper) machine(h *v1.RunHost) sandbox.Limits { return k.spec(h).WithDefaults().Limits }

// tools returns the tools of MCP servers for a run. The caller must call done when it has ended.
func (k *Keeper) tools(ctx context.Context, who asked) (tools []rlm.Tool, done func(), err error) {
	set, done := k.o.MCP, func() {}
	if who.Away && !k.o.MCPAway {
		set = nil
	}
	if who.Host != nil && len(who.Host.MCP) > 0 {
		if k.o.MoreMCP == nil {
			return nil, nil, unsupported("runs of this server cannot bring MCP servers along")
		}
		var more []mcptools.Server
		for _, s := range who.Host.MCP {
			more = append(more, mcptools.Server{Name: s.Name, Command: s.Command, Dir: s.Dir, URL: s.URL})
		}
		if set, err = k.o.MoreMCP(more); err != nil {
			return nil, nil, err
		}
		done = set.Close
	}
	if set == nil {
		return nil, done, nil
	}
	if tools, err = set.Tools(ctx); err != nil {
		done()
		return nil, nil, err
	}
	return tools, done, nil
}

// engine makes one that works for whoever asks. The next server goes on with its runs if they last. The caller must call done when its run has
// ended.
func (k *Keeper) engine(ctx context.Context, tenant string, who asked, lasts bool) (e *rlm.Engine, done func(), err error) {
	route := llm.Route{Root: who.Model, Sub: who.Sub}
	if who.Away {
		for _, name := range append([]string{route.Root}, route.Sub...) {
			if err := k.MayChoose(name); err != nil {
				return nil, nil, err
			}
		}
	}
	if route.Root == "" {
		route.Root = k.o.Route.Root
	}
	if len(route.Sub) == 0 {
		route.Sub = k.o.Route.Sub
	}
	r, err := k.o.Models.Route(ctx, route)
	if err != nil {
		return nil, nil, err
	}
	models := rlm.Routed(r)
	if who.Away {
		models = func(depth int, name string) (llm.Model, error) {
			if err := k.MayChoose(name); err != nil {
				return nil, err
			}
			return r.Named(name, depth)
		}
	}
	o := rlm.Options{Models: models, PlainBelow: k.o.PlainBelow, Durable: lasts && k.o.Resume}
	cache := k.o.CacheBytes
	if h := who.Host; h != nil {
		if h.PlainBelow != nil {
			o.PlainBelow = cmp.Or(*h.PlainBelow, -1)
		}
		if h.CacheBytes != nil {
			cache = *h.CacheBytes
		}
	}
	if o.Cache, err = k.cache(tenant, cache); err != nil {
		return nil, nil, err
	}
	b, err := k.backend(ctx, who.Host)
	if err != nil {
		return nil, nil, err
	}
	if o.Tools, done, err = k.tools(ctx, who); err != nil {
		return nil, nil, err
	}
	if e, err = k.engineOn(b, tenant, who.Host, o); err != nil {
		done()
		return nil, nil, err
	}
	return e, done, nil
}

// engineOn makes an engine with what all engines of a tenant have in common.
func (k *Keeper) engineOn(b sandbox.Backend, tenant string, h *v1.RunHost, o rlm.Options) (*rlm.Engine, error) {
	o.Sandboxes, o.Spec, o.Limits, o.Dir = rlm.FromBackend(b), k.spec(h), k.o.Limits, k.dir(tenant)
	o.Gate, o.Tenant, o.Logger = k.gate(), tenant, k.o.Logger
	return rlm.New(o)
}
