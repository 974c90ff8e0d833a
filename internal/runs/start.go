package runs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// maxHistory is the maximum number of messages of earlier questions in a session that the next question can read.
const maxHistory = 64

// endWait is how long a run may take from its last event to its end.
const endWait = 500 * time.Millisecond

// Ask is a question, with the settings of the run that answers it.
type Ask struct {
	rlm.Question
	Sub     []string         // models of the sub-calls
	Host    *v1.RunHost      // settings for this machine; nil: the keeper's options
	Session *session.Session // session in which the run works; nil: it gets its own sandbox
	// Remote is set for callers over the network. Neither they nor the code of the run can use models that are programs
	// on this machine.
	Remote bool
	Waited bool // the run is useless without the caller that waits for it, so no other server resumes it
}

// Start starts a run for a tenant. The run continues when ctx ends.
func (k *Keeper) Start(ctx context.Context, tenant string, a Ask) (*rlm.Run, error) {
	q := a.Question
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	if len(a.Sub) > 0 {
		q.Labels[subModels] = strings.Join(a.Sub, " ")
	}
	durable := a.Session == nil && !a.Waited // a resumed run gets a new sandbox, without the state of the session
	ord := order{Remote: a.Remote, Key: session.ActorOf(ctx).Key, Model: q.Model, Sub: a.Sub, Host: a.Host}
	e, done, err := k.engine(ctx, tenant, ord, durable)
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, USD: q.Limits.Cost}
	if a.Session != nil {
		return k.startInSession(ctx, d, e, q, a.Session, done)
	}
	d.Limits = k.sandboxLimits(a.Host)
	start := starterOf(e, q)
	if durable {
		return k.beginDurable(ctx, d, ord, start, done)
	}
	return k.beginVolatile(ctx, d, start, func(*rlm.Result) { done() })
}

// starterOf returns a starter that starts a run for q.
func starterOf(e *rlm.Engine, q rlm.Question) starter {
	return func(ctx context.Context, maxCost *float64) (*rlm.Run, error) {
		q.Limits = withMaxCost(q.Limits, maxCost)
		return e.Start(ctx, q)
	}
}

// startInSession starts a run in a session. Its code finds the Python variables of earlier questions. done is called
// when the run has ended, or could not be started.
func (k *Keeper) startInSession(
	ctx context.Context, d session.RunDemand, e *rlm.Engine, q rlm.Question, s *session.Session, done func(),
) (*rlm.Run, error) {
	id := s.ID()
	use, err := k.reserveSession(ctx, s)
	if err != nil {
		done()
		return nil, err
	}
	k.mu.Lock()
	q.History = k.history[id]
	k.mu.Unlock()
	free := func() {
		done()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.inUse, id)
		close(use.freed)
	}
	m, release, err := inSession(ctx, s)
	if err != nil {
		free()
		return nil, err
	}
	query := q.Query
	// The session judges its own code. Code that runs elsewhere, in child runs or after the run is resumed, is judged
	// with the same mode and role.
	info := s.Info()
	q.Sandbox, q.Gate, q.Role = m, gate.Mode(info.Gate), info.Role
	switch {
	case info.StateFrom != nil:
		m.from.Store(info.StateFrom) // the session reports it only once, possibly to another caller
		q.Query += fmt.Sprintf("\n(This machine was lost and restored: variables and files are those of %s, "+
			"and later changes are gone.)", info.StateFrom.UTC().Format(time.RFC3339))
	case info.Previous != nil:
		m.previous.Store(new(info.Previous.String()))
		q.Query += "\n(This machine is new: variables and files of earlier questions are gone.)"
	}
	r, err := k.beginVolatile(ctx, d, starterOf(e, q), func(res *rlm.Result) {
		release()
		free()
		if res == nil || res.Reason != v1.ReasonAnswered {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		h := append(k.history[id],
			llm.Message{Role: llm.User, Content: query},
			llm.Message{Role: llm.Assistant, Content: res.Answer})
		k.history[id] = h[max(0, len(h)-maxHistory):]
	})
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	use.run = r
	k.mu.Unlock()
	return r, nil
}

// withMaxCost returns l with a maximum cost in US dollars; nil: l is unchanged.
func withMaxCost(l v1.RunLimits, maxCost *float64) v1.RunLimits {
	if maxCost != nil {
		l.Cost = maxCost
	}
	return l
}

// sessionUse is the use of a session by a run.
type sessionUse struct {
	run   *rlm.Run      // guarded by Keeper.mu; nil until the run has started
	freed chan struct{} // closed when the session is free again
}

