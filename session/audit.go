package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// Actor says who acts, for the audit log.
type Actor struct{ Name, Tenant string }

type actorKey struct{}

// WithActor marks a context with who acts.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// Actions of the audit log that are written in one place and looked for in another.
const (
	actionStart      = "start"
	actionBackground = "background"
)

// detailBytes is how much of the code the audit log keeps; the digest tells the rest apart.
const detailBytes = 256

// ran notes a cell or command that has ended.
func (s *Session) ran(ctx context.Context, action, code string, j judged, begun time.Time, v *sandbox.Verdict, err error) {
	s.note(ctx, Entry{Time: begun, Action: action, Detail: code, Gate: j.action, Error: errorCode(err), Duration: time.Since(begun)}, v, err)
}

// origin tells who has started what runs without a caller.
type origin struct {
	actor, detail, gate string
	found               bool // running in a sandbox that was attached: who started it is in the log, if anywhere
}

// ranBehind notes the end of what ran without a caller.
func (s *Session) ranBehind(ctx context.Context, o origin, v *sandbox.Verdict) {
	e := Entry{Time: v.Started, Action: actionBackground, Actor: o.actor, Detail: o.detail, Gate: o.gate, Duration: v.Wall}
	if o.found {
		if from, ok := s.started(ctx, v.ID); ok {
			e.Actor, e.Detail, e.Digest, e.Gate = from.Actor, from.Detail, from.Digest, from.Gate
		}
	}
	s.note(ctx, e, v, nil)
}

// actor says who acts.
func actor(ctx context.Context) string {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a.Name
}

// started finds the line that tells who started a command. A manager before this one may have written it.
func (s *Session) started(ctx context.Context, op string) (store.Entry, bool) {
	if s.m.journal.flush(ctx) != nil {
		return store.Entry{}, false // told there
	}
	rows, err := s.m.store.Entries(ctx, store.EntryQuery{Tenant: s.key.Tenant, Session: s.key.Name, Action: actionStart, Op: op})
	if err != nil || len(rows) == 0 {
		return store.Entry{}, false // a cell that was found again has none
	}
	return rows[len(rows)-1], true
}

// note writes down, counts and tells the end of a cell or command.
func (s *Session) note(ctx context.Context, e Entry, v *sandbox.Verdict, err error) {
	action := e.Action
	if v != nil {
		e.Op, e.Verdict, e.Stdout, e.Stderr = v.ID, v.String(), v.Stdout.Produced, v.Stderr.Produced
	}
	s.audit(ctx, e)
	if v != nil {
		s.m.counts.end(Ends{Kind: action, Ended: v.Ended}) // who sees it counted finds its line
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := Event{Kind: "operation", Op: e.Op, Reason: e.Verdict, Attrs: map[string]string{"action": action}}
	if err != nil {
		ev.Attrs["error"] = e.Error
	}
	s.emit(ev, false)
}

// audit adds a line about this session.
func (s *Session) audit(ctx context.Context, e Entry) {
	e.Tenant, e.Session = s.key.Tenant, s.key.Name
	s.m.audit(ctx, e)
}

// Note adds a line about something that a face of this module did beside running code, such as a person's answer to the gate.
func (m *Manager) Note(ctx context.Context, e Entry) { m.audit(ctx, e) }

// audit adds a line.
func (m *Manager) audit(ctx context.Context, e Entry) {
	e.Actor = first(e.Actor, actor(ctx))
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Detail != "" && e.Digest == "" {
		sum := sha256.Sum256([]byte(e.Detail))
		e.Digest = hex.EncodeToString(sum[:16])
	}
	e.Detail = beginning(e.Detail)
	row := store.Entry{
		Time: e.Time, Tenant: e.Tenant, Session: e.Session, Actor: e.Actor, Action: e.Action, Detail: e.Detail, Digest: e.Digest, Op: e.Op,
		Verdict: e.Verdict, Gate: e.Gate, Error: e.Error, Stdout: e.Stdout, Stderr: e.Stderr, Duration: e.Duration,
	}
	m.journal.entry(row)
}

// beginning cuts a text without cutting a character.
func beginning(s string) string {
	if len(s) <= detailBytes {
		return s
	}
	n := detailBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// AuditOptions chooses entries of the audit log.
type AuditOptions struct {
	Tenant, Session, Actor, Action string
	After                          int64 // entries with a larger id
	Limit                          int
}

// auditPage is how many entries are read at once.
const auditPage = 500

// Audit gives entries, oldest first.
func (m *Manager) Audit(ctx context.Context, o AuditOptions) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := m.journal.flush(ctx); err != nil {
			yield(Entry{}, err)
			return
		}
		left := o.Limit
		for {
			page := auditPage
			if o.Limit > 0 {
				page = min(page, left)
			}
			rows, err := m.store.Entries(ctx, store.EntryQuery{Tenant: o.Tenant, Session: o.Session, Actor: o.Actor, Action: o.Action, After: o.After, Limit: page})
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, r := range rows {
				o.After = r.ID
				if !yield(entry(r), nil) {
					return
				}
			}
			left -= len(rows)
			if len(rows) < page || o.Limit > 0 && left <= 0 {
				return
			}
		}
	}
}

func entry(r store.Entry) Entry {
	return Entry{
		ID: r.ID, Time: r.Time, Tenant: r.Tenant, Session: r.Session, Actor: r.Actor, Action: r.Action, Detail: r.Detail, Digest: r.Digest, Op: r.Op,
		Verdict: r.Verdict, Gate: r.Gate, Error: r.Error, Stdout: r.Stdout, Stderr: r.Stderr, Duration: r.Duration,
	}
}

// encodeEvent gives an event as the store takes it.
func encodeEvent(id string, e Event) (store.Event, error) {
	b, err := json.Marshal(e)
	return store.Event{Session: id, Seq: e.Seq, Time: e.Time, Data: b}, err
}
