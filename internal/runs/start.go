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

// maxHistory is how many messages of a session's earlier questions the next one can look at.
const maxHistory = 64

// settleWait is how long a run may take between its last event and its end.
const settleWait = 500 * time.Millisecond

// Ask is a question with where and by whom it is to be answered.
type Ask struct {
	rlm.Question
	Sub     []string         // models of the calls it makes
	Host    *v1.RunHost      // what it wants of this machine; nil: nothing else than the keeper's options
	Session *session.Session // works there; nil: in a sandbox of its own
	Away    bool             // asked from elsewhere: models that are programs on this machine cannot be chosen, nor by its code
	Waited  bool             // of no use without the one who waits for it: no other server goes on with it
}

// Start begins a run for a tenant. It goes on when ctx ends.
func (k *Keeper) Start(ctx context.Context, tenant string, a Ask) (*rlm.Run, error) {
	q := a.Question
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	if len(a.Sub) > 0 {
		q.Labels[subModels] = strings.Join(a.Sub, " ")
	}
	lasts := a.Session == nil && !a.Waited // what code has left in a session is not in the sandbox that a resumed run gets
	who := asked{Away: a.Away, Key: session.ActorOf(ctx).Key, Model: q.Model, Sub: a.Sub, Host: a.Host}
	e, done, err := k.engine(ctx, tenant, who, lasts)
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, USD: q.Limits.Cost}
	if a.Session != nil {
		return k.startIn(ctx, d, e, q, a.Session, done)
	}
	d.Limits = k.machine(a.Host)
	begin := starterOf(e, q)
	if lasts {
		return k.beginAs(ctx, d, who, begin, done)
	}
	return k.begin(ctx, d, begin, func(*rlm.Result) { done() })
}

// starterOf returns what begins a question with an engine.
func starterOf(e *rlm.Engine, q rlm.Question) starter {
	return func(ctx context.Context, most *float64) (*rlm.Run, error) {
		q.Limits = capped(q.Limits, most)
		return e.Start(ctx, q)
	}
}

// startIn begins a run in a session. Its variables are those of the questions before. done is called when the run has ended, or did not begin.
func (k *Keeper) startIn(ctx context.Context, d session.RunDemand, e *rlm.Engine, q rlm.Question, s *session.Session, done func()) (*rlm.Run, error) {
	id := s.ID()
	use, err := k.take(ctx, s)
	if err != nil {
		done()
		return nil, err
	}
	k.mu.Lock()
	q.History = k.said[id]
	k.mu.Unlock()
	free := func() {
		done()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.taken, id)
		close(use.over)
	}
	m, release, err := inSession(ctx, s)
	if err != nil {
		free()
		return nil, err
	}
	asked := q.Query
	// The session judges its own code. What is run elsewhere, by children or when somebody goes on with the run, is judged in the same way.
	info := s.Info()
	q.Sandbox, q.Gate, q.Role = m, gate.Mode(info.Gate), info.Role
	switch {
	case info.StateFrom != nil:
		m.from.Store(info.StateFrom) // somebody else may hear of it before we do
		q.Query += fmt.Sprintf("\n(This machine was lost and restored: variables and files are those of %s, and what was done later is gone.)", info.StateFrom.UTC().Format(time.RFC3339))
	case info.Previous != nil:
		m.previous.Store(new(info.Previous.String()))
		q.Query += "\n(This machine is new: what earlier questions have left in variables and files is gone.)"
	case len(q.Inputs) == 0 && len(q.History) > 0:
		q.Query += "\n(What earlier questions have left in variables is still there, context among them; SHOW_VARS() lists them, and history is the conversation.)"
	}
	r, err := k.begin(ctx, d, starterOf(e, q), func(res *rlm.Result) {
		release()
		free()
		if res == nil || res.Reason != v1.ReasonAnswered {
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		said := append(k.said[id], llm.Message{Role: llm.User, Content: asked}, llm.Message{Role: llm.Assistant, Content: res.Answer})
		k.said[id] = said[max(0, len(said)-maxHistory):]
	})
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	use.run = r
	k.mu.Unlock()
	return r, nil
}

// capped returns limits with what a run may cost; nil: money is not bounded.
func capped(l v1.RunLimits, most *float64) v1.RunLimits {
	if most != nil {
		l.Cost = most
	}
	return l
}

