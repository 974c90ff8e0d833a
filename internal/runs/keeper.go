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

// subModels is the label under which a run remembers which models it gave to its calls.
const subModels = "sub_model"

// DefaultMost is how many runs a tenant may have at once.
const DefaultMost = 32

// Options makes a Keeper.
type Options struct {
	Models *llm.Set
	Route  llm.Route // where a question names no model
	// Backend chooses what makes sandboxes. It is asked for each run, because it may not work at first.
	Backend func(ctx context.Context) (sandbox.Backend, error)
	// Choose is Backend for a run that says itself which backends it wants; nil: none can.
	Choose func(ctx context.Context, h v1.RunHost) (sandbox.Backend, error)
	// Known are the backends that may hold sandboxes of earlier runs.
	Known   []sandbox.Backend
	Spec    sandbox.Spec
	DataDir string
	// Limits holds for runs that set none; fields that are not set here are those of package rlm.
	Limits v1.RunLimits
	// PlainBelow is the size of a context in tokens that needs no run; 0: as package rlm has it, negative: none is so small.
	PlainBelow int64
	// CacheBytes of replies to sub-calls are kept for later runs, of each tenant apart; 0: none are.
	CacheBytes int64
	Most       int // runs of a tenant at once; 0: DefaultMost
	// Admit takes the place of a run among those that the quotas of its tenant and key allow; nil: nothing bounds them.
	Admit func(ctx context.Context, d session.RunDemand) (*session.RunPlace, error)
	// Gate judges code before it runs; nil: nobody does. Sessions have their own.
	Gate gate.Gate
	// Note hears what it said, for the audit log; nil: nobody does.
	Note func(ctx context.Context, e session.Entry)
	// MCP are the servers whose tools runs get; nil: none. The keeper closes it.
	MCP *mcptools.Set
	// MoreMCP opens them again, with those that a run brings along; nil: none can.
	MoreMCP func(more []mcptools.Server) (*mcptools.Set, error)
	// MCPAway gives them also to runs that were asked for from elsewhere.
	MCPAway bool
	// Resume leaves runs to the next keeper, and lets Recover go on with those of the one before.
	Resume bool
	Logger *slog.Logger
}

// Keeper looks after runs. Its methods may be called from several goroutines.
type Keeper struct {
	o    Options
	ctx  context.Context // ends with the keeper, and leaves runs to the next
	stop context.CancelCauseFunc
	// brief ends with the keeper, too, and with it the runs that nobody goes on with.
	brief context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
	pause time.Duration // before the second try to go on with a run

	mu     sync.Mutex
	closed bool                     // guarded by mu
	live   map[key]*liveRun         // guarded by mu
	late   map[key]*late            // guarded by mu; runs of earlier servers that are still to go on
	count  map[string]int           // guarded by mu; runs that are under way, by tenant
	taken  map[string]*use          // guarded by mu; sessions, by id, in which a run works
	said   map[string][]llm.Message // guarded by mu; questions and answers of a session, by its id
	caches map[replies]*rlm.Cache   // guarded by mu
}

type key struct{ tenant, id string }

// liveRun is a run of this keeper. Run.Done is closed when the run has ended, over when the keeper no longer counts it.
type liveRun struct {
	*rlm.Run
	over chan struct{}
}

// replies names the cache of a tenant that keeps so many bytes.
type replies struct {
	tenant string
	bytes  int64
}

// New makes a keeper. Close it.
func New(o Options) *Keeper {
	if o.Most == 0 {
		o.Most = DefaultMost
	}
	if o.PlainBelow == 0 {
		o.PlainBelow = rlm.DefaultPlainBelow
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Limits = o.Limits.Over(rlm.DefaultLimits())
	k := &Keeper{o: o, pause: firstPause, live: map[key]*liveRun{}, late: map[key]*late{}, count: map[string]int{}, taken: map[string]*use{}, said: map[string][]llm.Message{}, caches: map[replies]*rlm.Cache{}}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	k.brief, k.end = context.WithCancel(context.Background())
	return k
}

// Close leaves runs to the next keeper, stops those that this is not for, and waits for all of them. What was stopped can be resumed.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.stop(rlm.ErrSuspended)
	k.end()
	k.wg.Wait()
	k.o.Models.Close()
	if k.o.MCP != nil {
		k.o.MCP.Close()
	}
}

// Busy reports whether a run is under way.
func (k *Keeper) Busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.live) > 0
}

// Limits returns those of a run that sets none. Every field is set.
func (k *Keeper) Limits() v1.RunLimits { return k.o.Limits }

