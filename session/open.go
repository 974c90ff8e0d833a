package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// Open finds the session of a key, or makes it; created says which. A session that the same request has made counts as created. A hundred callers at once make one sandbox. A session that is being
// made is made to its end, also when whoever asked for it has given up.
func (m *Manager) Open(ctx context.Context, key Key, o OpenOptions) (s *Session, created bool, err error) {
	key, w, err := m.wish(key, o)
	if err != nil {
		return nil, false, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, false, cancelled("open session", err)
		}
		s, created, err = m.findOrBegin(ctx, key, o, w)
		if err != nil {
			return nil, false, err
		}
		if err := s.made(ctx); err != nil {
			return nil, false, err
		}
		if created || s.madeBy(ctx) {
			m.auditOpen(ctx, s)
			return s, true, nil
		}
		if o.New {
			return nil, false, &sandbox.Error{Code: CodeExists, Op: "open session", Message: fmt.Sprintf("there is a session %q already", key.Name), Remedy: "use it, end it, or choose another name"}
		}
		live, err := s.matches(o, w)
		if err != nil {
			return nil, false, err
		}
		if live {
			return s, false, nil
		}
		// It is ending right now, and its key will be free in a moment.
		select {
		case <-s.freed:
		case <-ctx.Done():
		}
	}
}

func (m *Manager) auditOpen(ctx context.Context, s *Session) {
	i := s.Info()
	s.audit(ctx, Entry{Action: "open", Detail: i.Backend + " " + i.Sandbox})
}

// wish is what a caller of Open wants, checked.
type wish struct {
	spec   sandbox.Spec
	hash   string
	given  bool // the caller named a spec
	policy Policy
}

func (m *Manager) wish(key Key, o OpenOptions) (Key, wish, error) {
	key, err := key.check()
	if err != nil {
		return key, wish{}, err
	}
	w := wish{given: o.Spec != nil, policy: o.Policy.or(m.policy)}
	if err := w.policy.check(); err != nil {
		return key, w, err
	}
	if o.New && o.Existing {
		return key, w, invalid("open session", "it cannot be both new and existing")
	}
	switch o.Gate {
	case "", "off", "warn", "block":
	default:
		return key, w, invalid("open session", "gate %.20q is none of off, warn, block", o.Gate)
	}
	if len(o.Vars) > MaxVars {
		return key, w, invalid("open session", "%d variables, the most is %d", len(o.Vars), MaxVars)
	}
	for name, value := range o.Vars {
		if err := checkVar(name, value); err != nil {
			return key, w, err
		}
	}
	spec := sandbox.Spec{}
	if w.given {
		spec = *o.Spec
	}
	w.spec, w.hash, err = normal(spec)
	return key, w, err
}

// findOrBegin gives the session that holds a key, or has one made.
func (m *Manager) findOrBegin(ctx context.Context, key Key, o OpenOptions, w wish) (*Session, bool, error) {
	m.mu.Lock()
	if m.closing {
		m.mu.Unlock()
		return nil, false, errClosing
	}
	if s := m.live[key]; s != nil {
		m.mu.Unlock()
		return s, false, nil
	}
	if o.Existing {
		m.mu.Unlock()
		return nil, false, m.missing(ctx, key)
	}
	s := m.newSession(m.newRecord(ctx, key, o, w))
	s.turn <- struct{}{} // make gives it
	m.live[key] = s
	actor := context.WithoutCancel(ctx) // who asked is who made it, for as long as it takes
	m.work.Go(func() { s.make(actor, o, w) })
	m.mu.Unlock()
	return s, true, nil
}

func (m *Manager) newRecord(ctx context.Context, key Key, o OpenOptions, w wish) record {
	now := time.Now().UTC()
	return record{
		ID: newID(), Key: key, State: Creating, Reason: "its sandbox is being made", Spec: w.spec, SpecHash: w.hash, Policy: w.policy, Gate: o.Gate, Role: o.Role, From: o.From,
		Created: now, Used: now, Request: request(ctx),
	}
}

func newID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return "n" + hex.EncodeToString(b)
}

