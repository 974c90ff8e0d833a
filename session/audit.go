package session

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// Actor identifies the caller for the audit log and for quotas.
type Actor struct {
	Name, Tenant string
	Key          string // id of the API key; empty: none was used
	Remote       bool   // the request comes over the network, not over the server's own socket
}

type actorKey struct{}

// WithActor returns a ctx that carries the actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf returns the actor of ctx, or the zero Actor.
func ActorOf(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a
}

// Actions of the audit log that are written in one place and searched for in another.
const (
	actionStart      = "start"
	actionBackground = "background"
)

// recordRun records a cell or a command that has ended.
func (s *Session) recordRun(
	ctx context.Context, action, code string, j judged, begun time.Time, v *sandbox.Verdict, err error,
) {
	s.recordOperation(ctx, Entry{
		Time:     begun,
		Action:   action,
		Detail:   code,
		Gate:     j.action,
		Error:    errorCode(err),
		Duration: time.Since(begun),
	}, v, err)
}

// origin describes the start of a background command.
type origin struct {
	actor, detail, gate string
	found               bool // found running after attaching: its actor is in the audit log, if it is known at all
}

// recordBackground records the end of a background command.
func (s *Session) recordBackground(ctx context.Context, o origin, v *sandbox.Verdict) {
	e := Entry{
		Time:     v.Started,
		Action:   actionBackground,
		Actor:    o.actor,
		Detail:   o.detail,
		Gate:     o.gate,
		Duration: v.Wall,
	}
	if o.found {
		if from, ok := s.startEntry(ctx, v.ID); ok {
			e.Actor, e.Detail, e.Digest, e.Gate = from.Actor, from.Detail, from.Digest, from.Gate
		}
	}
	s.recordOperation(ctx, e, v, nil)
}

// actor returns the name of the actor.
func actor(ctx context.Context) string { return ActorOf(ctx).Name }

// startEntry finds the audit entry of the start of a command. An earlier manager may have written it.
func (s *Session) startEntry(ctx context.Context, op string) (e store.Entry, found bool) {
	q := store.EntryQuery{Tenant: s.key.Tenant, Session: s.key.Name, Action: actionStart, Op: op}
	for row, err := range s.m.journal.Entries(ctx, q) {
		if err != nil {
			return store.Entry{}, false
		}
		e, found = row, true
	}
	return e, found // a cell that was found running has no such entry
}

// recordOperation adds the end of an operation to the audit log, the counters and the events.
func (s *Session) recordOperation(ctx context.Context, e Entry, v *sandbox.Verdict, err error) {
	action := e.Action
	if v != nil {
		e.Op, e.Verdict, e.Stdout, e.Stderr = v.ID, v.String(), v.Stdout.Produced, v.Stderr.Produced
	}
	s.audit(ctx, e)
	if v != nil {
		// Counted after the entry is added: every counted operation is in the audit log.
		s.m.counts.addEnd(OperationEnd{Kind: action, Ended: v.Ended})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := Event{Kind: "operation", Op: e.Op, Reason: e.Verdict, Attrs: map[string]string{"action": action}}
	if err != nil {
		ev.Attrs["error"] = e.Error
	}
	s.emit(ev, false)
}

// audit adds an entry about this session.
func (s *Session) audit(ctx context.Context, e Entry) {
	e.Tenant, e.Session = s.key.Tenant, s.key.Name
	s.m.audit(ctx, e)
}

// Note adds an entry to the audit log for an action outside this package, such as a person's answer to the gate.
func (m *Manager) Note(ctx context.Context, e Entry) { m.audit(ctx, e) }

// audit adds an entry to the audit log.
func (m *Manager) audit(ctx context.Context, e Entry) {
	e.Actor = cmp.Or(e.Actor, actor(ctx))
	m.journal.AddEntry(store.Entry(e))
}

// Audit iterates over entries of the audit log, oldest first.
func (m *Manager) Audit(ctx context.Context, o AuditOptions) iter.Seq2[Entry, error] {
	q := store.EntryQuery{
		Tenant:  o.Tenant,
		Session: o.Session,
		Actor:   o.Actor,
		Action:  o.Action,
		After:   o.After,
		Since:   o.Since,
		Last:    o.Last,
		Limit:   o.Limit,
	}
	return func(yield func(Entry, error) bool) {
		for e, err := range m.journal.Entries(ctx, q) {
			if !yield(Entry(e), err) {
				return
			}
		}
	}
}

// encodeEvent returns an event as a row of the store.
func encodeEvent(id string, e Event) (store.Event, error) {
	b, err := json.Marshal(e)
	return store.Event{Session: id, Seq: e.Seq, Time: e.Time, Data: b}, err
}