// reserveSession reserves a session for a run. If the run that uses the session is ending, reserveSession waits for its
// end. Otherwise the session is busy.
func (k *Keeper) reserveSession(ctx context.Context, s *session.Session) (*sessionUse, error) {
	for {
		k.mu.Lock()
		u := k.inUse[s.ID()]
		if u == nil {
			u = &sessionUse{freed: make(chan struct{})}
			k.inUse[s.ID()] = u
			k.mu.Unlock()
			return u, nil
		}
		r := u.run
		k.mu.Unlock()
		if r == nil || !endsSoon(ctx, r) {
			return nil, &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "begin run",
				Message: fmt.Sprintf("another run uses the session %s", s.Key().Name),
				Remedy:  "wait for the end of that run, or cancel it",
				Retry:   true,
			}
		}
		select {
		case <-u.freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// endsSoon waits up to endWait for the end of a run, and reports whether it has ended. A caller that has read the last
// event may act before the run has ended.
func endsSoon(ctx context.Context, r *rlm.Run) bool {
	t := time.NewTimer(endWait)
	defer t.Stop()
	select {
	case <-r.Done():
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// Again holds the settings of a stored run that is resumed or forked. Fields that are not set are those of the run's
// last request.
type Again struct {
	Model  string   // model of the run itself
	Sub    []string // models of the sub-calls
	Limits v1.RunLimits
	Host   *v1.RunHost
	Remote bool // the caller uses the network
}

// Resume resumes a run that was interrupted or ended without an answer.
func (k *Keeper) Resume(ctx context.Context, tenant, id string, a Again) (*rlm.Run, error) {
	// The keeper's record of a run that has just ended must be gone before the run is live again.
	k.mu.Lock()
	l := k.live[key{tenant, id}]
	k.mu.Unlock()
	if l != nil && endsSoon(ctx, l.Run) {
		if err := await(ctx, l.removed); err != nil {
			return nil, err
		}
	}
	d := session.RunDemand{Tenant: tenant, Run: id}
	return k.again(ctx, d, id, a, func(ctx context.Context, e *rlm.Engine, again rlm.ContinueOptions) (*rlm.Run, error) {
		return e.Resume(ctx, id, again)
	})
}

// Fork starts a new run that shares its first turns with a stored run.
func (k *Keeper) Fork(ctx context.Context, tenant, id string, at int, a Again) (*rlm.Run, error) {
	d := session.RunDemand{Tenant: tenant}
	return k.again(ctx, d, id, a, func(ctx context.Context, e *rlm.Engine, again rlm.ContinueOptions) (*rlm.Run, error) {
		return e.Fork(ctx, id, at, again)
	})
}

// again calls start with an engine that has the settings of a stored run, changed by a.
func (k *Keeper) again(
	ctx context.Context, d session.RunDemand, id string, a Again,
	start func(context.Context, *rlm.Engine, rlm.ContinueOptions) (*rlm.Run, error),
) (*rlm.Run, error) {
	tenant := d.Tenant
	info, err := k.Show(tenant, id)
	if err != nil {
		return nil, err
	}
	d.USD, d.Usual = a.Limits.Cost, info.Limits.Cost
	ord := order{Remote: a.Remote, Key: session.ActorOf(ctx).Key, Model: a.Model, Sub: a.Sub, Host: a.Host}
	// Callers over the network do not inherit settings that may be those of the machine's owner.
	if previous, err := readOrder(filepath.Join(k.dir(tenant), id)); err == nil && !a.Remote {
		ord.Model = cmp.Or(ord.Model, previous.Model)
		if len(ord.Sub) == 0 {
			ord.Sub = previous.Sub
		}
		if ord.Host == nil {
			ord.Host = previous.Host
		}
	}
	if len(ord.Sub) == 0 {
		ord.Sub = strings.Fields(info.Labels[subModels])
	}
	if ord.Model == "" && !k.isDefault(ctx, info.Model) && !(a.Remote && k.o.Models.RunsHere(info.Model)) {
		ord.Model = info.Model // the default may be another one now, or there may be none
	}
	e, done, err := k.engine(ctx, tenant, ord, true)
	if err != nil {
		return nil, err
	}
	d.Limits = k.sandboxLimits(ord.Host)
	return k.beginDurable(ctx, d, ord, func(ctx context.Context, maxCost *float64) (*rlm.Run, error) {
		return start(ctx, e, rlm.ContinueOptions{Model: a.Model, Limits: withMaxCost(a.Limits, maxCost)})
	}, done)
}

// isDefault reports whether a model is the one of questions that name none. Then it need not be named, and the
// fallback models of the default are kept.
func (k *Keeper) isDefault(ctx context.Context, model string) bool {
	r, err := k.o.Models.Route(ctx, llm.Route{Root: k.o.Route.Root})
	return err == nil && r.At(0).Info().Name == model
}

// Replay runs a stored run again with the recorded replies. No other server resumes the new run.
func (k *Keeper) Replay(ctx context.Context, tenant, id string, h *v1.RunHost) (*rlm.Run, error) {
	b, err := k.backend(ctx, h)
	if err != nil {
		return nil, err
	}
	e, err := k.newEngine(ctx, b, tenant, h, rlm.Options{
		Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() },
	})
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, Free: true, Limits: k.sandboxLimits(h)} // no model is called
	start := func(ctx context.Context, _ *float64) (*rlm.Run, error) { return e.Replay(ctx, id) }
	return k.beginVolatile(ctx, d, start, nil)
}

// beginDurable starts a run that the next server resumes. It writes the order of the run after the run has started, so
// that a run that cannot be resumed keeps its previous order. If the server is killed in between, a new run is not
// resumed by other servers, and a resumed run still has its previous order. done is called when the run has ended, or
// could not be started.
func (k *Keeper) beginDurable(
	ctx context.Context, d session.RunDemand, ord order, start starter, done func(),
) (*rlm.Run, error) {
	base := k.volatile
	if k.o.Resume {
		base = k.ctx
	}
	return k.begin(ctx, base, d, func(ctx context.Context, maxCost *float64) (*rlm.Run, error) {
		r, err := start(ctx, maxCost)
		if err != nil {
			return nil, err
		}
		if err := ord.write(r.Dir()); err != nil {
			r.Cancel()
			_, _ = r.Wait() // the error of write is returned
			return nil, err
		}
		return r, nil
	}, func(*rlm.Result) { done() })
}

// beginVolatile starts a run that no other server resumes.
func (k *Keeper) beginVolatile(
	ctx context.Context, d session.RunDemand, start starter, after func(*rlm.Result),
) (*rlm.Run, error) {
	return k.begin(ctx, k.volatile, d, start, after)
}

// starter starts a run that may cost at most maxCost US dollars; nil: only the run's own limits apply.
type starter func(ctx context.Context, maxCost *float64) (*rlm.Run, error)

// begin starts a run, and keeps it in k.live until its end. The run ends when base ends; of ctx it uses only the trace.
// after is called with the result, or with nil if the run could not be started. after may be nil.
func (k *Keeper) begin(
	ctx, base context.Context, d session.RunDemand, start starter, after func(*rlm.Result),
) (*rlm.Run, error) {
	if after == nil {
		after = func(*rlm.Result) {}
	}
	tenant := d.Tenant
	if err := k.acquireSlot(tenant); err != nil {
		after(nil)
		return nil, err
	}
	place, err := k.takePlace(ctx, d)
	if err != nil {
		k.releaseSlot(tenant)
		after(nil)
		return nil, err
	}
	runCtx, end := startSpan(base, ctx)
	r, err := start(runCtx, place.maxCost())
	if err == nil {
		if err = place.begin(ctx, r.ID()); err != nil {
			r.Cancel()
			_, _ = r.Wait() // the error of place.begin is returned
		}
	}
	if err != nil {
		end(nil, err)
		place.endRun(nil)
		k.releaseSlot(tenant)
		after(nil)
		return nil, err
	}
	at := key{tenant, r.ID()}
	l := &liveRun{Run: r, removed: make(chan struct{})}
	k.mu.Lock()
	k.live[at] = l
	k.mu.Unlock()
	go func() {
		defer close(l.removed)
		res, err := r.Wait()
		end(r, err)
		place.endRun(res)
		k.clearTries(r.Dir())
		after(res)
		if err != nil {
			k.o.Logger.Info("a run ended without an answer", "run", at.id, "tenant", tenant, "error", err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.live, at)
		k.releaseSlotLocked(tenant)
	}()
	return r, nil
}

// acquireSlot counts one more run of a tenant, or returns an error if there are too many. The caller must call
// releaseSlot when the run has ended.
func (k *Keeper) acquireSlot(tenant string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return &v1.Error{Code: v1.CodeClosing, Op: "begin run", Message: "the server is stopping", Retry: true}
	}
	n := k.count[tenant]
	if n >= k.o.MaxRuns {
		return &v1.Error{
			Code:    v1.CodeQueueFull,
			Op:      "begin run",
			Message: fmt.Sprintf("%d runs are in progress, which is the maximum", n),
			Remedy:  "wait for the end of a run, or cancel one",
			Retry:   true,
		}
	}
	k.count[tenant]++
	k.wg.Add(1)
	return nil
}

// releaseSlot undoes acquireSlot.
func (k *Keeper) releaseSlot(tenant string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.releaseSlotLocked(tenant)
}

// releaseSlotLocked undoes acquireSlot.
//
// Preconditions: k.mu is held.
func (k *Keeper) releaseSlotLocked(tenant string) {
	if k.count[tenant]--; k.count[tenant] == 0 {
		delete(k.count, tenant)
	}
	k.wg.Done()
}
