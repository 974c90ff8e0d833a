package runs

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// subModels is the label of a run that holds the models of its sub-calls.
const subModels = "sub_model"

// DefaultMaxRuns is the default of Options.MaxRuns.
const DefaultMaxRuns = 32

// Options configures a Keeper.
type Options struct {
	Models *llm.Set
	Route  llm.Route // models of a question that names none
	// Backend returns the backend for sandboxes. It is called for each run, because the backend may not work at first.
	Backend func(ctx context.Context) (sandbox.Backend, error)
	// Choose replaces Backend for a run that has requirements for its backend; nil: such runs are not supported.
	Choose func(ctx context.Context, h v1.RunHost) (sandbox.Backend, error)
	// Known are the backends that may have sandboxes of earlier runs.
	Known   []sandbox.Backend
	Spec    sandbox.Spec
	DataDir string
	// Limits are the defaults of a run's limits. Fields that are not set have the defaults of package rlm.
	Limits v1.RunLimits
	// PlainBelow is the size of a context in tokens below which no run is needed; 0: the default of package rlm,
	// negative: every context needs a run.
	PlainBelow int64
	// Prompts are rules that select the prompt profile, see rlm.Prompts.
	Prompts []string
	// Dialect makes command words in replies actions, see rlm.Options.
	Dialect bool
	// CacheBytes is the size of each tenant's cache of replies to sub-calls, which later runs use; 0: no cache.
	CacheBytes int64
	// MaxPrompts bounds the prompts that are stored with a run, see rlm.Options.
	MaxPrompts int64
	MaxRuns    int // live runs of one tenant; 0: DefaultMaxRuns
	// Admit reserves a place for a run in the quotas of its tenant and key; nil: there are no quotas.
	Admit func(ctx context.Context, d session.RunDemand) (*session.RunPlace, error)
	// Network returns the terms of the network of a run's sandboxes; nil: there are none. name returns the name of the
	// run, for people.
	Network func(ctx context.Context, tenant string, name func() string) (sandbox.NetworkTerms, error)
	// Gate judges code before it runs; nil: all code is allowed. Sessions have their own gate.
	Gate gate.Gate
	// Note records decisions of the gate in the audit log; nil: they are not recorded.
	Note func(ctx context.Context, e session.Entry)
	// MCP has the MCP servers whose tools runs get; nil: none. The keeper closes it.
	MCP *mcptools.Set
	// OpenMCP opens the servers of MCP again, together with more, for a run that names additional servers; nil: such
	// runs are not supported.
	OpenMCP func(more []mcptools.Server) (*mcptools.Set, error)
	// MCPRemote provides the tools also to runs of callers over the network.
	MCPRemote bool
	// Resume makes Close leave runs to the next keeper, and makes Recover resume the runs of the previous one.
	Resume bool
	Logger *slog.Logger
}

// Keeper manages runs. Its methods may be called from several goroutines.
type Keeper struct {
	o    Options
	ctx  context.Context // for durable runs; when the keeper closes, they are left to the next keeper
	stop context.CancelCauseFunc
	// volatile is the ctx for runs that no other server resumes. They end when the keeper closes.
	volatile     context.Context
	stopVolatile context.CancelFunc
	wg           sync.WaitGroup
	pause        time.Duration // before the second attempt to resume a run

	mu      sync.Mutex
	closed  bool                     // guarded by mu
	live    map[key]*liveRun         // guarded by mu
	pending map[key]*pendingRun      // guarded by mu; runs of earlier servers that this one tries to resume
	count   map[string]int           // guarded by mu; live runs, by tenant
	inUse   map[string]*sessionUse   // guarded by mu; sessions in which a run works, by id
	history map[string][]llm.Message // guarded by mu; earlier questions and answers of a session, by its id
	caches  map[cacheKey]*rlm.Cache  // guarded by mu
}

type key struct{ tenant, id string }

// liveRun is a run of this keeper. Run.Done is closed when the run has ended; removed is closed when the keeper has
// removed the run from its maps.
type liveRun struct {
	*rlm.Run
	removed chan struct{}
}