// Small says that so many tokens need no run.
func (k *Keeper) Small(tokens int64) bool { return tokens < k.o.PlainBelow }

// Models gives the models by name.
func (k *Keeper) Models() *llm.Set { return k.o.Models }

// Names lists the models that are configured, the default one first.
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

// dir is where the runs of a tenant are kept. Those of the user's own are where the command line keeps them.
func (k *Keeper) dir(tenant string) string {
	if tenant == session.DefaultTenant {
		return filepath.Join(k.o.DataDir, "runs")
	}
	return filepath.Join(k.o.DataDir, "tenants", "t-"+tenant, "runs") // a tenant may be called ".."
}

// cache is what the runs of a tenant share; nil: each has its own. It lies beside the runs.
func (k *Keeper) cache(tenant string, bytes int64) (*rlm.Cache, error) {
	if bytes <= 0 {
		return nil, nil
	}
	at := replies{tenant, bytes}
	k.mu.Lock()
	c := k.caches[at]
	k.mu.Unlock()
	if c != nil {
		return c, nil
	}
	// It looks at each reply that is kept, and nobody is to wait for that who needs none.
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

// reader is an engine for what is on disk.
func (k *Keeper) reader(tenant string) (*rlm.Engine, error) {
	return rlm.New(rlm.Options{
		Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }, Sandboxes: rlm.FromBackend(nil), Dir: k.dir(tenant), Logger: k.o.Logger,
	})
}

// MayChoose refuses models that are programs on this machine, to those who ask from elsewhere.
func (k *Keeper) MayChoose(name string) error {
	if !k.o.Models.RunsHere(name) {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeForbidden, Op: "choose model", Message: "the model is a program on the server's machine, which only callers on its socket may choose", Remedy: "name another model, or none",
	}
}

// List gives the tenant's runs, the newest first.
func (k *Keeper) List(tenant string) iter.Seq2[*rlm.Info, error] {
	e, err := k.reader(tenant)
	if err != nil {
		return func(yield func(*rlm.Info, error) bool) { yield(nil, err) }
	}
	return e.Runs()
}

// Show tells about one run.
func (k *Keeper) Show(tenant, id string) (*rlm.Info, error) {
	e, err := k.reader(tenant)
	if err != nil {
		return nil, err
	}
	return e.Show(id)
}

// Export writes a run in the layout of the official Python library.
func (k *Keeper) Export(tenant, id string, w io.Writer) error {
	e, err := k.reader(tenant)
	if err != nil {
		return err
	}
	return e.Export(id, w)
}

// Delete removes a run that nobody works on.
func (k *Keeper) Delete(ctx context.Context, tenant, id string) error {
	var host *v1.RunHost
	if who, err := readAsked(filepath.Join(k.dir(tenant), id)); err == nil {
		host = who.Host
	}
	b, err := k.backend(ctx, host)
	if err != nil {
		return err
	}
	e, err := rlm.New(rlm.Options{
		Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }, Sandboxes: rlm.FromBackend(b), Dir: k.dir(tenant), Logger: k.o.Logger,
	})
	if err != nil {
		return err
	}
	return e.Delete(ctx, id)
}

// Events gives the events of a run after a number. With follow those to come as well, of a run that is under way here.
func (k *Keeper) Events(ctx context.Context, tenant, id string, after int64, follow bool) iter.Seq2[v1.RunEvent, error] {
	k.mu.Lock()
	r := k.live[key{tenant, id}]
	k.mu.Unlock()
	if r != nil && follow {
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

// Cancel stops a run that is under way here, and tells how it has ended. One that has ended already is no error. With one that was interrupted
// no server goes on by itself any more.
func (k *Keeper) Cancel(ctx context.Context, tenant, id string) (*rlm.Info, error) {
	at := key{tenant, id}
	for {
		k.mu.Lock()
		r, l := k.live[at], k.late[at]
		k.mu.Unlock()
		if r != nil {
			r.Cancel()
			if err := await(ctx, r.over); err != nil {
				return nil, err
			}
			return k.Show(tenant, id)
		}
		if l != nil {
			l.stop()
			if err := await(ctx, l.over); err != nil {
				return nil, err
			}
			continue // it may have begun just then
		}
		info, err := k.Show(tenant, id)
		if err != nil || info.Result != nil || info.Running {
			return info, err
		}
		dir := filepath.Join(k.dir(tenant), id)
		who, err := askedFor(dir, info.Labels)
		if err != nil || who == nil {
			return info, err
		}
		who.Nobody = true
		if err := who.note(dir); err != nil {
			return nil, err
		}
		// Who has read before what stands there now is found above.
	}
}

// await waits for something, as long as ctx lasts.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