// use is a run's work in a session.
type use struct {
	run  *rlm.Run      // guarded by Keeper.mu; nil until it has begun
	over chan struct{} // closed when the session is free again
}

// take reserves a session for a run. One whose run has just ended is waited for: it is free in a moment.
func (k *Keeper) take(ctx context.Context, s *session.Session) (*use, error) {
	for {
		k.mu.Lock()
		u := k.taken[s.ID()]
		if u == nil {
			u = &use{over: make(chan struct{})}
			k.taken[s.ID()] = u
			k.mu.Unlock()
			return u, nil
		}
		r := u.run
		k.mu.Unlock()
		if r == nil || !endsSoon(ctx, r) {
			return nil, &v1.Error{
				Code: v1.CodeBusy, Op: "begin run", Message: fmt.Sprintf("a run works in the session %s", s.Key().Name), Remedy: "wait for its end, or cancel it", Retry: true,
			}
		}
		select {
		case <-u.over:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// endsSoon waits a little for a run: whoever has read its last event may be faster than its end.
func endsSoon(ctx context.Context, r *rlm.Run) bool {
	t := time.NewTimer(settleWait)
	defer t.Stop()
	select {
	case <-r.Done():
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// Again is how a kept run goes on. What is not set is as it was when it was asked for last.
type Again struct {
	Model  string   // of the root
	Sub    []string // models of the calls it makes
	Limits v1.RunLimits
	Host   *v1.RunHost
	Away   bool // asked from elsewhere
}

// Resume goes on with a run that was interrupted or ended without an answer.
func (k *Keeper) Resume(ctx context.Context, tenant, id string, a Again) (*rlm.Run, error) {
	// The keeper's record of a run that has just ended must be gone before the run is live again.
	k.mu.Lock()
	l := k.live[key{tenant, id}]
	k.mu.Unlock()
	if l != nil && endsSoon(ctx, l.Run) {
		if err := await(ctx, l.over); err != nil {
			return nil, err
		}
	}
	d := session.RunDemand{Tenant: tenant, Run: id}
	return k.again(ctx, d, id, a, func(ctx context.Context, e *rlm.Engine, again rlm.ContinueOptions) (*rlm.Run, error) {
		return e.Resume(ctx, id, again)
	})
}

// Fork begins a new run that shares its first turns with a kept one.
func (k *Keeper) Fork(ctx context.Context, tenant, id string, at int, a Again) (*rlm.Run, error) {
	d := session.RunDemand{Tenant: tenant}
	return k.again(ctx, d, id, a, func(ctx context.Context, e *rlm.Engine, again rlm.ContinueOptions) (*rlm.Run, error) {
		return e.Fork(ctx, id, at, again)
	})
}

// again begins with an engine like that of a kept run.
func (k *Keeper) again(ctx context.Context, d session.RunDemand, id string, a Again, start func(context.Context, *rlm.Engine, rlm.ContinueOptions) (*rlm.Run, error)) (*rlm.Run, error) {
	tenant := d.Tenant
	info, err := k.Show(tenant, id)
	if err != nil {
		return nil, err
	}
	d.USD, d.Usual = a.Limits.Cost, info.Limits.Cost
	who := asked{Away: a.Away, Key: session.ActorOf(ctx).Key, Model: a.Model, Sub: a.Sub, Host: a.Host}
	// What the owner of the machine has allowed is not for others who go on with his run.
	if before, err := readAsked(filepath.Join(k.dir(tenant), id)); err == nil && !a.Away {
		who.Model = cmp.Or(who.Model, before.Model)
		if len(who.Sub) == 0 {
			who.Sub = before.Sub
		}
		if who.Host == nil {
			who.Host = before.Host
		}
	}
	if len(who.Sub) == 0 {
		who.Sub = strings.Fields(info.Labels[subModels])
	}
	e, done, err := k.engine(ctx, tenant, who, true)
	if err != nil {
		return nil, err
	}
	d.Limits = k.machine(who.Host)
	return k.beginAs(ctx, d, who, func(ctx context.Context, most *float64) (*rlm.Run, error) {
		return start(ctx, e, rlm.ContinueOptions{Model: a.Model, Limits: capped(a.Limits, most)})
	}, done)
}

// Replay runs a kept run again, with the replies that models gave then. No other server goes on with it.
func (k *Keeper) Replay(ctx context.Context, tenant, id string, h *v1.RunHost) (*rlm.Run, error) {
	b, err := k.backend(ctx, h)
	if err != nil {
		return nil, err
	}
	e, err := k.engineOn(b, tenant, h, rlm.Options{Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }})
	if err != nil {
		return nil, err
	}
	d := session.RunDemand{Tenant: tenant, Free: true, Limits: k.machine(h)} // no model is asked
	return k.begin(ctx, d, func(ctx context.Context, _ *float64) (*rlm.Run, error) { return e.Replay(ctx, id) }, nil)
}

// beginAs starts a run and keeps it until its end, or until the next server does. Who asks for it now is written down instead of who did before.
// That is done once it works, since one that cannot begin remains whose it was: if the server is killed in the moment between, no other goes on with a
// new run by itself, and a resumed one is still for who asked before. done is called when the run has ended, or did not begin.
func (k *Keeper) beginAs(ctx context.Context, d session.RunDemand, who asked, start starter, done func()) (*rlm.Run, error) {
	base := k.brief
	if k.o.Resume {
		base = k.ctx
	}
	return k.beginIn(ctx, base, d, func(ctx context.Context, most *float64) (*rlm.Run, error) {
		r, err := start(ctx, most)
		if err != nil {
			return nil, err
		}
		if err := who.note(r.Dir()); err != nil {
			r.Cancel()
			_, _ = r.Wait() // the reason is told
			return nil, err
		}
		return r, nil
	}, func(*rlm.Result) { done() })
}

// begin starts a run and keeps it until its end. No other server goes on with it.
func (k *Keeper) begin(ctx context.Context, d session.RunDemand, start starter, after func(*rlm.Result)) (*rlm.Run, error) {
	return k.beginIn(ctx, k.brief, d, start, after)
}

// starter begins a run that may cost so many US dollars; nil: its own limits alone decide.
type starter func(ctx context.Context, most *float64) (*rlm.Run, error)

// beginIn starts a run that ends with base, and keeps it until its end. Of ctx it has the trace alone. after may be nil; it is called with the result, or
// with nil when the run did not begin.
func (k *Keeper) beginIn(ctx, base context.Context, d session.RunDemand, start starter, after func(*rlm.Result)) (*rlm.Run, error) {
	if after == nil {
		after = func(*rlm.Result) {}
	}
	tenant := d.Tenant
	if err := k.admit(tenant); err != nil {
		after(nil)
		return nil, err
	}
	place, err := k.takePlace(ctx, d)
	if err != nil {
		k.leave(tenant)
		after(nil)
		return nil, err
	}
	work, end := spanned(base, ctx)
	r, err := start(work, place.most())
	if err == nil {
		if err = place.begun(ctx, r.ID()); err != nil {
			r.Cancel()
			_, _ = r.Wait() // the reason is told
		}
	}
	if err != nil {
		end(nil, err)
		place.over(nil)
		k.leave(tenant)
		after(nil)
		return nil, err
	}
	at := key{tenant, r.ID()}
	l := &liveRun{Run: r, over: make(chan struct{})}
	k.mu.Lock()
	k.live[at] = l
	k.mu.Unlock()
	go func() {
		defer close(l.over)
		res, err := r.Wait()
		end(r, err)
		place.over(res)
		k.forget(r.Dir())
		after(res)
		if err != nil {
			k.o.Logger.Info("a run ended without an answer", "run", at.id, "tenant", tenant, "error", err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.live, at)
		k.leaveLocked(tenant)
	}()
	return r, nil
}

// admit takes the place of one more run; who has it calls leave.
func (k *Keeper) admit(tenant string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return &v1.Error{Code: v1.CodeClosing, Op: "begin run", Message: "the server is being stopped", Retry: true}
	}
	n := k.count[tenant]
	if n >= k.o.Most {
		return &v1.Error{Code: v1.CodeQueueFull, Op: "begin run", Message: fmt.Sprintf("%d runs are under way", n), Remedy: "wait for one of them, or cancel it", Retry: true}
	}
	k.count[tenant]++
	k.wg.Add(1)
	return nil
}

// leave gives the place back.
func (k *Keeper) leave(tenant string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLocked(tenant)
}

// leaveLocked is leave.
//
// Preconditions: k.mu is held.
func (k *Keeper) leaveLocked(tenant string) {
	if k.count[tenant]--; k.count[tenant] == 0 {
		delete(k.count, tenant)
	}
	k.wg.Done()
}