// cacheKey identifies a cache by its tenant and its size.
type cacheKey struct {
	tenant string
	bytes  int64
}

// New returns a keeper. The caller must close it.
func New(o Options) *Keeper {
	if o.MaxRuns == 0 {
		o.MaxRuns = DefaultMaxRuns
	}
	if o.PlainBelow == 0 {
		o.PlainBelow = rlm.DefaultPlainBelow
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Limits = o.Limits.Over(rlm.DefaultLimits())
	k := &Keeper{
		o:       o,
		pause:   firstPause,
		live:    map[key]*liveRun{},
		pending: map[key]*pendingRun{},
		count:   map[string]int{},
		inUse:   map[string]*sessionUse{},
		history: map[string][]llm.Message{},
		caches:  map[cacheKey]*rlm.Cache{},
	}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	k.volatile, k.stopVolatile = context.WithCancel(context.Background())
	return k
}

// Close leaves durable runs to the next keeper, stops the others, and waits for all of them. Stopped runs can be
// resumed.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.stop(rlm.ErrSuspended)
	k.stopVolatile()
	k.wg.Wait()
	k.o.Models.Close()
	if k.o.MCP != nil {
		k.o.MCP.Close()
	}
}

// Busy reports whether a run is live.
func (k *Keeper) Busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.live) > 0
}

// Limits returns the limits of a run that sets none. Every field is set.
func (k *Keeper) Limits() v1.RunLimits { return k.o.Limits }

// Small reports whether a context of this size needs no run.
func (k *Keeper) Small(tokens int64) bool { return tokens < k.o.PlainBelow }

// Models returns the configured models.
func (k *Keeper) Models() *llm.Set { return k.o.Models }

