package runs

import (
	"cmp"
	"context"
	"sync/atomic"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox"
)

// backend returns the backend for the sandboxes of a run.
func (k *Keeper) backend(ctx context.Context, h *v1.RunHost) (sandbox.Backend, error) {
	if h == nil ||
		len(h.Backends) == 0 && h.MinIsolation == "" && h.AllowNoIsolation == nil && h.AllowContainer == nil {
		return k.o.Backend(ctx)
	}
	if k.o.Choose == nil {
		return nil, unsupported("this server does not support the choice of a backend for a run")
	}
	return k.o.Choose(ctx, *h)
}

func unsupported(message string) error {
	return &v1.Error{Code: v1.CodeNotSupported, Op: "begin run", Message: message}
}

// spec returns the spec for the sandboxes of a run.
func (k *Keeper) spec(h *v1.RunHost) sandbox.Spec {
	if h == nil || h.Spec == nil {
		return k.o.Spec
	}
	s := *h.Spec
	s.Limits = s.Limits.Over(k.o.Spec.Limits)
	return s
}

// sandboxLimits returns the limits of a run's own sandbox.
func (k *Keeper) sandboxLimits(h *v1.RunHost) sandbox.Limits {
	return k.spec(h).WithDefaults().Storage(true)
}

// tools returns the tools of MCP servers for a run. The caller must call done when the run has ended.
func (k *Keeper) tools(ctx context.Context, ord order) (tools []rlm.Tool, done func(), err error) {
	set, done := k.o.MCP, func() {}
	if ord.Remote && !k.o.MCPRemote {
		set = nil
	}
	if ord.Host != nil && len(ord.Host.MCP) > 0 {
		if k.o.OpenMCP == nil {
			return nil, nil, unsupported("this server does not support MCP servers of a run")
		}
		var more []mcptools.Server
		for _, s := range ord.Host.MCP {
			more = append(more, mcptools.Server{Name: s.Name, Command: s.Command, Dir: s.Dir, URL: s.URL})
		}
		if set, err = k.o.OpenMCP(more); err != nil {
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

// engine returns an engine for an order. If durable is set, the next server resumes the run of the engine. The caller
// must call done when the run has ended.
func (k *Keeper) engine(
	ctx context.Context, tenant string, ord order, durable bool,
) (e *rlm.Engine, done func(), err error) {
	route := llm.Route{Root: ord.Model, Sub: ord.Sub}
	if ord.Remote {
		for _, name := range append([]string{route.Root}, route.Sub...) {
			if err := k.CheckRemoteModel(name); err != nil {
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
	if ord.Remote {
		models = func(depth int, name string) (llm.Model, error) {
			if err := k.CheckRemoteModel(name); err != nil {
				return nil, err
			}
			return r.Named(name, depth)
		}
	}
	o := rlm.Options{Models: models, PlainBelow: k.o.PlainBelow, Durable: durable && k.o.Resume}
	cache := k.o.CacheBytes
	if h := ord.Host; h != nil {
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
	b, err := k.backend(ctx, ord.Host)
	if err != nil {
		return nil, nil, err
	}
	if o.Tools, done, err = k.tools(ctx, ord); err != nil {
		return nil, nil, err
	}
	if e, err = k.newEngine(ctx, b, tenant, ord.Host, o); err != nil {
		done()
		return nil, nil, err
	}
	return e, done, nil
}

// newEngine returns an engine with options o, and with the options that all engines of a tenant share.
func (k *Keeper) newEngine(
	ctx context.Context, b sandbox.Backend, tenant string, h *v1.RunHost, o rlm.Options,
) (*rlm.Engine, error) {
	boxes, err := k.sandboxes(ctx, b, tenant)
	if err != nil {
		return nil, err
	}
	o.Sandboxes, o.Spec, o.Limits, o.Dir = boxes, k.spec(h), k.o.Limits, k.dir(tenant)
	o.Gate, o.Tenant, o.Logger, o.Dialect = k.gate(), tenant, k.o.Logger, k.o.Dialect
	o.Prompts.Profiles = k.o.Prompts
	o.MaxPrompts, o.Secrets = k.o.MaxPrompts, k.o.Models.Secrets()
	return rlm.New(o)
}

// sandboxes returns what makes the sandboxes of a run. Their network is bounded by the maxima and quotas of its owner.
func (k *Keeper) sandboxes(ctx context.Context, b sandbox.Backend, tenant string) (rlm.Sandboxes, error) {
	all := rlm.FromBackend(b)
	if k.o.Network == nil {
		return all, nil
	}
	out := &boundedSandboxes{Sandboxes: all}
	var err error
	out.terms, err = k.o.Network(ctx, tenant, func() string {
		if id, _ := out.run.Load().(string); id != "" {
			return id
		}
		return "run"
	})
	return out, err
}

// boundedSandboxes makes sandboxes with the terms of a run's owner.
type boundedSandboxes struct {
	rlm.Sandboxes
	terms sandbox.NetworkTerms
	run   atomic.Value // string: id of the run, once it has opened a sandbox
}

// Open implements rlm.Sandboxes.
func (s *boundedSandboxes) Open(ctx context.Context, spec sandbox.Spec) (rlm.Sandbox, error) {
	s.run.Store(spec.Labels[rlm.LabelRun])
	return s.Sandboxes.Open(sandbox.WithNetworkTerms(ctx, s.terms), spec)
}

// Attach implements rlm.Sandboxes.
func (s *boundedSandboxes) Attach(ctx context.Context, id string) (rlm.Sandbox, error) {
	return s.Sandboxes.Attach(sandbox.WithNetworkTerms(ctx, s.terms), id)
}

// Restore implements rlm.Sandboxes.
func (s *boundedSandboxes) Restore(ctx context.Context, snapshot string) (rlm.Sandbox, error) {
	return s.Sandboxes.Restore(sandbox.WithNetworkTerms(ctx, s.terms), snapshot)
}