// made waits until the session is made, or gives the reason why it never was.
func (s *Session) made(ctx context.Context) error {
	select {
	case <-s.making:
	default:
		select {
		case <-s.making:
		case <-ctx.Done():
			return cancelled("wait for session", ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.makeErr
}

// matches says whether a session is what was asked for, and whether it is still live. What was not asked for matches, and so
// do variables, which are those of a new session.
func (s *Session) matches(o OpenOptions, w wish) (live bool, err error) {
	s.mu.Lock()
	r := s.rec
	s.mu.Unlock()
	if !r.State.Live() {
		return false, nil
	}
	conflict := func(format string, args ...any) error {
		return &sandbox.Error{
			Code: CodeSpecConflict, Op: "open session", Message: fmt.Sprintf("session %q exists, and ", s.key.Name) + fmt.Sprintf(format, args...),
			Remedy: "ask for what it has, end it first, or choose another name",
		}
	}
	mode := func(m string) gate.Mode { return gate.EffectiveMode(s.m.opts.Gate, gate.Mode(m)) }
	switch {
	case w.given && w.hash != r.SpecHash:
		return true, conflict("differs in %s", differing(w.spec, r.Spec))
	case o.Backend != "" && o.Backend != r.Backend:
		return true, conflict("lives on %s, not %s", r.Backend, o.Backend)
	case o.From != "" && o.From != r.From:
		return true, conflict("was not made from snapshot %s", o.From)
	case o.Policy.or(r.Policy) != r.Policy:
		return true, conflict("has another policy: it differs in %s", differing(o.Policy.or(r.Policy), r.Policy))
	case o.Gate != "" && mode(o.Gate) != mode(r.Gate):
		return true, conflict("its gate is %s, not %s", first(string(mode(r.Gate)), "as the server is configured"), o.Gate)
	case o.Role != "" && o.Role != r.Role:
		return true, conflict("its role is %q, not %q", r.Role, o.Role)
	}
	return true, nil
}

// make makes the sandbox of a new session.
//
// Preconditions: the turn is taken; it is given here.
func (s *Session) make(ctx context.Context, o OpenOptions, w wish) {
	ctx, cancel := context.WithTimeout(ctx, makeWait)
	defer cancel()
	stop := context.AfterFunc(s.m.ctx, cancel)
	defer stop()
	defer s.give()
	var err error
	if o.From != "" {
		err = s.makeFrom(ctx, o, w)
	} else {
		err = s.makeNew(ctx, o)
	}
	s.finishMaking(ctx, err)
}

// makeNew makes it from its spec.
func (s *Session) makeNew(ctx context.Context, o OpenOptions) error {
	b, err := s.m.backend(ctx, o.Backend)
	if err != nil {
		return err
	}
	if err := s.register(ctx, b.Name(), o.Vars); err != nil {
		return err
	}
	sb, err := s.newSandbox(ctx, b)
	if err != nil {
		return err
	}
	failpoint("create.made")
	s.adopt(sb, false, nil)
	return nil
}

// register writes a session that is being made into the store, so that whatever is made for it can be told from a stray.
func (s *Session) register(ctx context.Context, backend string, vars map[string]string) error {
	if err := s.recount(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.rec.Backend = backend
	s.mu.Unlock()
	failpoint("create.begun")
	if err := s.m.settle(ctx, s.key); err != nil {
		return err
	}
	if err := s.save(ctx); err != nil {
		return err
	}
	if len(vars) > 0 {
		if err := s.m.store.SetVars(ctx, s.id, vars); err != nil {
			return err
		}
	}
	failpoint("create.registered")
	return nil
}

// newSandbox gives a sandbox that bears the session's labels, a ready one if there is one.
func (s *Session) newSandbox(ctx context.Context, b sandbox.Backend) (*sandbox.Sandbox, error) {
	s.mu.Lock()
	spec, labels := s.rec.Spec, s.m.labels(&s.rec)
	s.mu.Unlock()
	p := s.m.pool(b)
	if p == nil || len(spec.Env) > 0 || spec.Hostname != "" || len(spec.Labels) > 0 {
		spec.Labels = labels
		return sandbox.Open(ctx, b, spec)
	}
	spec.Persist = false // the pool sees to it
	sb, err := p.Get(ctx, spec)
	if err != nil {
		return nil, err
	}
	failpoint("create.taken")
	if err := b.(sandbox.Labeler).Label(ctx, sb.ID(), labels); err != nil {
		return nil, joined(err, sb.Close())
	}
	return sb, nil
}

// finishMaking tells how the making of a session ended.
func (s *Session) finishMaking(ctx context.Context, err error) {
	if err == nil {
		err = s.m.announce(ctx, s)
	}
	if err != nil {
		s.abortMaking(ctx, err)
		return
	}
	close(s.making)
}

// announce takes sessions whose sandboxes are made to their first state. The store hears of all of them at once, and before anybody else.
//
// Preconditions: the turns are taken.
func (m *Manager) announce(ctx context.Context, made ...*Session) error {
	now := time.Now().UTC()
	var rows []store.Session
	for _, s := range made {
		s.saveMu.Lock()
		defer s.saveMu.Unlock()
		s.mu.Lock()
		next := s.rec
		s.mu.Unlock()
		if next.State != Creating {
			continue // it was ended meanwhile, and whoever did that waits for the turn to clean up
		}
		next.State, next.Reason, next.Since = Ready, "made", now
		row, err := next.row()
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	if err := m.store.SaveSessions(context.WithoutCancel(ctx), rows...); err != nil {
		return err
	}
	failpoint("create.saved")
	for _, s := range made {
		s.mu.Lock()
		if s.become(Ready, "made") {
			s.rec.Since = now
		}
		s.mu.Unlock()
	}
	return nil
}

// abortMaking undoes what there is of a session that could not be made.
func (s *Session) abortMaking(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
	defer cancel()
	s.mu.Lock()
	sb := s.sb
	s.sb, s.makeErr = nil, err
	ended := !s.rec.State.Live()
	s.become(Ended, "it could not be made")
	s.rec.Ended = time.Now().UTC()
	s.mu.Unlock()
	if sb != nil {
		if cerr := sb.Close(); cerr != nil {
			s.m.log.WarnContext(ctx, "sandbox of a session that could not be made is left", "sandbox", sb.ID(), "error", cerr)
		}
	}
	if derr := s.m.store.DropSessions(ctx, s.id); derr != nil {
		s.m.log.WarnContext(ctx, "record of a session that could not be made is left for now", "id", s.id, "error", derr)
		s.m.owe(s, func(ctx context.Context) error { return s.m.store.DropSessions(ctx, s.id) })
	}
	s.audit(ctx, Entry{Action: "open", Error: errorCode(err)})
	if !ended {
		s.m.forget(s)
		close(s.freed)
		close(s.disposed)
	}
	close(s.making)
}

// forget frees the key of a session.
func (m *Manager) forget(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live[s.key] == s {
		delete(m.live, s.key)
	}
}