// Names returns the names of the configured models, the default one first.
func (k *Keeper) Names(ctx context.Context) ([]string, error) {
	r, err := k.o.Models.Route(ctx, k.o.Route)
	if err != nil {
		return nil, err
	}
	var names []string
	seen := map[string]bool{}
	for depth := range len(k.o.Route.Sub) + 1 {
		if name := r.At(depth).Info().Name; !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, nil
}

// dir returns the directory for the runs of a tenant. The default tenant uses the directory of the command line.
func (k *Keeper) dir(tenant string) string {
	if tenant == session.DefaultTenant {
		return filepath.Join(k.o.DataDir, "runs")
	}
	return filepath.Join(k.o.DataDir, "tenants", "t-"+tenant, "runs") // a tenant may be called ".."
}

// cache returns the cache that the runs of a tenant share; nil: each run has its own. It is stored beside the runs.
func (k *Keeper) cache(tenant string, bytes int64) (*rlm.Cache, error) {
	if bytes <= 0 {
		return nil, nil
	}
	at := cacheKey{tenant, bytes}
	k.mu.Lock()
	c := k.caches[at]
	k.mu.Unlock()
	if c != nil {
		return c, nil
	}
	// Opening a cache reads every stored reply. It happens without the mutex, so that other calls do not wait for it.
	c, err := rlm.OpenCache(filepath.Join(filepath.Dir(k.dir(tenant)), rlm.CacheDir), bytes)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if first := k.caches[at]; first != nil {
		return first, nil
	}
	k.caches[at] = c
	return c, nil
}

// reader returns an engine that can only read the stored runs of a tenant.
func (k *Keeper) reader(tenant string) (*rlm.Engine, error) {
	return rlm.New(rlm.Options{
		Models:    func(int, string) (llm.Model, error) { return nil, rlm.NoModel() },
		Sandboxes: rlm.FromBackend(nil),
		Dir:       k.dir(tenant),
		Logger:    k.o.Logger,
	})
}

// CheckRemoteModel returns an error if callers over the network may not use a model, because it is a program on this
// machine.
func (k *Keeper) CheckRemoteModel(name string) error {
	if !k.o.Models.RunsHere(name) {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeForbidden,
		Op:      "choose model",
		Message: "the model is a program on the server's machine, which only callers on the UNIX socket may use",
		Remedy:  "name another model, or none",
	}
}

// List returns the tenant's runs, the newest first.
func (k *Keeper) List(tenant string) iter.Seq2[*rlm.Info, error] {
	e, err := k.reader(tenant)
	if err != nil {
		return func(yield func(*rlm.Info, error) bool) { yield(nil, err) }
	}
	return e.Runs()
}

// Show describes a run.
func (k *Keeper) Show(tenant, id string) (*rlm.Info, error) {
	e, err := k.reader(tenant)
	if err != nil {
		return nil, err
	}
	return e.Show(id)
}

// Export writes a run in the format of the official Python library.
func (k *Keeper) Export(tenant, id string, w io.Writer) error {
	e, err := k.reader(tenant)
	if err != nil {
		return err
	}
	return e.Export(id, w)
}

// Prompts returns the messages that a run has sent to models so far.
func (k *Keeper) Prompts(tenant, id string) (*v1.RunPrompts, error) {
	e, err := k.reader(tenant)
	if err != nil {
		return nil, err
	}
	return e.Prompts(id)
}

// Delete removes a run that is not live.
func (k *Keeper) Delete(ctx context.Context, tenant, id string) error {
	var host *v1.RunHost
	if ord, err := readOrder(filepath.Join(k.dir(tenant), id)); err == nil {
		host = ord.Host
	}
	b, err := k.backend(ctx, host)
	if err != nil {
		return err
	}
	e, err := rlm.New(rlm.Options{
		Models:    func(int, string) (llm.Model, error) { return nil, rlm.NoModel() },
		Sandboxes: rlm.FromBackend(b),
		Dir:       k.dir(tenant),
		Logger:    k.o.Logger,
	})
	if err != nil {
		return err
	}
	return e.Delete(ctx, id)
}

// Events returns the events of a run after a sequence number. If follow is set and the run is live in this keeper,
// Events also returns later events, and with progress the progress between them.
func (k *Keeper) Events(
	ctx context.Context, tenant, id string, after int64, follow, progress bool,
) iter.Seq2[v1.RunEvent, error] {
	k.mu.Lock()
	r := k.live[key{tenant, id}]
	k.mu.Unlock()
	switch {
	case r != nil && follow && progress:
		return r.Watch(ctx, after)
	case r != nil && follow:
		return r.Events(ctx, after)
	}
	return func(yield func(v1.RunEvent, error) bool) {
		e, err := k.reader(tenant)
		if err != nil {
			yield(v1.RunEvent{}, err)
			return
		}
		for ev, err := range e.Events(id) {
			if err == nil && ev.Seq <= after {
				continue
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// Cancel stops a live run and describes it after its end. Cancelling an ended run is not an error. An interrupted run
// is no longer resumed by servers.
func (k *Keeper) Cancel(ctx context.Context, tenant, id string) (*rlm.Info, error) {
	at := key{tenant, id}
	for {
		k.mu.Lock()
		r, p := k.live[at], k.pending[at]
		k.mu.Unlock()
		if r != nil {
			r.Cancel()
			if err := await(ctx, r.removed); err != nil {
				return nil, err
			}
			return k.Show(tenant, id)
		}
		if p != nil {
			p.stop()
			if err := await(ctx, p.stopped); err != nil {
				return nil, err
			}
			continue // the run may have been resumed meanwhile
		}
		info, err := k.Show(tenant, id)
		if err != nil || info.Result != nil || info.Running {
			return info, err
		}
		dir := filepath.Join(k.dir(tenant), id)
		ord, err := openOrder(dir, info.Labels)
		if err != nil || ord == nil {
			return info, err
		}
		ord.Cancelled = true
		if err := ord.write(dir); err != nil {
			return nil, err
		}
		// A goroutine that read the old order before this write has a live or pending run. The next iteration finds it.
	}
}

// await waits until done is closed or ctx ends.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
